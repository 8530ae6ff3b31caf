#!/usr/bin/env bash
# Builds the Python package `millrace` and installs it. CMake and Debian's packages alone: no network.
#
#   deploy/python.sh --venv DIR      into the virtual environment DIR; makes one where there is none. It sees Debian's
#                                    Python packages, as python3-numpy and python3-torch.
#   deploy/python.sh --target DIR    into the folder DIR, for PYTHONPATH=DIR.
#   deploy/python.sh --wheel DIR     writes a wheel into DIR, for pip install --no-index.
#
# The package runs with Debian's python3 of this release and needs the libraries that it was built with. Several of the
# forms may be given. Packages are those of deploy/setup.sh; pip is not needed.
# Exit codes: 0 done, 1 the build or the installation failed, 2 usage, 3 a package is missing.
set -euo pipefail
readonly CALLER=$PWD
cd "$(dirname "$0")/.."

readonly BUILD=build/release
readonly PYTHON=/usr/bin/python3

say() { printf 'python: %s\n' "$*" >&2; }

usage() { sed -n '2,/^set -/{/^#/p}' deploy/python.sh | sed 's/^# \{0,1\}//'; }

# from_caller PATH: the path as it was in the folder of the caller.
from_caller() { (cd "$CALLER" && realpath -m -- "$1"); }

build() {
  cmake --preset release -DMILLRACE_PYTHON=ON -DPython3_EXECUTABLE="$PYTHON" >&2 || {
    say "the build could not be configured: deploy/setup.sh installs what it needs"
    exit 3
  }
  cmake --build --preset release -j "${MILLRACE_JOBS:-$(nproc)}" --target millrace_python >&2
}

# install_into FOLDER: the package's files, without debug information in the module.
install_into() {
  mkdir -p "$1"
  cmake --install "$BUILD" --component python --strip --prefix "$1" >&2
}

into_venv() {
  [ -x "$1/bin/python" ] || "$PYTHON" -m venv --without-pip --system-site-packages "$1"
  local version
  version='import sys; print(*sys.version_info[:2])'
  if [ "$("$1/bin/python" -c "$version")" != "$("$PYTHON" -c "$version")" ]; then
    say "$1 has another version of Python than $PYTHON: make it with $PYTHON -m venv"
    exit 2
  fi
  install_into "$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
  "$1/bin/python" -c 'import millrace; print("millrace", millrace.__version__)'
}

into_wheel() {
  local folder
  folder=$(mktemp -d)
  install_into "$folder"
  mkdir -p "$1"
  "$PYTHON" worker/python/make_wheel.py "$folder" "$1"
  rm -rf "$folder"
}

main() {
  local forms=()
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help) usage; exit 0 ;;
      --venv | --target | --wheel)
        [ $# -gt 1 ] || { say "$1 needs a folder"; exit 2; }
        forms+=("$1" "$(from_caller "$2")")
        shift 2 ;;
      *) say "unknown option '$1'"; usage >&2; exit 2 ;;
    esac
  done
  [ "${#forms[@]}" -gt 0 ] || { say "say where to: --venv, --target or --wheel"; usage >&2; exit 2; }
  build
  set -- "${forms[@]}"
  while [ $# -gt 0 ]; do
    case "$1" in
      --venv) into_venv "$2" ;;
      --target) install_into "$2" ;;
      --wheel) into_wheel "$2" ;;
    esac
    shift 2
  done
}

main "$@"
