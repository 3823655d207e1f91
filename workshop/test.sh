#!/usr/bin/env bash
# The gate: every step runs, even after a failure; the table at the end says which one failed and how long each took.
# The failures stand once more below that table: what keeps only the end of a log keeps the reason too.
# Usage: test.sh [check|counts|demo|interpreted|compiled|builds|spark|deep|spark-deep|suites ...]
# `builds` is both builds at once, `spark` two halves of the Spark tests at once, and `suites` all of them; `deep` are tests
# that the gate leaves out, and `spark-deep` those of Spark.
# Without arguments all of it, and headrace is compiled beside what needs no compiled headrace.
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
  report+=("$(printf '%-34s %-8s %4d s' "$name" "$outcome" $((SECONDS - began)))")
}

check() {
  step "format" "$bin/ruff" format --check -q .
  step "lint" "$bin/ruff" check -q .
  step "types (mypy --strict)" "$bin/mypy"
  step "import rules" env PYTHONPATH=src "$bin/lint-imports" --no-logo
  step "documents as a site" workshop/site.sh
}

# What runs where stands as a table in workshop/README.md. `slow` runs in the compiled build alone; of the tests that talk to
# broker processes `both` run in both, for an interpreted broker takes up to nine times as long; and what no compiled module
# has a part in runs in the interpreted build alone.
both=(tests/e2e/test_{bad_input,clusters,connect,flow,frames,in_flight,qos,retained,session,shared,topics,transports,wills}.py)
pure=(tests/spark tests/conformance/test_statements.py tests/unit/{benchmarks,console,demo,mosquitto}
  tests/unit/{test_gate,test_ownership,test_packaging,test_style,clients/frame/test_processed,clients/frame/test_transactions}.py
  tests/unit/services/test_{acl_decisions,verifying}.py
  tests/unit/directory/test_{engine,hashes,migrating,names,passwords,reader,store}.py)
jobs=(tests/spark/jobs)
tests_of() {
  case $1 in
    interpreted) printf '%s\n' tests/{conformance,contract,faults,fuzz,spark,unit} "${both[@]}" ;;
    compiled) printf -- '--ignore=%s\n' "${pure[@]}" tests/e2e ;;
    compiled-deep) printf -- '--ignore=%s\n' "${pure[@]}" ;;
    compiled-e2e) echo tests/e2e ;;
    spark-jobs) printf '%s\n' "${jobs[@]}" ;;
    spark-deep) echo tests/spark ;;
    spark-rest) printf '%s\n' tests/spark "${jobs[@]/#/--ignore=}" ;;
  esac
}
# HEADRACE_BUILD makes a test fail when the other build was imported by mistake. What Python compiles of the sources is kept
# for the next process, whatever the environment says: without, each interpreted broker, command and worker of Spark compiles
# it anew, which is half of what its start costs.
suite() {
  local name=$1 build=interpreted path=$PWD/src which="spark and not deep"
  shift
  case $name in
    interpreted) which="not spark and not compiled and not slow and not deep" ;;
    spark-deep) which="spark and deep" ;;
    compiled-deep) build=compiled path='' which="deep and not spark and not interpreted" ;;
    compiled*) build=compiled path='' which="not spark and not interpreted and not deep" ;;
  esac
  env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE ${path:+PYTHONPATH=$path} HEADRACE_BUILD=$build HEADRACE_SUITE="$name" \
    "$bin/python" -m pytest -m "$which" -o cache_dir="build/cache-$name" "$@"
}
# How long it took stands beside its log.
timed_suite() {
  local name=$1 began=$SECONDS outcome=0 paths=()
  mapfile -t paths < <(tests_of "$name")
  rm -rf "build/cache-$name"
  suite "$name" "${paths[@]}" || outcome=$?
  echo $((SECONDS - began)) >"build/test-$name.seconds"
  return $outcome
}
# What failed and why, a line each; pytest's last line when it never came to a summary.
reasons_in() { grep -E '^(FAILED|ERROR) ' "$1" | cut -c 1-240 | head -n 8 | grep . || tail -n 1 "$1"; }

