#!/usr/bin/env bash
# From a bare Debian 12 or 13 to a trained model: installs the missing packages, builds, runs `millrace demo`.
#
#   deploy/demo.sh [OPTIONS OF millrace demo]     see deploy/demo.sh --help
#   deploy/demo.sh --torch [OPTIONS]              PyTorch behind slow links: see deploy/demo.sh --torch --help
#
# Exit codes: those of `millrace demo`, or of deploy/setup.sh; 1 if the build fails (log in build/logs/demo-build.log).
# With --torch: 0 done, 1 the build or a process failed, 2 usage, 130 interrupted, or those of deploy/setup.sh.
set -euo pipefail
readonly CALLER=$PWD
cd "$(dirname "$0")/.."
readonly ROOT=$PWD

say() { printf 'demo: %s\n' "$*" >&2; }

torch=no packages=() targets=(millrace_command millrace-server) options=()
if [ "${1:-}" = --torch ]; then
  shift
  # The help needs no build.
  case " $* " in *" --help "* | *" -h "*) exec /usr/bin/python3 "$ROOT/worker/python/demo/torch_demo.py" --help ;; esac
  torch=yes packages=(--torch) targets=(millrace-server millrace_python)
  options=(-DMILLRACE_PYTHON=ON -DPython3_EXECUTABLE=/usr/bin/python3)
fi

deploy/setup.sh "${packages[@]}"

# The demo's data is Debian's package index: a machine fresh from an image has none yet.
if [ "$torch" = no ] && [ "$(id -u)" -eq 0 ] && [ -z "$(apt-cache dumpavail 2>/dev/null | head -n 1)" ]; then
  say "fetching the package index (apt-get update)"
  apt-get -q update >/dev/null || say "apt-get update failed; the demo says what it misses"
fi

# On a terminal ninja's count of steps is shown while it builds.
readonly LOG=build/logs/demo-build.log
build() { cmake --preset release "${options[@]}" && cmake --build --preset release -j "$(nproc)" --target "${targets[@]}"; }
build_quietly() {
  local code=0
  if [ -t 2 ]; then
    build 2>&1 | tee "$LOG" | sed -nu 's/^\(\[[0-9]*\/[0-9]*\]\).*/\r\1 /p' | tr -d '\n' >&2 || code=$?
    printf '\r\033[K' >&2
  else
    build >"$LOG" 2>&1 || code=$?
  fi
  return "$code"
}

mkdir -p build/logs
say "building (a first build takes some minutes, later ones seconds)"
if ! build_quietly; then
  tail -n 40 "$LOG" >&2
  say "the build failed: all of it is in $LOG"
  exit 1
fi
cd "$CALLER"  # the options may name files
[ "$torch" = no ] || exec /usr/bin/python3 "$ROOT/worker/python/demo/torch_demo.py" "$@"
exec "$ROOT/build/release/bin/millrace" demo "$@"
