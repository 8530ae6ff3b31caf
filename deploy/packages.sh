#!/usr/bin/env bash
# Builds Debian packages of this source for this machine's release, checks them, and makes a container's root of them.
#
#   deploy/packages.sh                 builds the packages: build/package/packages/*.deb.
#   deploy/packages.sh --lint          also runs lintian on them, which must report no error, and checks that packages depend on
#                                      those of our libraries.
#   deploy/packages.sh --test          also installs them into a minimal Debian root and boots its systemd. The services start
#                                      there in their sandbox, and two workers train. Root.
#   deploy/packages.sh --image FILE    also writes the root file system of a container as a tar file, for deploy/Containerfile.
#                                      It has millrace-server and the tools.
#   deploy/packages.sh --image-test    also makes that root and runs it, read-only, by unshare and chroot. A shard with the entry
#                                      point of deploy/Containerfile serves two workers that train. Root.
#   --build FOLDER                     takes the build in FOLDER, configured with the cache of preset "package".
#   --mirror URI                       the package mirror (default: the one of this machine's apt).
#
# Needs deploy/setup.sh --packages. --test takes two minutes, --image and --image-test one.
# Exit codes: 0 done, 1 a build, a check or a test failed, 2 usage, 3 a tool or a right is missing.
set -euo pipefail
readonly CALLER=$PWD
cd "$(dirname "$0")/.."

build=$(realpath -m build/package)
readonly PRESET_BUILD=$build
mirror=

say() { printf 'packages: %s\n' "$*" >&2; }
usage() { sed -n '2,/^set -/{/^#/p}' deploy/packages.sh | sed 's/^# \{0,1\}//'; }

# from_caller PATH: the path as it was in the folder of the caller.
from_caller() { (cd "$CALLER" && realpath -m -- "$1"); }

require() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { say "'$tool' is missing: run deploy/setup.sh --packages"; exit 3; }
  done
}

