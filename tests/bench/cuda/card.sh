#!/usr/bin/env bash
# Tests, figures, sanitizers and profiles of kernels/cuda on a machine that is lent with a card. Installs nothing.
#
#   tests/bench/cuda/card.sh [--dry-run] [--seconds N] [--carried FOLDER] [--out FOLDER] [GROUP…]
#       GROUP is tests, figures, sanitizers or profiles: all four by default, in this order. Each step has a time limit.
#       No step begins after N seconds (540), and none runs longer. --dry-run prints the steps.
#   tests/bench/cuda/card.sh pack BUILD FOLDER
#       puts the programs of a build and the libraries that they load into FOLDER, to be carried to the machine.
#
# FOLDER is .card by default: name it in .git/info/exclude. A program that it lacks is built for this card's architecture
# alone, where the machine has the libraries. torch_cuda_test needs FOLDER/bin/millrace-server, and FOLDER/python built
# for the machine's Python: `pack` leaves both out. The output folder ($OUT, or build/card-out) gets verdicts.txt, log.txt, kernels.json, cub.json, torch.json,
# profile.csv, timeline.csv, and run files in runs/ (run_file.py). Exit codes: 0 no step failed, 1 one did, 2 usage, 3 no card.
set -euo pipefail
cd "$(dirname "$0")/../../.."

readonly PROGRAMS=(cuda_device_test worker_residual_device_test worker_session_device_test millrace_cuda_bench millrace_cub_bench)
readonly BUILD=build/card
# The sanitizers slow kernels down ten times and more. Contexts and errors of the caller are no matter of memory.
readonly SMALL_TESTS='-CudaLarge.*:CudaContexts.*:CudaErrors.*:CudaDraws*.GsparOfSeveralChunks*:CudaThresholds*.Sums*'
# Shortages and refused streams are errors of CUDA that the library expects.
readonly SMALL_RESIDUALS='*SendsAndKeepsTheBitsOfTheHost:*AloneCrossTheBus:MomentumOnDevice.HasTheBitsOfTheHost'
readonly SMALL_SESSIONS='-*StatsReport*:*PushWaits*:*StreamsThatAreNone*:*MemoryOfAnotherDevice*'
readonly KERNELS='regex:Collect|BucketTopK|Qsgd|SumTails'
readonly COUNTERS=dram__bytes_read.sum,dram__bytes_write.sum,gpu__time_duration.sum,smsp__inst_executed.sum
readonly SECONDS_MAX=540
# The system's own libraries stay those of the machine.
readonly SYSTEM_LIBRARIES='/(libc|libm|libpthread|libresolv|libdl|librt|libstdc\+\+|libgcc_s)\.so'

say() { printf 'card: %s\n' "$*" >&2; }
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }

# built BUILD NAME prints the path of a program in a build folder.
built() {
  local folder
  for folder in bin tests/kernels/cuda tests/worker; do
    [ ! -x "$1/$folder/$2" ] || { echo "$1/$folder/$2"; return; }
  done
  return 1
}

program() {
  [ ! -x "$carried/bin/$1" ] || { echo "$carried/bin/$1"; return; }
  built "$BUILD" "$1"
}

pack() {
  local name path
  mkdir -p "$2/bin" "$2/lib"
  for name in "${PROGRAMS[@]}"; do
    path=$(built "$1" "$name") || { say "$1 has no $name: cmake --build $1 --target ${PROGRAMS[*]}"; return 1; }
    strip -o "$2/bin/$name" "$path"
    ldd "$path" | awk '$3 ~ "^/" {print $3}' | { grep -vE "$SYSTEM_LIBRARIES" || true; } | xargs -r cp -Lt "$2/lib"
  done
  find "$2/lib" -type f -exec strip --strip-unneeded {} +
  du -sh "$2"
}

# verdict STEP TEXT
verdict() {
  if [ -n "$dry" ]; then printf '%-28s %s\n' "$1" "$2"; else printf '%-28s %s\n' "$1" "$2" | tee -a "$out/verdicts.txt"; fi
}

