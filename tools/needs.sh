#!/usr/bin/env bash
# Probes by command for what pip cannot install; installs only what is missing, never asks a question.
set -euo pipefail

missing=()
java_major() { java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }
if ! command -v java >/dev/null 2>&1 || [ "$(java_major)" -lt 17 ] 2>/dev/null; then
  missing+=(openjdk-17-jre-headless)
fi
command -v kcat >/dev/null 2>&1 || missing+=(kcat)
command -v serf >/dev/null 2>&1 || missing+=(serf)
[ ${#missing[@]} -eq 0 ] && exit 0

line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null 2>&1; then
  echo "georelay needs: ${missing[*]} (names of Debian packages). Install them and run make again." >&2
  exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
  run=()
elif sudo -n true 2>/dev/null; then
  run=(sudo -n)
else
  echo "georelay needs: ${missing[*]}. Run: sudo sh -c '$line'" >&2
  exit 1
fi
echo "georelay: installing ${missing[*]} ..."
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
"${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
