#!/usr/bin/env bash
# mermaid.sh FOLDER: mermaid's scripts in FOLDER/mermaid, so that the site draws its diagrams without a network.
set -euo pipefail
command -v npm >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent mermaid@11.12.1 >/dev/null && tar -xzf mermaid-*.tgz)
find "$work/package/dist" -name '*.map' -delete
mkdir -p "$1/mermaid/chunks"
cp "$work/package/dist/mermaid.esm.min.mjs" "$1/mermaid/"
cp -r "$work/package/dist/chunks/mermaid.esm.min" "$1/mermaid/chunks/"
