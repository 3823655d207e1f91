#!/usr/bin/env bash
# The documents as a site in build/site/html. Fails when a link or an anchor leads nowhere, or a page is not in mkdocs.yml.
set -euo pipefail
cd "$(dirname "$0")/.."
source=build/site/source
rm -rf build/site
mkdir -p "$source"/{demo,examples,benchmarks,workshop,contrib/device-c}
cp -r README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs "$source"
cp demo/README.md "$source/demo"
cp contrib/device-c/README.md "$source/contrib/device-c"
cp workshop/README.md "$source/workshop"
cp -r benchmarks/README.md benchmarks/results "$source/benchmarks"
cp -r examples/* "$source/examples"
# NO_MKDOCS_2_WARNING: not the page of advice on what comes after Material. Not --quiet: with it nothing is counted.
NO_MKDOCS_2_WARNING=1 "${PYTHON:-.venv/bin/python}" -m mkdocs build --strict
echo "build/site/html/index.html"
