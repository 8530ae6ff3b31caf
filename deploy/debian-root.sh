#!/usr/bin/env bash
# Builds Millrace and runs its tests in a Debian root of another release. mmdebstrap makes the root once; later runs
# reuse it.
#
#   deploy/debian-root.sh trixie            Debian 13: four stages.
#                                             root   makes the root, unless it is there: 5 busy minutes, 1.3 GB.
#                                             setup  deploy/setup.sh in the root: installs packages that the root lacks.
#                                             build  the dev preset, every target: a first run compiles everything.
#                                             test   the unit tests and the lint rules.
#   deploy/debian-root.sh forky --aptopt='Acquire::Check-Valid-Until "false"'
#                                           Debian testing, from a mirror whose copy of it may be older than a week.
#   deploy/debian-root.sh trixie --python   the Python package with the release's Python, NumPy and PyTorch: 2.5 GB.
#                                             setup  deploy/setup.sh --python.
#                                             build  the binding, shards, the switch and millrace, in the dev preset.
#                                             test   the tests of label 'python', and no others.
#                                             wheel  pip and scikit-build-core build a wheel without a network. A fresh
#                                                    virtual environment installs it, and runs a job.
#   deploy/debian-root.sh trixie -- COMMAND…     runs COMMAND in the root, in the source folder ("-- bash": a shell).
#   deploy/debian-root.sh trixie --remove        removes the root and this clone's build in it.
#
# Options:
#   --labels REGEX  the tests to run, by ctest's labels (default 'unit|lint'; 'unit|lint|sim' adds the simulations).
#   --jobs N        compilers and tests side by side (default: the number of cores).
#   --mirror URI    the package mirror (default: the one that this machine's apt uses for its own Debian release).
#   --aptopt OPT    an option of apt, for the making of the root and for apt in the root (repeatable).
#   --renew         makes a new root that replaces the one there.
#
# The root is $XDG_CACHE_HOME/millrace/roots/SUITE (~/.cache where that is not set), with its own compiler cache. All
# clones share it. The source is mounted read-only at /millrace; the build goes to build/roots/SUITE of this clone.
# Everything runs in mount and process namespaces of its own. When the script ends, by Ctrl-C too, nothing stays mounted
# and no process stays.
# Needs mmdebstrap (deploy/setup.sh --roots). A user other than root also needs uidmap, and a line in /etc/subuid and in
# /etc/subgid.
# Exit codes: those of COMMAND. Otherwise 0 all passed, 1 a stage failed, 2 usage, 3 a tool or a right is missing.
# 4 no mirror found, 5 the root could not be made, 130 interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly ROOTS=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/millrace/roots
# In the root:
readonly SOURCE=/millrace
readonly CCACHE=/var/cache/ccache
# Of the packages that setup.sh names for tests: the lint rules run where this one is.
readonly TEST_PACKAGES=(python3)

say() { printf 'debian-root: %s\n' "$*" >&2; }
usage() { sed -n '2,/^set -/{/^#/p}' "$0" | sed 's/^# \{0,1\}//'; }

require_tools() {
  local tool
  for tool in mmdebstrap unshare setpriv flock chroot; do
    command -v "$tool" >/dev/null || { say "'$tool' is missing: run deploy/setup.sh --roots"; exit 3; }
  done
  NAMESPACES=(unshare --mount --pid --fork --kill-child)
  if [ "$(id -u)" -ne 0 ]; then
    command -v newuidmap >/dev/null || { say "'newuidmap' is missing: run deploy/setup.sh --roots, or run this script as root"; exit 3; }
    NAMESPACES+=(--user --map-root-user --map-auto)
  fi
  "${NAMESPACES[@]}" --mount-proc true 2>/dev/null ||
    { say "this user cannot make mount and process namespaces: run it as root, outside of a container without CAP_SYS_ADMIN"; exit 3; }
}

# own_mirror: prints the URI from which this machine's apt has its own release.
own_mirror() {
  local codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  # The origin is empty before the first apt-get update.
  # shellcheck disable=SC2016  # apt expands them
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Identifier: Packages' 2>/dev/null |
    awk -v codename="$codename" '$3 == "main" && ($4 == "" || $4 == "Debian") &&
      ($2 == codename || $2 ~ /^(oldstable|stable|testing|unstable|sid)$/) { print $1; exit }'
}

