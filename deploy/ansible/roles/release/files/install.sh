# Unpacks the archive NAME and installs it without a network; the file `installed` comes last. A run that was interrupted
# may go on here: whoever comes second waits for it.
cd /opt/georelay/releases
exec 9>.lock
flock 9
[ -e "$NAME/installed" ] && exit
rm -rf "$NAME"
mkdir "$NAME"
tar --extract --gzip --file "$NAME.tar.gz" --directory "$NAME" --strip-components 1
cd "$NAME"
sha256sum --check --quiet SHA256SUMS
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links wheels --require-hashes -r requirements.txt
rm -rf wheels "../$NAME.tar.gz"
touch installed
