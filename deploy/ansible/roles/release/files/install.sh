# Unpacks the archive NAME and installs it without a network; the file `installed` comes last.
cd /opt/georelay/releases
rm -rf "$NAME"
mkdir "$NAME"
tar --extract --gzip --file "$NAME.tar.gz" --directory "$NAME" --strip-components 1
cd "$NAME"
sha256sum --check --quiet SHA256SUMS
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links wheels --require-hashes -r requirements.txt
rm -rf wheels "../$NAME.tar.gz"
touch installed