build_packages() {
  require cmake cpack dpkg-shlibdeps
  if [ "$build" = "$PRESET_BUILD" ]; then
    cmake --preset package >&2
    cmake --build --preset package -j "${MILLRACE_JOBS:-$(nproc)}" >&2
  fi
  rm -rf "$build/packages"
  cpack --config "$build/CPackConfig.cmake" >&2
  rm -rf "$build/packages/_CPack_Packages"
  ls "$build"/packages/*.deb
}

lint() {
  require lintian
  lintian --allow-root --fail-on error "$build"/packages/*.deb >&2
  (check_links)
}

# needed_by FOLDER: the libraries that its files link to.
needed_by() {
  find "$1" -type f -exec readelf -d {} + 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' | sort -u
}

# A package whose files link to a library of ours depends on the package of that library: dpkg-shlibdeps leaves ours out.
# No file links to CUDA: the driver is opened at run time, where there is one.
check_links() {
  require readelf dpkg-deb
  local folder deb name library owner
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # a local, expanded now
  trap "rm -rf '$folder'" EXIT
  for deb in "$build"/packages/*.deb; do dpkg-deb --extract "$deb" "$folder/$(dpkg-deb --field "$deb" Package)"; done
  for deb in "$build"/packages/*.deb; do
    name=$(dpkg-deb --field "$deb" Package)
    while read -r library; do
      case "$library" in
        libmillrace*) ;;
        libcuda* | libnv*) say "$name links to $library: it would not start on a machine without a GPU"; exit 1 ;;
        *) continue ;;
      esac
      owner=$(cd "$folder" && find . -name "$library" | cut -d / -f 2 | head -n 1)
      [ "$owner" = "$name" ] || { [ -n "$owner" ] && dpkg-deb --field "$deb" Depends | grep -F -- "$owner (=" >/dev/null; } ||
        { say "$name links to $library, and does not depend on ${owner:-its package}"; exit 1; }
    done < <(needed_by "$folder/$name")
  done
}

codename() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release; }

# make_root FORMAT TARGET PACKAGES COMMAND…: a minimal root with Debian's PACKAGES, then with our packages of COMMAND….
make_root() {
  local format=$1 target=$2 packages=$3
  shift 3
  require mmdebstrap
  local debs=() name
  for name in "$@"; do debs+=("$(realpath "$build"/packages/"${name}"_*.deb)"); done
  mmdebstrap --mode=root --variant=minbase --format="$format" ${packages:+--include="$packages"} \
    --customize-hook='mkdir "$1/var/tmp/debs"' --customize-hook="copy-in ${debs[*]} /var/tmp/debs" \
    --customize-hook='chroot "$1" sh -c "apt-get install -y -q --no-install-recommends /var/tmp/debs/*.deb"' \
    --customize-hook='rm -rf "$1/var/tmp/debs"' \
    --customize-hook='chroot "$1" install -d -o millrace -g millrace -m 750 /var/lib/millrace' \
    "$(codename)" "$target" ${mirror:+"$mirror"} >&2
}

# boot FOLDER: boots the root in namespaces of its own, without a network but loopback, until it powers off. DPDK looks
# for the module of VFIO in /sys/module at its start, and nspawn's /sys lacks that folder.
boot() {
  systemd-nspawn --quiet --register=no --keep-unit --private-network --bind-ro=/sys/module --console=pipe --directory="$1" \
    --boot </dev/null
}

test_packages() {
  require systemd-nspawn
  [ "$(id -u)" -eq 0 ] || { say "--test needs root"; exit 3; }
  local folder code devices
  folder=$(mktemp -d --tmpdir=/var/tmp millrace-packages-XXXXXX)
  # shellcheck disable=SC2064  # a local, expanded now
  trap "rm -rf --one-file-system '$folder'" EXIT
  say "making a root in $folder"
  local names=(millrace-server millrace-switch millrace-tools libmillrace0.2 libmillrace-dev python3-millrace)
  ! compgen -G "$build/packages/libmillrace-peer-mpi0.2_*.deb" >/dev/null || names+=(libmillrace-peer-mpi0.2)
  # The switch recommends drivers of devices, and make_root takes no recommended package.
  devices=$(dpkg-deb --field "$(echo "$build"/packages/millrace-switch_*.deb)" Recommends)
  make_root directory "$folder/root" "systemd,systemd-sysv,dbus,g++,pkgconf,iproute2${devices:+,$devices}" "${names[@]}"
  install -m 644 tests/integration/consumer/main.cc "$folder/root/consumer.cc"
  install -m 755 deploy/packaging/service_check.sh "$folder/root/service_check.sh"
  # The page's own lines, so that a wrong page fails the test.
  sed -n '/^\*\*Limit:\*\* DPDK/,/^## /{/^\[Service\]/,/^```/{/^```/!p}}' deploy/SERVICE.md >"$folder/root/dpdk.conf"
  install -m 644 deploy/packaging/service-check.service "$folder/root/etc/systemd/system/service-check.service"
  ln -s ../service-check.service "$folder/root/etc/systemd/system/multi-user.target.wants/service-check.service"
  say "booting it"
  timeout 600 "$BASH" -c "$(declare -f boot); boot \"\$1\"" boot "$folder/root" >"$folder/console.log" 2>&1 || true
  cat "$folder/root/var/log/service-check.log" >&2 || cat "$folder/console.log" >&2
  code=$(cat "$folder/root/var/log/service-check.code" 2>/dev/null || echo 1)
  [ "$code" = 0 ] || { say "the check in the root failed (its words are above)"; exit 1; }
}

image_root() {
  mkdir -p "$(dirname "$1")"
  make_root tar "$1" "" millrace-server millrace-tools libmillrace0.2
  say "$1 is the root file system; deploy/Containerfile makes an image of it"
}

# test_image FILE: runs the root in namespaces of its own. They end with the script that it runs there.
test_image() {
  require unshare setpriv python3
  [ "$(id -u)" -eq 0 ] || { say "--image-test needs root"; exit 3; }
  local folder
  folder=$(mktemp -d --tmpdir=/var/tmp millrace-image-XXXXXX)
  # shellcheck disable=SC2064  # a local, expanded now
  trap "rm -rf --one-file-system '$folder'" EXIT
  local file=${1:-$folder/millrace.tar}
  [ -n "$1" ] || image_root "$file"
  mkdir "$folder/root"
  tar --extract --numeric-owner --same-permissions --file "$file" --directory "$folder/root"
  say "running it"
  timeout 600 unshare --mount --net --pid --fork --kill-child --mount-proc \
    "$BASH" deploy/packaging/image_check.sh "$folder/root" deploy/Containerfile >&2 ||
    { say "the check of the image failed (its words are above)"; exit 1; }
}

# need OPTION VALUE
need() { [ -n "${2:-}" ] || { say "$1 takes a value"; exit 2; }; }

main() {
  local lint=no test=no image='' image_test=no
  while [ $# -gt 0 ]; do
    case "$1" in
      --lint) lint=yes ;;
      --test) test=yes ;;
      --image) need "$@"; image=$(from_caller "$2"); shift ;;
      --image-test) image_test=yes ;;
      --build) need "$@"; build=$(from_caller "$2"); shift ;;
      --mirror) need "$@"; mirror=$2; shift ;;
      -h | --help) usage; exit 0 ;;
      *) say "unknown option '$1'"; usage >&2; exit 2 ;;
    esac
    shift
  done
  build_packages
  [ "$lint" = no ] || lint
  # Each test in a process of its own, whose end removes its folder.
  [ "$test" = no ] || (test_packages)
  [ -z "$image" ] || image_root "$image"
  [ "$image_test" = no ] || (test_image "$image")
}

main "$@"
