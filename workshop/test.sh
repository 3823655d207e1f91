#!/usr/bin/env bash
# The gate: every step runs, even after a failure; the table at the end says which one failed and how long each took.
# Usage: test.sh [check|interpreted|compiled|builds|counts|spark|demo ...]      without arguments: all of them
# `builds` is both builds at once: either waits for its broker half of the time, so two cores serve the two of them.
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
builds() {
  local began=$SECONDS log=build/test-compiled.log job outcome
  printf '\n=== the compiled build is tested meanwhile, into %s\n' "$log"
  suite compiled -m "not spark and not interpreted" </dev/null >"$log" 2>&1 &
  job=$!
  interpreted
  printf '\n=== tests, compiled\n'
  tail -f --pid="$job" -n +1 "$log"
  if wait "$job"; then outcome=ok; else outcome=FAILED failed=1; fi
  report+=("$(printf '%-34s %-7s %4d s' "tests, compiled, meanwhile" "$outcome" $((SECONDS - began)))")
}
counts() { step "instructions per message" "$bin/python" -m benchmarks.instructions; }
spark() { step "tests, spark" suite interpreted -m spark; }
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
