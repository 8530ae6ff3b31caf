#!/usr/bin/env bash
# Builds and runs every test, from a bare Debian 12 on. Ends with ctest's summary of the dev build.
#
#   deploy/test.sh                 all stages, in this order.
#                                    setup  installs missing packages (deploy/setup.sh --tests).
#                                    build  the dev preset: every program, and the tests of stage dev.
#                                    asan   AddressSanitizer, UBSan: unit tests and, with fewer seeds, simulations.
#                                    tsan   ThreadSanitizer over the tests that have threads.
#                                    fuzz   every fuzzer, 5 seconds each, two at a time.
#                                    lint   clang-format; clang-tidy and headers alone, on changes since green_commit.
#                                    models the models of the protocols, if they changed since the last green commit.
#                                    dev    vector kernels on every instruction set, simulations, lint, integration
#                                           tests, among them the punisher: 15 seconds in each of two modes.
#                                           extend_test if a path of tests/integration/extend/depends.txt changed since
#                                           the last green commit.
#                                  Of the unit tests, simulations and fuzzers: those that a change since the last green
#                                  commit can reach (tests/lint/affected.py).
#   deploy/test.sh --quick         setup, build, dev.
#   deploy/test.sh --release       all stages, and in each the tests that CI leaves out. All unit tests run in all three
#                                  builds, everything under lint, the models, fuzzers for 60 seconds each. Then six more
#                                  stages follow.
#                                    punish kills and restarts workers and shards of a job for ten minutes.
#                                    papers every script of tests/bench/papers with --quick, as a trial run.
#                                    record puts each fault of tests/sim/RECORD.md back: its test must find it.
#                                    packages builds the Debian packages and the image, checks and runs both. Root.
#                                    trixie tests the Python package on Debian 13, and its wheel. Tests of
#                                           DistributedDataParallel must not skip.
#                                    forky  the same on Debian testing: FSDP2 needs its PyTorch, and must not skip.
#                                  Five hours.
#   deploy/test.sh --stage NAME    that stage alone (repeatable).
#
# A stage has a budget of time on two cores with an empty compiler cache, for a tree that equals the last green commit.
# The table marks a stage over its budget; the stage does not fail.
# Environment: MILLRACE_JOBS (default: the number of cores), MILLRACE_FUZZ_SECONDS, MILLRACE_PUNISH_SECONDS.
# Logs stay in build/logs/STAGE.log. Exit codes: 0 all passed, 1 a stage failed, 2 usage.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly ALL_STAGES=(setup build asan tsan fuzz lint models dev)
readonly QUICK_STAGES=(setup build dev)
readonly RELEASE_STAGES=("${ALL_STAGES[@]}" punish papers record packages trixie forky)
# Seconds; 25 minutes in all, without the stages of --release alone.
declare -rA BUDGETS=([setup]=5 [build]=690 [asan]=130 [tsan]=20 [fuzz]=15 [lint]=30 [models]=10 [dev]=600 [punish]=620 [papers]=600 [record]=5400 [packages]=1500 [trixie]=1800 [forky]=1800)
readonly LOGS=build/logs
readonly GREEN=tests/lint/green_commit.txt
readonly JOBS=${MILLRACE_JOBS:-$(nproc)}
readonly SUMMARY_LINES=25
readonly FAILED_TEST_LINES=14
readonly TEMPORARY_KB=4000000
release=no
in_memory= # folder of temporary files in memory
trap '[ -z "$in_memory" ] || rm -rf "$in_memory"' EXIT

stage_setup() { deploy/setup.sh --tests; }