# Suites at once, each into a log of its own, which are printed one after the other. A test waits for brokers, drivers and
# disks for most of its time, so two cores serve five suites.
declare -A running
begin() {
  local name
  mkdir -p build
  for name; do
    : >"build/test-$name.log" # it is read before the suite may have begun
    timed_suite "$name" </dev/null >"build/test-$name.log" 2>&1 &
    running[$name]=$!
  done
}
finish() {
  local name outcome
  local -A outcomes
  for name; do
    printf '\n=== tests, %s, meanwhile into build/test-%s.log\n' "$name" "$name"
    tail -f --pid="${running[$name]}" -n +1 "build/test-$name.log"
    wait "${running[$name]}"
    outcomes[$name]=$?
  done
  for name; do
    outcome=ok
    case ${outcomes[$name]} in
      0) ;;
      1) if alone "$name"; then outcome=unsteady; else outcome=FAILED; fi ;;
      *) outcome=FAILED ;;
    esac
    [ $outcome != FAILED ] || failed=1
    [ $outcome = ok ] || mapfile -t -O "${#reasons[@]}" reasons < <(reasons_in "build/test-$name.log" | sed "s/^/$name, $outcome: /")
    report+=("$(printf '%-34s %-8s %4d s' "tests, $name" "$outcome" "$(<"build/test-$name.seconds")")")
  done
}
# What failed while five suites shared two cores is run three times more, alone. If it passes each time it is *unsteady*: the
# gate passes and says so with the first failure's text, and whoever sees that mends it next. Many failures are no accident.
unsteady_max=6
alone() {
  local name=$1 round
  "$bin/python" -c 'import json, sys; print(*json.load(sys.stdin), sep="\n")' \
    <"build/cache-$name/v/cache/lastfailed" >"build/failed-$name" || return
  # What an end shows of things that a whole file shares is nobody's alone: the file runs again.
  sed -n -E 's/^ERROR ([^ :]+)::.*/\1/p' "build/test-$name.log" | sort -u >"build/files-$name"
  if [ -s "build/files-$name" ]; then
    { grep -v -F -f "build/files-$name" "build/failed-$name"; cat "build/files-$name"; } >"build/again-$name"
    mv "build/again-$name" "build/failed-$name"
  fi
  [ "$(wc -l <"build/failed-$name")" -le $unsteady_max ] || return
  for round in 1 2 3; do
    printf '\n=== what failed in %s, alone, %d of 3\n' "$name" "$round"
    suite "$name" "@build/failed-$name" </dev/null || return
  done
}
together() { begin "$@"; finish "$@"; }
interpreted() { together interpreted; }
compiled() { together compiled compiled-e2e; }
builds() { together interpreted compiled compiled-e2e; }
spark() { together spark-jobs spark-rest; }
spark-deep() { together spark-deep; }
deep() { together spark-deep compiled-deep; }
suites() { together interpreted compiled compiled-e2e spark-jobs spark-rest; }
counts() { step "instructions per message" "$bin/python" -m benchmarks.instructions; }
demo() { step "demo, a tenth of the size" "$bin/python" -m demo --size small; }

# gcc takes one core for minutes; meanwhile the other one checks, and Spark's jobs begin: what else there is of Spark looks
# for headrace among the packages that are installed.
all() {
  local compiling
  mkdir -p build
  workshop/setup.sh compiled </dev/null >build/setup-compiled.log 2>&1 &
  compiling=$!
  check
  begin spark-jobs
  step "compiled headrace" wait_for "$compiling" build/setup-compiled.log
  begin interpreted compiled compiled-e2e spark-rest
  counts
  finish interpreted compiled compiled-e2e spark-jobs spark-rest
  demo
}
wait_for() { tail -f --pid="$1" -n +1 "$2"; wait "$1"; }

[ $# -gt 0 ] || set -- all
for part in "$@"; do
  case $part in
    all | check | counts | demo | interpreted | compiled | builds | spark | deep | spark-deep | suites) "$part" ;;
    *) echo "test.sh: no such part: $part" >&2; exit 2 ;;
  esac
done
printf '\n'
printf '%s\n' "${report[@]}" "${reasons[@]}"
exit $failed