# confined FUNCTION ARGS…: runs a function of this script in namespaces of their own. They end, with all their mounts
# and processes, when the function returns or this script is interrupted. Their own /proc shows the new processes alone.
confined() {
  local code=0
  setpriv --pdeathsig KILL "${NAMESPACES[@]}" --mount-proc "$BASH" "$0" --confined "$@" <&0 &
  local child=$!
  # unshare itself ignores SIGINT and SIGTERM; --kill-child passes its death on to all that it started, as --pdeathsig does ours.
  # shellcheck disable=SC2064  # a local, expanded now
  trap "trap '' INT TERM HUP; kill -KILL $child 2>/dev/null; wait $child 2>/dev/null; say interrupted; exit 130" INT TERM HUP
  wait "$child" || code=$?
  trap - INT TERM HUP
  return "$code"
}

# make_root SUITE FOLDER MIRROR APTOPTS…: confined.
make_root() {
  local suite=$1 folder=$2 mirror=$3 packages
  shift 3
  packages=$(deploy/setup.sh --list | paste -sd,)
  mmdebstrap --mode=root --variant=minbase "$@" --include="$packages,$(IFS=,; echo "${TEST_PACKAGES[*]}")" \
    "$suite" "$folder" "$mirror"
  mkdir -p "$folder$SOURCE" "$folder$CCACHE"
}

# remove_folders FOLDERS…: confined, since files of a user's root belong to users that only the namespace has.
remove_folders() { rm -rf --one-file-system -- "$@"; }

# require_root SUITE MIRROR APTOPTS…: makes the root unless it is there; half a root never has the root's name.
require_root() {
  local suite=$1 mirror=$2 folder=$ROOTS/$1
  shift 2
  mkdir -p "$ROOTS"
  exec 8>"$folder.lock"
  flock --nonblock 8 || { say "another run makes the root of '$suite': waiting for it"; flock 8; }
  if [ "$renew" = yes ] || [ -e "$folder.part" ]; then
    confined remove_folders "$folder.part"
  fi
  if [ "$renew" = yes ] || [ ! -e "$folder" ]; then
    [ -n "$mirror" ] || mirror=$(own_mirror)
    [ -n "$mirror" ] || { say "this machine's apt names no mirror of Debian: say --mirror URI"; exit 4; }
    say "making the root of '$suite' in $folder"
    confined make_root "$suite" "$folder.part" "$mirror" "$@" || {
      confined remove_folders "$folder.part"
      say "mmdebstrap could not make the root of '$suite' (its words are above). Does $mirror serve it? A key that this machine"
      say "lacks comes with a newer debian-archive-keyring; an expired Release file needs --aptopt='Acquire::Check-Valid-Until \"false\"'"
      exit 5
    }
    confined remove_folders "$folder"
    mv "$folder.part" "$folder"
  fi
  exec 8>&-
}

# enter SUITE COMMAND…: confined; mounts the folders that the root needs, and runs COMMAND in it, in the source folder.
enter() {
  local suite=$1 folder=$ROOTS/$1 variable environment=()
  shift
  mkdir -p "build/roots/$suite"
  # `ip netns exec` (deploy/netlab.sh) changes the propagation of the mount at /: the root has to be a mount point.
  mount --bind "$folder" "$folder"
  mount --bind "$PWD" "$folder$SOURCE"
  mount --bind "build/roots/$suite" "$folder$SOURCE/build"
  mount -o "remount,bind,$(findmnt -nfo VFS-OPTIONS --mountpoint "$folder$SOURCE"),ro" "$folder$SOURCE"
  mount --rbind /dev "$folder/dev"
  mount --rbind /sys "$folder/sys"
  mount -t proc proc "$folder/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$folder/tmp"
  # This machine's own name: torchrun has its ranks connect to it.
  printf '127.0.0.1 localhost %s\n::1 localhost\n' "$(uname -n)" >"$folder/etc/hosts"
  # Names of hosts, for apt in the root.
  [ ! -e /etc/resolv.conf ] || cp -f --remove-destination -L /etc/resolv.conf "$folder/etc/resolv.conf"
  for variable in TERM http_proxy https_proxy no_proxy; do
    [ -z "${!variable:-}" ] || environment+=("$variable=${!variable}")
  done
  # Not exec: a program is not to be process 1, which no signal ends that it does not handle.
  # shellcheck disable=SC2016  # expanded by the inner shell
  chroot "$folder" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin CCACHE_DIR="$CCACHE" "${environment[@]}" \
    /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$SOURCE" "$@" || exit $?
}

