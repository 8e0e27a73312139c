#!/usr/bin/env bash
# Builds the images georelay-broker:VERSION and georelay-gateway:VERSION from dist/georelay-VERSION.tar.gz,
# georelay-prometheus:VERSION of Debian's package, and where there is dist/georelay-sla-VERSION.tar.gz (make release
# SLA=1) georelay-sla:VERSION.
# BASE names another base image than Debian's; BUILDER another builder than the first that is installed; ISOLATION is
# chroot where no container may be started to build another.
set -euo pipefail
cd "$(dirname "$0")/../.."
refuse() { echo "make image: $1" >&2; exit 1; }

version="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"
[ -f "dist/georelay-$version.tar.gz" ] || refuse "there is no dist/georelay-$version.tar.gz. Run: make release"
builder="${BUILDER:-}"
for known in buildah podman docker; do
  [ -n "$builder" ] || ! command -v "$known" >/dev/null || builder="$known"
done
[ -n "$builder" ] || refuse "it needs buildah, podman or docker. Run: apt-get install buildah"

build=("$builder" build)
if [ "$builder" != docker ]; then
  build+=(--format docker ${ISOLATION:+--isolation "$ISOLATION"})  # the format of OCI has no health check
  if [ -n "${BASE:-}" ] && "$builder" inspect --type image "$BASE" >/dev/null 2>&1; then
    build+=(--pull=never)  # it is here, and may be in no registry
  fi
fi
context="$(mktemp -d)"  # the archive and nothing else that lies in dist
trap 'rm -rf "$context"' EXIT
sets=("georelay-$version") targets=(broker gateway prometheus)
if [ -f "dist/georelay-sla-$version.tar.gz" ]; then
  sets+=("georelay-sla-$version") targets+=(sla)
fi
for name in "${sets[@]}"; do
  ln "dist/$name.tar.gz" "$context/" 2>/dev/null || cp "dist/$name.tar.gz" "$context/"
done
for target in "${targets[@]}"; do
  "${build[@]}" ${BASE:+--build-arg "BASE=$BASE"} --build-arg "VERSION=$version" --target "$target" \
    --tag "georelay-$target:$version" --file deploy/docker/Dockerfile "$context" ||
    refuse "$builder could not build $target (above). Where no registry answers, name a base image that is here: make image BASE=NAME"
done
echo "built by $builder: $(printf "georelay-%s:$version " "${targets[@]}")"
