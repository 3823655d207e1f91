#!/usr/bin/env bash
# The gate: every step runs, even after a failure; the table at the end says which one failed and how long each took.
# Usage: test.sh [check|interpreted|compiled|builds|counts|spark|demo ...]      without arguments: all of them
# `builds` is both builds at once: either waits for its broker half of the time, so two cores serve the two of them. `spark`
# is two halves at once for the same reason.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
report=()
failed=0

step() {
  local name=$1 began=$SECONDS outcome=ok
  shift
  printf '\n=== %s\n' "$name"
  "$@" </dev/null || { outcome=FAILED; failed=1; }
  report+=("$(printf '%-34s %-7s %4d s' "$name" "$outcome" $((SECONDS - began)))")
}

# The suite of one build. HEADRACE_BUILD makes a test fail when the other build was imported by mistake.
suite() {
  local build=$1 path=
  shift
  [ "$build" = interpreted ] && path=$PWD/src
  env -u PYTHONPATH ${path:+PYTHONPATH=$path} HEADRACE_BUILD="$build" "$bin/python" -m pytest "$@"
}

check() {
  step "format" "$bin/ruff" format --check -q .
  step "lint" "$bin/ruff" check -q .
  step "types (mypy --strict)" "$bin/mypy"
  step "import rules" env PYTHONPATH=src "$bin/lint-imports" --no-logo
  step "documents as a site" workshop/site.sh
}
# The slow ones run once, in the build that ships.
interpreted() { step "tests, interpreted" suite interpreted -m "not spark and not compiled and not slow"; }
compiled() { step "tests, compiled" suite compiled -m "not spark and not interpreted"; }
# Two suites at once: that of a name, with what follows, and a step.
beside() {
  local part=$1 name=$2 began=$SECONDS log=build/test-$2.log job outcome
  shift 2
  mkdir -p build
  printf '\n=== meanwhile, into %s: tests, %s\n' "$log" "$name"
  suite "$@" </dev/null >"$log" 2>&1 &
  job=$!
  "$part"
  printf '\n=== tests, %s\n' "$name"
  tail -f --pid="$job" -n +1 "$log"
  if wait "$job"; then outcome=ok; else outcome=FAILED failed=1; fi
  report+=("$(printf '%-34s %-7s %4d s' "tests, $name, meanwhile" "$outcome" $((SECONDS - began)))")
}
builds() { beside interpreted compiled compiled -m "not spark and not interpreted"; }
counts() { step "instructions per message" "$bin/python" -m benchmarks.instructions; }
# A Spark waits for its driver, for Python, for the disk: two share two cores. Half of the time is on either side.
jobs=(tests/spark/jobs tests/spark/test_documents.py)
spark_jobs() { step "tests, spark, jobs" suite interpreted -m spark "${jobs[@]}"; }
spark() { beside spark_jobs spark interpreted -m spark "${jobs[@]/#/--ignore=}"; }
demo() { step "demo, a tenth of the size" "$bin/python" -m demo --size small; }

[ $# -gt 0 ] || set -- check builds counts demo spark
for part in "$@"; do
  case $part in
    check | interpreted | compiled | builds | counts | spark | demo) "$part" ;;
    *) echo "test.sh: no such part: $part" >&2; exit 2 ;;
  esac
done
printf '\n'
printf '%s\n' "${report[@]}"
exit $failed