# find_affected PRESET OPTIONS…: asks tests/lint/affected.py about the tests that its options name. CI has to run `tests`
# again, which need `targets`, and may leave out `left_out`.
find_affected() {
  local found
  found=$(/usr/bin/python3 tests/lint/affected.py --build "build/$1" "${@:2}" $([ "$release" = no ] || echo --all)) || return 1
  mapfile -t targets < <(awk '$3 == 1 && $1 != "-" { print $1 }' <<<"$found" | sort -u)
  mapfile -t tests < <(awk '$3 == 1 { print $2 }' <<<"$found")
  mapfile -t left_out < <(awk '$3 == 0 { print $2 }' <<<"$found")
}

# one_of NAME…: the regular expression of these names.
one_of() { local IFS='|'; echo "^($*)\$"; }

# build_and_test PRESET LABELS: with --release, all unit tests and simulations, and the integration tests that CI runs in
# this build. One more test at a time than JOBS: some wait for time-outs and sockets.
build_and_test() {
  local targets tests left_out choice
  cmake --preset "$1" || return 1
  if [ "$release" = yes ]; then
    targets=(all)
    choice=(-LE '^(integration|model)$')
  else
    find_affected "$1" --labels "$2" || return 1
    [ "${#tests[@]}" -gt 0 ] || return 0
    choice=(-R "$(one_of "${tests[@]}")")
  fi
  cmake --build --preset "$1" -j "$JOBS" --target "${targets[@]}" || return 1
  ctest --preset "$1" -j $((JOBS + 1)) "${choice[@]}" --no-tests=error || return 1
  [ "$release" = no ] || ctest --preset "$1" -j $((JOBS + 1)) -L '^integration$' -L "^only_$1\$"
}

# find_affected_here: the tests of stage dev that it may leave out.
find_affected_here() { find_affected dev --labels '^(unit|sim)$' --without '^(only_asan|only_tsan|release)$'; }

stage_build() {
  local targets tests left_out
  cmake --preset dev || return 1
  if [ "$release" = yes ]; then
    targets=(all)
  else
    find_affected_here || return 1
    targets+=(millrace_programs)
  fi
  cmake --build --preset dev -j "$JOBS" --target "${targets[@]}"
}

stage_asan() { build_and_test asan '^(only_asan|sim)$'; }

stage_tsan() { build_and_test tsan '^only_tsan$'; }