stage_setup() { deploy/setup.sh "${packages[@]}"; }
stage_build() { cmake --preset dev && cmake --build --preset dev -j "$jobs" "${targets[@]}"; }
stage_test() { ctest --preset dev -j "$jobs" -L "^($labels)\$" --no-tests=error; }

# The source is read-only: pip builds in the folder that the root can write.
stage_wheel() {
  local folder=build/wheel
  rm -rf "$folder/out" "$folder/venv"
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs PYTHONDONTWRITEBYTECODE=1 python3 -m pip wheel ./worker/python --wheel-dir "$folder/out" \
    --no-index --no-deps --no-build-isolation --config-settings=build-dir="$PWD/$folder/build" &&
    python3 -m venv "$folder/venv" &&
    "$folder/venv/bin/pip" install --no-index "$folder"/out/millrace-*.whl &&
    "$folder/venv/bin/python" tests/worker/python/wheel_job.py build/dev/bin
}

# stages JOBS LABELS PYTHON: in the root. PYTHON: yes or no.
stages() {
  local jobs=$1 labels=$2 stage started table=() failed=no packages=() targets=() stages=(setup build test)
  if [ "$3" = yes ]; then
    packages=(--python) targets=(--target millrace_python millrace-server millrace-switch millrace_command) labels=python
    stages=(setup build test wheel)
  fi
  for stage in "${stages[@]}"; do
    printf '=== %s …\n' "$stage"
    started=$SECONDS
    # In a condition, errexit is off: a stage is a list of && for that.
    "stage_$stage" || failed=yes
    table+=("$(printf '  %-6s %-7s %5d s' "$stage" "$([ "$failed" = yes ] && echo FAILED || echo passed)" $((SECONDS - started)))")
    [ "$failed" = no ] || break
  done
  printf 'Stages in %s:\n' "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release), $(g++ --version | head -n 1)"
  printf '%s\n' "${table[@]}"
  [ "$failed" = no ]
}

# need OPTION VALUE
need() { [ -n "${2:-}" ] || { say "$1 takes a value"; exit 2; }; }

main() {
  local suite='' mirror='' aptopts=() labels='unit|lint' jobs renew=no remove=no python=no command=()
  jobs=$(nproc)
  while [ $# -gt 0 ]; do
    case "$1" in
      --aptopt=* | --mirror=* | --labels=* | --jobs=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
      --aptopt) need "$@"; aptopts+=("--aptopt=$2"); shift ;;
      --mirror) need "$@"; mirror=$2; shift ;;
      --labels) need "$@"; labels=$2; shift ;;
      --jobs) need "$@"; jobs=$2; shift ;;
      --renew) renew=yes ;;
      --remove) remove=yes ;;
      --python) python=yes ;;
      --) shift; command=("$@"); [ $# -gt 0 ] || { say "-- takes a command"; exit 2; }; break ;;
      -h | --help) usage; exit 0 ;;
      -*) say "unknown option '$1'"; usage >&2; exit 2 ;;
      *) [ -z "$suite" ] || { say "one suite at a time: '$suite' or '$1'?"; exit 2; }; suite=$1 ;;
    esac
    shift
  done
  [[ $suite =~ ^[a-z][a-z0-9-]*$ ]] || { say "which release? The name of a suite, as in: deploy/debian-root.sh trixie"; exit 2; }
  [[ $jobs =~ ^[1-9][0-9]*$ ]] || { say "--jobs takes a number from 1 on, not '$jobs'"; exit 2; }
  require_tools
  if [ "$remove" = yes ]; then
    confined remove_folders "$ROOTS/$suite" "$ROOTS/$suite.part" "$ROOTS/$suite.lock" "build/roots/$suite"
    exit 0
  fi
  local started=$SECONDS
  require_root "$suite" "$mirror" "${aptopts[@]}"
  [ "${#command[@]}" -eq 0 ] || exec "${NAMESPACES[@]}" --mount-proc "$BASH" "$0" --confined enter "$suite" "${command[@]}"
  printf '=== root: %d s\n' $((SECONDS - started))
  confined enter "$suite" "$SOURCE/deploy/debian-root.sh" --stages "$jobs" "$labels" "$python" || exit 1
}

case "${1:-}" in
  --confined) shift; "$@" ;;
  --stages) shift; stages "$@" ;;
  *) main "$@" ;;
esac
