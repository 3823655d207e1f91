#!/usr/bin/env bash
# A Debian package of the wheel that setup.sh compiled, for the Debian of this machine's Python and architecture.
# Usage: deb.sh [FOLDER]      the package goes to FOLDER, by default dist
#
# The packages that headrace needs come along in /usr/lib/headrace, since Debian has not all of them: those of
# requirements.lock, with what Python compiles of them, because the service may not write there.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
python=${HEADRACE_PYTHON:-$PWD/.venv/bin/python}
files=contrib/debian
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
root=$tree/root

wheels=(build/wheel/headrace-*.whl)
[ -e "${wheels[0]}" ] || { echo "deb.sh: no wheel in build/wheel: make setup compiles one" >&2; exit 1; }

mkdir -p "$root"/{DEBIAN,usr/bin,usr/lib/headrace,usr/lib/sysusers.d,lib/systemd/system,etc/headrace} \
  "$root"/usr/share/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,doc/headrace}

# The wheel and its dependencies
"$python" -m pip install -q --disable-pip-version-check --no-compile --constraint requirements.lock \
  --target "$root/usr/lib/headrace" "${wheels[0]}" </dev/null
rm -rf "$root/usr/lib/headrace/bin"
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$root/usr/lib/headrace"
install -m 755 "$files/headrace" "$root/usr/bin/headrace"

# The service
install -m 644 contrib/systemd/headrace.service "$root/lib/systemd/system/"
install -m 644 contrib/systemd/headrace.sysusers "$root/usr/lib/sysusers.d/headrace.conf"
install -m 644 contrib/systemd/headrace.toml "$root/etc/headrace/"

# Man pages, completions, documents
PYTHONPATH=$root/usr/lib/headrace "$python" -P workshop/man_pages.py "$tree"
for page in "$tree"/man1/*.1; do
  gzip -9n <"$page" >"$root/usr/share/man/man1/$(basename "$page").gz"
done
install -m 644 "$tree/completions/headrace.bash" "$root/usr/share/bash-completion/completions/headrace"
install -m 644 "$tree/completions/headrace.zsh" "$root/usr/share/zsh/vendor-completions/_headrace"
install -m 644 "$tree/completions/headrace.fish" "$root/usr/share/fish/vendor_completions.d/headrace.fish"
gzip -9n <CHANGELOG.md >"$root/usr/share/doc/headrace/changelog.gz"
{ printf 'headrace, and in /usr/lib/headrace the packages that it needs, each with its licence beside it.\n\n'; cat LICENSE; } \
  >"$root/usr/share/doc/headrace/copyright"

# What dpkg is told
version=$("$python" -c 'import sys; print(sys.argv[1].split("-")[1])' "$(basename "${wheels[0]}")")
minor=$("$python" -c 'import sys; print(sys.version_info.minor)')
architecture=$(dpkg --print-architecture)
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@PYTHON@/3.$minor/; s/@PYTHON_AFTER@/3.$((minor + 1))/" \
  -e "s/@INSTALLED_KB@/$(du -sk --exclude=DEBIAN "$root" | cut -f1)/" "$files/control" >"$root/DEBIAN/control"
install -m 644 "$files/conffiles" "$root/DEBIAN/conffiles"
install -m 755 "$files"/{postinst,prerm,postrm} "$root/DEBIAN/"
chmod -R u=rwX,go=rX "$root"
(cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$out"
dpkg-deb --build --root-owner-group -Zxz "$root" "$out/headrace_${version}_${architecture}.deb" >/dev/null
echo "$out/headrace_${version}_${architecture}.deb"