# One fuzzer for FUZZ_SECONDS. New inputs go to the build folder; tests/fuzz/corpus/NAME only seeds.
fuzz_one() {
  local program=$1 name seeds
  name=$(basename "$program")
  seeds=tests/fuzz/corpus/$name
  mkdir -p "build/fuzz/corpus/$name" "$LOGS/fuzz"
  [ -d "$seeds" ] || seeds=
  # Inputs are short: memory that one input frees need not wait in 256 MB before the next input uses it.
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
export LOGS

stage_fuzz() {
  local targets tests left_out
  cmake --preset fuzz && find_affected asan --fuzzers || return 1
  [ "${#targets[@]}" -gt 0 ] || return 0
  cmake --build build/asan -j "$JOBS" --target "${targets[@]}" || return 1
  printf 'build/asan/tests/fuzz/%s\n' "${targets[@]}" | xargs -P 2 -I {} bash -c 'fuzz_one {}'
}

stage_lint() {
  local failed=0
  deploy/lint.sh --only format || failed=1
  deploy/lint.sh --only tidy $([ "$release" = no ] || echo --all) || failed=1
  return "$failed"
}

# same_as_green PATH…: whether CI may leave out a check of these paths. Not where the green commit is not in the clone.
same_as_green() {
  local green
  green=$(grep -v '^#' "$GREEN" 2>/dev/null | head -n 1)
  [ "$release" = no ] && git cat-file -e "$green^{commit}" 2>/dev/null && git diff --quiet "$green" -- "$@"
}

# Nothing but tests/models decides about the models.
stage_models() {
  if same_as_green tests/models; then
    echo "models: unchanged since the commit of $GREEN, for which they passed"
    return 0
  fi
  cmake --preset dev && cmake --build --preset dev -j "$JOBS" --target millrace_models && ctest --preset dev -j "$JOBS" -L '^model$' --no-tests=error
}

# Of another mode every time: the seed is the time's, and printed.
stage_punish() {
  cmake --preset dev && cmake --build --preset dev -j "$JOBS" --target punished_worker millrace-server &&
    tests/integration/punisher_test.py build/dev/bin/millrace-server build/dev/tests/integration/punisher/punished_worker \
      --seconds "$PUNISH_SECONDS"
}

# serves_as_tmp FOLDER: makes it a folder for all users, as /tmp is. Fails where it has too little room, or refuses to start programs.
serves_as_tmp() {
  chmod 1777 "$1" && [ "$(df --output=avail -k "$1" | tail -n 1)" -ge "$TEMPORARY_KB" ] &&
    cp /bin/true "$1/probe" && "$1/probe" && rm "$1/probe"
}

# Processes wait for each other more than they compute: three more tests than there are cores. What cannot share the machine has a
# lock (RESOURCE_LOCK in tests/CMakeLists.txt).
stage_dev() {
  local depends unwanted='model' targets tests left_out others=()
  mapfile -t depends < <(grep -v '^#' tests/integration/extend/depends.txt)
  if same_as_green "${depends[@]}"; then
    echo "extend_test: unchanged since the commit of $GREEN, for which it passed"
    unwanted+='|extend'
  fi
  if [ "$release" = no ]; then
    unwanted+='|only_asan|only_tsan|release'
    find_affected_here || return 1
    [ "${#left_out[@]}" -eq 0 ] || others=(-E "$(one_of "${left_out[@]}")")
  fi
  # Tests commit to membership tables all the time: on a disk, each commit waits for fsync.
  local temporary=${TMPDIR:-/tmp}
  if in_memory=$(mktemp -d -p /dev/shm millrace-test.XXXXXX 2>/dev/null) && serves_as_tmp "$in_memory"; then
    temporary=$in_memory
  fi
  TMPDIR=$temporary ctest --preset dev -j $((JOBS + 3)) -LE "^($unwanted)\$" "${others[@]}" --no-tests=error
}

stage_papers() {
  deploy/setup.sh --papers && cmake --preset dev &&
    cmake --build --preset dev -j "$JOBS" --target millrace_replay millrace_history_replay millrace_command millrace-peer millrace-bench &&
    tests/bench/papers/run_all.sh --quick --programs build/dev/bin --out build/papers
}

# python_on SUITE TEST APTOPTS…: the stages of deploy/debian-root.sh for Python. A skipped test passes in ctest, and here TEST
# must not skip.
python_on() {
  deploy/setup.sh --roots && deploy/debian-root.sh "$1" "${@:3}" --python --jobs "$JOBS" || return 1
  grep -q "$2 .*Passed" "$LOGS/$1.log" || { echo "$1: error: $2 did not run"; return 1; }
}

stage_trixie() { python_on trixie python_torch_ddp_test; }

# A mirror's copy of testing may be older than a week.
stage_forky() { python_on forky python_torch_fsdp_test --aptopt='Acquire::Check-Valid-Until "false"'; }

# Each fault that was found is put back, and its test must find it again. The verdicts go to tests/sim/record/runs.json.
stage_record() { tests/sim/record.py --run; }

stage_packages() { deploy/setup.sh --packages && deploy/packages.sh --lint --test --image-test; }

usage() { sed -n '2,/^set -/{/^#/p}' "$0" | sed 's/^# \{0,1\}//'; }

known_stage() {
  local stage
  for stage in "${RELEASE_STAGES[@]}"; do
    [ "$stage" != "$1" ] || return 0
  done
  return 1
}

# failed_tests STAGE: the end of the output of each test that failed in this stage.
failed_tests() {
  awk -v lines="$FAILED_TEST_LINES" '
    function show(i) {
      for (i = count > lines ? count - lines : 0; i < count; ++i) print "  " substr(output[i], 1, 300)
      count = 0
    }
    /^ *[0-9]+\/[0-9]+ Test +#/ { show(); failed = /\*\*\*/ && !/\*\*\*Skipped/; if (failed) print; next }
    /^ +Start +[0-9]+: / || /^[0-9]+% tests passed/ { show(); failed = 0; next }
    /^\[( RUN|       OK|-----)/ { next }
    failed && NF { output[count++] = $0 }' "$LOGS/$1.log"
}

# The lines of a log that name a fault, and its end. The dev stage's are shown last, as the summary.
show_failure() {
  grep -nE 'error:|FAILED|WARNING: ThreadSanitizer|ERROR: AddressSanitizer|runtime error' "$LOGS/$1.log" | head -n 20
  tail -n 60 "$LOGS/$1.log"
}

# run_stage NAME: its output goes to the log; a failure shows the end of it.
run_stage() {
  local stage=$1 started=$SECONDS result=passed took mark=
  printf '=== %s …\n' "$stage"
  if ! "stage_$stage" >"$LOGS/$stage.log" 2>&1 </dev/null; then
    result=FAILED
    failed+=("$stage")
    [ "$stage" = dev ] || show_failure "$stage"
  elif [ "$stage" = fuzz ]; then
    grep '^fuzz:' "$LOGS/$stage.log"
  elif [ "$stage" = papers ]; then
    grep '^papers:' "$LOGS/$stage.log"
  elif [ "$stage" != dev ]; then
    tail -n 3 "$LOGS/$stage.log"
  fi
  took=$((SECONDS - started))
  [ "$release" = yes ] || [ "$took" -le "${BUDGETS[$stage]}" ] || mark='  OVER ITS BUDGET'
  table+=("$(printf '  %-8s %-7s %4d s of %4d s%s' "$stage" "$result" "$took" "${BUDGETS[$stage]}" "$mark")")
  printf '=== %s %s in %d s%s\n' "$stage" "$result" "$took" "$mark"
}

main() {
  local stages=() table=() failed=() stage
  while [ $# -gt 0 ]; do
    case "$1" in
      --quick) stages=("${QUICK_STAGES[@]}") ;;
      --release) release=yes ;;
      --stage)
        known_stage "${2:-}" || { echo "test: no stage '${2:-}': ${RELEASE_STAGES[*]}" >&2; exit 2; }
        stages+=("$2")
        shift
        ;;
      -h | --help) usage; exit 0 ;;
      *) echo "test: unknown option '$1'" >&2; usage >&2; exit 2 ;;
    esac
    shift
  done
  if [ "${#stages[@]}" -eq 0 ]; then
    stages=("${ALL_STAGES[@]}")
    [ "$release" = no ] || stages=("${RELEASE_STAGES[@]}")
  fi
  FUZZ_SECONDS=${MILLRACE_FUZZ_SECONDS:-$([ "$release" = yes ] && echo 60 || echo 5)}
  PUNISH_SECONDS=${MILLRACE_PUNISH_SECONDS:-600}
  export FUZZ_SECONDS
  mkdir -p "$LOGS"
  local begun=$SECONDS
  for stage in "${stages[@]}"; do
    run_stage "$stage"
  done
  printf 'Stages:\n'
  printf '%s\n' "${table[@]}"
  printf '  %-8s %-7s %4d s\n' all '' $((SECONDS - begun))
  [ "${#failed[@]}" -eq 0 ] || printf 'Failed: %s (logs in %s/)\n' "${failed[*]}" "$LOGS"
  # Last, ctest's own words on the last stage that ran tests, and why tests failed.
  [[ " ${stages[*]} " != *" dev "* ]] || tail -n "$SUMMARY_LINES" "$LOGS/dev.log"
  for stage in "${failed[@]}"; do
    failed_tests "$stage"
  done
  [ "${#failed[@]}" -eq 0 ]
}

main "$@"