# Prints the numbers of GoogleTest's summary, as text behind "passed".
tests_of() {
  local passed skipped
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$1" | tail -n 1)
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$1" | tail -n 1)
  [ -z "$passed" ] || printf ', %s tests, %s skipped' "$passed" "${skipped:-0}"
}

# step NAME LIMIT FILE COMMAND… runs a command. FILE gets its output if it is not log.txt, and log.txt the rest.
step() {
  local name=$1 limit=$2 file=$3 left code=0 text
  shift 3
  if [ -n "$dry" ]; then verdict "$name" "at most $limit s, $file: $*"; return; fi
  left=$((began + seconds - SECONDS))
  [ "$left" -gt 0 ] || { verdict "$name" "skipped: no time is left"; return; }
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$file" = log.txt ]; then
    timeout --kill-after 5 "$limit" "$@" >"$last" 2>&1 || code=$?
  else
    timeout --kill-after 5 "$limit" "$@" >"$out/$file" 2>"$last" || code=$?
  fi
  { printf '== %s: %s\n' "$name" "$*"; cat "$last"; } >>"$out/log.txt"
  text=$(tests_of "$last")
  case $code in
    0) [[ $text == ", 0 tests"* ]] && text="skipped${text#, 0 tests}" || text="passed$text" ;;
    77) text="skipped: $(tail -n 1 "$last")" ;;
    124 | 137) text="stopped after $limit s" failed=1 ;;
    *) text="failed with exit code $code$text" failed=1 ;;
  esac
  verdict "$name" "$text"
}

# of_program PROGRAM NAME LIMIT FILE COMMAND… is a step whose command has {} in the place of the program.
of_program() {
  local path name=$2 limit=$3 file=$4 word words=()
  path=$(program "$1") || path=
  [ -z "$dry" ] || path=$1
  [ -n "$path" ] || { verdict "$name" "skipped: no $1 here"; return; }
  shift 4
  for word; do words+=("${word/#\{\}/$path}"); done
  [ ! -d "$carried/lib" ] || words=(env "LD_LIBRARY_PATH=$carried/lib" "${words[@]}")
  step "$name" "$limit" "$file" "${words[@]}"
}

# has_tool TOOL STEP: whether the machine has a tool. Says where it has not that the step is skipped.
has_tool() {
  [ -z "$dry" ] || return 0
  command -v "$1" >/dev/null || { verdict "$2" "skipped: no $1 here"; return 1; }
}

build() {
  local name missing=()
  for name in "${PROGRAMS[@]}"; do program "$name" >/dev/null || missing+=("$name"); done
  [ "${#missing[@]}" -gt 0 ] || return 0
  has_tool cmake build && has_tool nvcc build || return 0
  step configure 60 log.txt cmake --preset release -B "$BUILD" -DMILLRACE_BUILD_TESTS=ON \
    "-DMILLRACE_CUDA_ARCHITECTURES=$architecture-real"
  [ -n "$dry" ] || [ -e "$BUILD/build.ninja" ] || return 0
  step build 300 log.txt cmake --build "$BUILD" --target "${missing[@]}"
}

tests() {
  of_program cuda_device_test cuda_device_test 90 log.txt {}
  of_program worker_residual_device_test residual_device_test 90 log.txt {}
  of_program worker_session_device_test session_device_test 60 log.txt {}
  of_program millrace-server torch_cuda_test 160 log.txt python3 tests/worker/python/torch_cuda_test.py \
    "$carried/bin" "$carried/python"
}

