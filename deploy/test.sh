#!/usr/bin/env bash
# Builds and runs every test, from a bare Debian 12 on. Ends with ctest's summary of the dev build.
#
#   deploy/test.sh                 all stages, in this order:
#                                    setup  installs what is missing (deploy/setup.sh --tests)
#                                    build  the dev preset, and every header alone
#                                    asan   AddressSanitizer and UBSan over the unit and simulation tests
#                                    tsan   ThreadSanitizer over the tests labelled tsan (server, worker, simulation)
#                                    fuzz   every fuzzer, 15 seconds each, two at a time
#                                    lint   clang-format and clang-tidy (Millrace's own lint is a test of the dev build)
#                                    punish kills and restarts workers and shards of a job, 60 seconds of it
#                                    dev    every test of the dev build, but those labelled perf
#   deploy/test.sh --quick         setup, build, dev
#   deploy/test.sh --stage NAME    that stage alone (repeatable); also: perf, the tests labelled perf
#
# Environment: MILLRACE_JOBS (default: the number of cores), MILLRACE_FUZZ_SECONDS (default: 15), MILLRACE_PUNISH_SECONDS
# (default: 60).
# Logs stay in build/logs/STAGE.log. Exit codes: 0 all passed, 1 a stage failed, 2 usage.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly ALL_STAGES=(setup build asan tsan fuzz lint punish dev)
readonly QUICK_STAGES=(setup build dev)
readonly LOGS=build/logs
readonly JOBS=${MILLRACE_JOBS:-$(nproc)}
readonly FUZZ_SECONDS=${MILLRACE_FUZZ_SECONDS:-15}
readonly PUNISH_SECONDS=${MILLRACE_PUNISH_SECONDS:-60}
readonly SUMMARY_LINES=40

stage_setup() { deploy/setup.sh --tests; }

stage_build() { cmake --preset dev && cmake --build --preset dev -j "$JOBS"; }

stage_asan() {
  cmake --preset asan && cmake --build --preset asan -j "$JOBS" --target millrace_asan_tests &&
    ctest --preset asan -j "$JOBS" -L '^(unit|sim)$' -LE '^perf$' --no-tests=error
}

stage_tsan() {
  cmake --preset tsan && cmake --build --preset tsan -j "$JOBS" --target millrace_tsan_tests &&
    ctest --preset tsan -j "$JOBS" -L '^tsan$' -LE '^perf$' --no-tests=ignore
}

# One fuzzer for FUZZ_SECONDS. New inputs go to the build folder; tests/fuzz/corpus/NAME only seeds.
fuzz_one() {
  local program=$1 name seeds
  name=$(basename "$program")
  seeds=tests/fuzz/corpus/$name
  mkdir -p "build/fuzz/corpus/$name" "$LOGS/fuzz"
  [ -d "$seeds" ] || seeds=
  # Inputs are short: what one has freed need not wait in 256 MB for the next to touch it.
  # shellcheck disable=SC2086  # an absent seed folder is no argument
  if ASAN_OPTIONS=quarantine_size_mb=4 timeout -k 10 $((FUZZ_SECONDS + 90)) "$program" -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=2048 -timeout=20 \
    -print_final_stats=1 -artifact_prefix="$LOGS/fuzz/$name-" "build/fuzz/corpus/$name" $seeds >"$LOGS/fuzz/$name.log" 2>&1; then
    printf 'fuzz: %-28s %s executions\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$LOGS/fuzz/$name.log")"
  else
    tail -n 40 "$LOGS/fuzz/$name.log"
    printf 'fuzz: %-28s FAILED (all of it: %s)\n' "$name" "$LOGS/fuzz/$name.log"
    return 1
  fi
}
export -f fuzz_one
export LOGS FUZZ_SECONDS

stage_fuzz() {
  cmake --preset fuzz && cmake --build --preset fuzz -j "$JOBS" || return 1
  find build/asan/tests/fuzz -maxdepth 1 -name '*_fuzz' -type f -perm -u+x | sort |
    xargs -r -P 2 -I {} bash -c 'fuzz_one {}'
}

stage_lint() {
  local failed=0
  deploy/lint.sh --only format || failed=1
  deploy/lint.sh --only tidy || failed=1
  return "$failed"
}

# Of another mode every time: the seed is the time's, and printed.
stage_punish() {
  cmake --preset dev && cmake --build --preset dev -j "$JOBS" --target punished_worker millrace-server &&
    tests/integration/punisher_test.py build/dev/bin/millrace-server build/dev/tests/integration/punisher/punished_worker \
      --seconds "$PUNISH_SECONDS"
}

# Those that time something or start processes run alone (RUN_SERIAL).
stage_dev() { ctest --preset dev -j "$JOBS" -LE '^perf$' --no-tests=error; }

stage_perf() { ctest --preset dev -j 1 -L '^perf$' --no-tests=error; }

usage() { sed -n '2,18p' "$0" | sed 's/^# \{0,1\}//'; }

known_stage() {
  local stage
  for stage in "${ALL_STAGES[@]}" perf; do
    [ "$stage" != "$1" ] || return 0
  done
  return 1
}

# The lines of a log that name a fault, and its end. The dev stage's are shown last, as the summary.
show_failure() {
  grep -nE 'error:|FAILED|WARNING: ThreadSanitizer|ERROR: AddressSanitizer|runtime error' "$LOGS/$1.log" | head -n 20
  tail -n 60 "$LOGS/$1.log"
}

# run_stage NAME: its output goes to the log; a failure shows the end of it.
run_stage() {
  local stage=$1 started=$SECONDS result=passed
  printf '=== %s …\n' "$stage"
  if ! "stage_$stage" >"$LOGS/$stage.log" 2>&1 </dev/null; then
    result=FAILED
    failed+=("$stage")
    [ "$stage" = dev ] || show_failure "$stage"
  elif [ "$stage" = fuzz ]; then
    grep '^fuzz:' "$LOGS/$stage.log"
  elif [ "$stage" != dev ]; then
    tail -n 3 "$LOGS/$stage.log"
  fi
  table+=("$(printf '  %-6s %-7s %4d s' "$stage" "$result" $((SECONDS - started)))")
  printf '=== %s %s in %d s\n' "$stage" "$result" $((SECONDS - started))
}

main() {
  local stages=() table=() failed=() stage
  while [ $# -gt 0 ]; do
    case "$1" in
      --quick) stages=("${QUICK_STAGES[@]}") ;;
      --stage)
        known_stage "${2:-}" || { echo "test: no stage '${2:-}': ${ALL_STAGES[*]} perf" >&2; exit 2; }
        stages+=("$2")
        shift
        ;;
      -h | --help) usage; exit 0 ;;
      *) echo "test: unknown option '$1'" >&2; usage >&2; exit 2 ;;
    esac
    shift
  done
  [ "${#stages[@]}" -gt 0 ] || stages=("${ALL_STAGES[@]}")
  mkdir -p "$LOGS"
  for stage in "${stages[@]}"; do
    run_stage "$stage"
  done
  printf 'Stages:\n'
  printf '%s\n' "${table[@]}"
  [ "${#failed[@]}" -eq 0 ] || printf 'Failed: %s (logs in %s/)\n' "${failed[*]}" "$LOGS"
  # Last, ctest's own words on the last stage that ran tests.
  [[ $stage != dev && $stage != perf ]] || tail -n "$SUMMARY_LINES" "$LOGS/$stage.log"
  [ "${#failed[@]}" -eq 0 ]
}

main "$@"
