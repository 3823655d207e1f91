#!/usr/bin/env bash
# Install what is missing, and only that. Run from anywhere; safe to run again.
# Usage: setup.sh [tools|compiled]      with an argument: all but the compiled headrace, or that alone
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
exec 9>build/setup.lock
flock 9

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
hash_of() { cat "$@" | sha256sum | cut -c1-16; }

apt_install() {
  command -v apt-get >/dev/null || die "this machine has no apt-get; install these by hand and run again: $*"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; install these and run again: $*"
    root=(sudo)
  fi
  say "installing $*"
  # Debian's packages start their services at once: the mosquitto of the tests would take port 1883.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee /usr/sbin/policy-rc.d >/dev/null
    "${root[@]}" chmod 755 /usr/sbin/policy-rc.d
    trap "${root[*]} rm -f /usr/sbin/policy-rc.d" EXIT
  fi
  local install=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
  "${install[@]}" </dev/null >build/apt.log 2>&1 && return
  "${root[@]}" apt-get update -qq </dev/null >>build/apt.log 2>&1 || true
  "${install[@]}" </dev/null >>build/apt.log 2>&1 || { tail -20 build/apt.log >&2; die "apt-get failed, see build/apt.log"; }
}

have() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

# A JDK's or Debian's java both do; Spark 4 needs 17 or newer.
java_is_usable() {
  command -v java >/dev/null || return 1
  local major
  major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
  [ "${major:-0}" -ge 17 ]
}

system_packages() {
  local missing=()
  have python3 || missing+=(python3)
  have cc || missing+=(gcc libc6-dev)
  java_is_usable || missing+=(openjdk-17-jre-headless)
  have mvn || missing+=(maven)
  have mosquitto_pub || missing+=(mosquitto-clients)
  have mosquitto || missing+=(mosquitto)
  have haproxy || missing+=(haproxy)
  have redis-server || missing+=(redis-server)
  have valgrind || missing+=(valgrind)
  have openssl || missing+=(openssl)
  have groff || missing+=(groff-base)
  have promtool || missing+=(prometheus)
  have chromium || missing+=(chromium)
  have node || missing+=(nodejs)
  have npm || missing+=(npm)
  have mariadbd || missing+=(mariadb-server)
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is $(python3 -V); 3.11 or newer is needed"
  missing=()
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  python3 -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    missing+=(python3-dev)
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
}

# The stamp lies inside .venv: whoever removes .venv removes it too.
python_packages() {
  local stamp
  stamp=.venv/.setup-lock-$(hash_of requirements.lock)
  [ -e "$stamp" ] && return
  if [ ! -x .venv/bin/python ]; then
    say "making .venv with $(python3 -V)"
    python3 -m venv .venv
  fi
  say "installing the packages of requirements.lock (about two minutes the first time)"
  # A distribution's pip may be too old to build PySpark's sdist without a warning: the locked one goes first.
  local pip=(.venv/bin/python -m pip install -q --disable-pip-version-check)
  # shellcheck disable=SC2046
  "${pip[@]}" $(grep -E '^(pip|setuptools|wheel)==' requirements.lock) </dev/null || die "pip could not update itself"
  "${pip[@]}" -r requirements.lock </dev/null || die "pip could not install requirements.lock"
  rm -f .venv/.setup-lock-*
  touch "$stamp"
}

# Spark itself comes with PySpark; Delta's jars come from Maven into the folder where headrace_spark looks for them.
jars() {
  local folder
  PYTHONPATH=src .venv/bin/python -m headrace_spark.base.jars --check >/dev/null 2>&1 && return
  folder=$(PYTHONPATH=src .venv/bin/python -m headrace_spark.base.jars)
  say "fetching the Delta jars into $folder"
  mkdir -p "$folder"
  mvn -B -q -U -f jars/pom.xml dependency:copy-dependencies -DoutputDirectory="$folder" -DincludeScope=runtime </dev/null ||
    die "maven could not fetch the jars of jars/pom.xml"
  PYTHONPATH=src .venv/bin/python -m headrace_spark.base.jars --check >/dev/null || die "jars are missing in $folder"
}

# Hadoop's client for S3, for the tests with a bucket and for lakes in one.
s3_jars() {
  local folder
  folder=$(PYTHONPATH=src .venv/bin/python -m headrace_spark.base.jars)/s3a
  [ -e "$folder" ] && return
  say "fetching Hadoop's client for S3 into $folder"
  mvn -B -q -U -f jars/s3a.xml dependency:copy-dependencies -DoutputDirectory="$folder.part" -DincludeScope=runtime </dev/null ||
    die "maven could not fetch the jars of jars/s3a.xml"
  mv "$folder.part" "$folder"
}

# Java's archive of the classes of Spark, with which the tests start one faster; without it they start it all the same.
java_classes() {
  PYTHONPATH=src:tests .venv/bin/python -m spark.quick_java make </dev/null || say "no archive of Java's classes, see above"
}

# Kafka, of which the tests start one node; its version is in tests/kafka_server.py.
kafka_jars() {
  PYTHONPATH=src:tests HEADRACE_SUITE=interpreted .venv/bin/python -c 'from kafka_server import jars; jars()' ||
    die "maven could not fetch the jars of jars/kafka.xml"
}

# HBase with its gateway, of which the tests start one; its version is in tests/hbase_server.py.
hbase_jars() {
  PYTHONPATH=src:tests HEADRACE_SUITE=interpreted .venv/bin/python -c 'from hbase_server import jars; jars()' ||
    die "maven could not fetch the jars of jars/hbase.xml"
}

# The MQTT client of browsers, for the tests in Node and in Chromium; its version is in tests/e2e/mqttjs.py.
mqtt_js() {
  (cd tests && ../.venv/bin/python -c 'from e2e.mqttjs import mqttjs; mqttjs()') || die "npm could not fetch mqtt.js"
}

# Built from a copy, so that neither extension modules nor egg-info appear in src.
compiled_headrace() {
  local sources stamp tree=build/tree
  sources=$(find src -name '*.py' -o -name '*.pyx' -o -name 'py.typed' | LC_ALL=C sort)
  # shellcheck disable=SC2086
  stamp=.venv/.setup-wheel-$( { echo "$sources"; cat setup.py pyproject.toml README.md requirements.lock $sources; } | sha256sum | cut -c1-16)
  [ -e "$stamp" ] && return
  say "compiling headrace with mypyc (two to five minutes)"
  rm -rf "$tree" build/wheel
  mkdir -p "$tree"
  cp -r pyproject.toml setup.py README.md LICENSE src "$tree"
  HEADRACE_COMPILE=1 .venv/bin/python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
    -w build/wheel "./$tree" </dev/null >build/compile.log 2>&1 || { tail -40 build/compile.log >&2; die "see build/compile.log"; }
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall build/wheel/headrace-*.whl </dev/null
  rm -f .venv/.setup-wheel-*
  touch "$stamp"
}

part=${1-all}
case $part in all | tools | compiled) ;; *) die "no such part: $part" ;; esac
if [ "$part" != compiled ]; then
  system_packages
  python_packages
  jars
  s3_jars
  java_classes
  kafka_jars
  hbase_jars
  mqtt_js
fi
if [ "$part" != tools ]; then
  compiled_headrace
  say "ready: .venv/bin/headrace"
fi
