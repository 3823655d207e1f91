#!/usr/bin/env bash
# The gate: every step runs, even after a failure; the table at the end says which one failed and how long each took.
# The failures stand once more below that table: what keeps only the end of a log keeps the reason too.
# Usage: test.sh [check|counts|demo|interpreted|compiled|builds|spark|suites ...]      without arguments: all of them
# `builds` is both builds at once, `spark` two halves of the Spark tests at once, and `suites` all four of them.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
report=()
reasons=()
failed=0

step() {
  local name=$1 began=$SECONDS outcome=ok
  shift
  printf '\n=== %s\n' "$name"
  "$@" </dev/null || { outcome=FAILED; failed=1; }
  report+=("$(printf '%-34s %-7s %4d s' "$name" "$outcome" $((SECONDS - began)))")
}

# Tests in one build. HEADRACE_BUILD makes a test fail when the other build was imported by mistake.
suite() {
  local name=$1 build=$2 path=
  shift 2
  [ "$build" = interpreted ] && path=$PWD/src
  env -u PYTHONPATH ${path:+PYTHONPATH=$path} HEADRACE_BUILD="$build" HEADRACE_SUITE="$name" "$bin/python" -m pytest "$@"
}

check() {
  step "format" "$bin/ruff" format --check -q .
  step "lint" "$bin/ruff" check -q .
  step "types (mypy --strict)" "$bin/mypy"
  step "import rules" env PYTHONPATH=src "$bin/lint-imports" --no-logo
  step "documents as a site" workshop/site.sh
}
# The slow ones run once, in the build that ships. Spark, which computes the most and has the longest limits, gives way.
jobs=(tests/spark/jobs)
# Of the tests that talk to broker processes those that run in both builds; the others run once, too: they take most of the
# time of the interpreted build, in which a broker takes up to nine times as long.
both=(bad_input clusters connect crash flow frames in_flight qos retained session shared topics transports wills)
in_both() {
  printf 'tests/%s\n' conformance contract faults fuzz spark unit
  printf 'tests/e2e/test_%s.py\n' "${both[@]}"
}
suite_of() {
  case $1 in
    interpreted)
      # shellcheck disable=SC2046
      suite "$1" interpreted -m "not spark and not compiled and not slow" $(in_both)
      ;;
    compiled) suite "$1" compiled -m "not spark and not interpreted" ;;
    spark-jobs) renice -n 10 "$BASHPID" >/dev/null; suite "$1" interpreted -m spark "${jobs[@]}" ;;
    spark-rest) renice -n 10 "$BASHPID" >/dev/null; suite "$1" interpreted -m spark "${jobs[@]/#/--ignore=}" ;;
  esac
}
# How long it took stands beside its log.
timed_suite() {
  local began=$SECONDS outcome=0
  suite_of "$1" || outcome=$?
  echo $((SECONDS - began)) >"build/test-$1.seconds"
  return $outcome
}
# What failed and why, a line each; pytest's last line when it never came to a summary.
reasons_in() { grep -E '^(FAILED|ERROR) ' "$1" | cut -c 1-240 | head -n 8 | grep . || tail -n 1 "$1"; }
# Suites at once, each into a log of its own, which are printed one after the other. A test waits for brokers, drivers and
# disks for most of its time, so two cores serve four suites.
together() {
  local name outcome
  local -A running
  mkdir -p build
  for name; do
    timed_suite "$name" </dev/null >"build/test-$name.log" 2>&1 &
    running[$name]=$!
  done
  for name; do
    printf '\n=== tests, %s, meanwhile into build/test-%s.log\n' "$name" "$name"
    tail -f --pid="${running[$name]}" -n +1 "build/test-$name.log"
    if wait "${running[$name]}"; then outcome=ok; else
      outcome=FAILED failed=1
      mapfile -t -O "${#reasons[@]}" reasons < <(reasons_in "build/test-$name.log" | sed "s/^/$name: /")
    fi
    report+=("$(printf '%-34s %-7s %4d s' "tests, $name" "$outcome" "$(<"build/test-$name.seconds")")")
  done
}
interpreted() { together interpreted; }
compiled() { together compiled; }
builds() { together interpreted compiled; }
spark() { together spark-jobs spark-rest; }
suites() { together interpreted compiled spark-jobs spark-rest; }
counts() { step "instructions per message" "$bin/python" -m benchmarks.instructions; }
demo() { step "demo, a tenth of the size" "$bin/python" -m demo --size small; }

[ $# -gt 0 ] || set -- check counts demo suites
for part in "$@"; do
  case $part in
    check | counts | demo | interpreted | compiled | builds | spark | suites) "$part" ;;
    *) echo "test.sh: no such part: $part" >&2; exit 2 ;;
  esac
done
printf '\n'
printf '%s\n' "${report[@]}" "${reasons[@]}"
exit $failed