figures() {
  of_program millrace_cuda_bench cuda_bench 90 kernels.json {} 28 15
  # The machine's toolkit may have cub::DeviceTopK where that of the carried program has not.
  if has_tool nvcc compile_cub_bench; then
    mkdir -p "$BUILD/bin"
    step compile_cub_bench 120 log.txt nvcc -std=c++17 -O3 "-arch=sm_$architecture" -I. tests/bench/cuda/cub_bench.cu \
      -o "$BUILD/bin/millrace_cub_bench"
  fi
  if [ -n "$dry" ] || [ ! -x "$BUILD/bin/millrace_cub_bench" ]; then
    of_program millrace_cub_bench cub_bench 60 cub.json {}
  else
    step cub_bench 60 cub.json "$BUILD/bin/millrace_cub_bench"
  fi
  ! has_tool python3 torch_bench || step torch_bench 60 torch.json python3 tests/bench/cuda/torch_bench.py
}

# The run files of the page, from the numbers of this run (run_file.py).
run_files() {
  ! has_tool python3 run_files || step run_files 30 log.txt python3 tests/bench/cuda/run_file.py "$out" "$card"
}

sanitizers() {
  local tool
  for tool in memcheck racecheck initcheck; do
    has_tool compute-sanitizer "$tool" || continue
    of_program cuda_device_test "$tool" 150 log.txt compute-sanitizer --tool "$tool" --error-exitcode 9 {} \
      "--gtest_filter=$SMALL_TESTS"
    of_program worker_residual_device_test "${tool}_residuals" 90 log.txt compute-sanitizer --tool "$tool" --error-exitcode 9 {} \
      "--gtest_filter=$SMALL_RESIDUALS"
    of_program worker_session_device_test "${tool}_sessions" 90 log.txt compute-sanitizer --tool "$tool" --error-exitcode 9 {} \
      "--gtest_filter=$SMALL_SESSIONS"
  done
}

profiles() {
  # The clocks of a lent card stay as they are.
  ! has_tool ncu ncu || of_program millrace_cuda_bench ncu 150 log.txt ncu --csv --log-file "$out/profile.csv" \
    --clock-control none --kernel-name-base demangled --kernel-name "$KERNELS" --launch-count 80 --metrics "$COUNTERS" {} 28 1
  has_tool nsys nsys || return 0
  of_program millrace_cuda_bench nsys 90 log.txt nsys profile --trace cuda --force-overwrite true --output "$scratch/run" {} 28 3
  [ -n "$dry" ] || [ -e "$scratch/run.nsys-rep" ] || { verdict nsys_stats "skipped: no profile here"; return; }
  step nsys_stats 30 timeline.csv nsys stats --format csv --report cuda_gpu_kern_sum,cuda_gpu_mem_size_sum "$scratch/run.nsys-rep"
}

dry='' seconds=$SECONDS_MAX carried=.card out=${OUT:-build/card-out} groups=() failed=0 began=$SECONDS
if [ "${1:-}" = pack ]; then
  [ "$#" -eq 3 ] || { usage >&2; exit 2; }
  pack "$2" "$3"
  exit
fi
while [ "$#" -gt 0 ]; do
  case $1 in
    --dry-run) dry=1 ;;
    --seconds | --carried | --out)
      [ "$#" -gt 1 ] || { usage >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    tests | figures | sanitizers | profiles) groups+=("$1") ;;
    --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ $seconds =~ ^[0-9]+$ ]] || { say "--seconds is a whole number, not '$seconds'"; exit 2; }
seconds=$((10#$seconds))
[ "${#groups[@]}" -gt 0 ] || groups=(tests figures sanitizers profiles)

architecture=90 card=card
if [ -z "$dry" ]; then
  card=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null) || { say "no card here"; exit 3; }
  architecture=$(awk -F', *' 'NR == 1 {gsub(/[.]/, "", $2); print $2}' <<<"$card")
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  last=$scratch/last
  mkdir -p "$out"
  rm -f "$out/verdicts.txt" "$out/log.txt"
  verdict card "$card"
else
  scratch=/tmp/card
fi
build
for group in "${groups[@]}"; do
  case $group in
    tests) tests ;;
    figures) figures ;;
    sanitizers) sanitizers ;;
    *) profiles ;;
  esac
done
[[ " ${groups[*]} " != *" figures "* ]] || run_files
exit "$failed"
