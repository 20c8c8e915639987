#!/bin/sh
# Compiles the package in the folder $1 of the source tree at /source into one wheel in /output: fixed path, no network,
# the toolchain's own packages.
set -eu
exec >&2 # one stream, so that the log keeps the order of what was said
mkdir -p /build/source
cp -R /source/. /build/source
cd "/build/source/$1"
exec python3 -m build --wheel --no-isolation --outdir /output .
