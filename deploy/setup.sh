#!/usr/bin/env bash
# Installs the Debian packages that Millrace is built from. Idempotent; says nothing when nothing is missing.
#
#   deploy/setup.sh            the packages that the build and the demo need.
#   deploy/setup.sh --tests    also those of deploy/test.sh (clang 19, network tools, python3).
#   deploy/setup.sh --torch    also those of deploy/demo.sh --torch (PyTorch, matplotlib).
#   deploy/setup.sh --papers   also those of the experiments of tests/bench/papers/ (numpy, matplotlib, PyTorch).
#   deploy/setup.sh --python   also those of the tests of the binding for Python, and of its wheel (Debian 13 or later).
#   deploy/setup.sh --roots    also those of deploy/debian-root.sh (roots of other Debian releases).
#   deploy/setup.sh --packages also those of deploy/packages.sh (Debian packages and their test).
#   deploy/setup.sh --list     installs nothing: prints all packages of the requested groups, one a line.
#   deploy/setup.sh --check    installs nothing: prints the missing packages, one a line, and exits 1 if there are any.
#
# Exit codes: 0 done, 1 something is missing (--check), 2 usage, 3 not root, 4 not a Debian-like system, 5 apt failed.
set -euo pipefail

# name          purpose
readonly BUILD_PACKAGES=(
  g++                  # compiler, C++23 with std::expected
  cmake                # build, 3.25
  ninja-build          # build
  ccache               # rebuilds after a switch of branches
  mold                 # links the builds for tests
  git                  # source
  pkg-config           # finds Highway, xxHash, ZeroMQ, SQLite
  libzmq3-dev          # transport
  cppzmq-dev           # transport, C++ binding
  capnproto            # message compiler
  libcapnp-dev         # messages
  libtbb-dev           # parallel kernels and reduction
  libhwy-dev           # SIMD with run-time dispatch
  libxxhash-dev        # payload hashes, container checksums
  libroaring-dev       # index codec roaring
  libstreamvbyte-dev   # index codec streamvbyte
  libdeflate-dev       # value codec deflate
  librandom123-dev     # counter-based random numbers
  libutfcpp-dev        # texts off the wire: UTF-8
  libsodium-dev        # keys of datagrams
  libipsec-mb-dev      # MAC of datagrams on x86 (OpenSSL's where there is none)
  libssl-dev           # TLS of HTTP ports, MAC of datagrams, and the tests' oracle of it
  libsqlite3-dev       # the membership table on one machine
  libcurl4-openssl-dev # the membership table in etcd
  prometheus-cpp-dev   # metrics
  nlohmann-json3-dev   # JSON of the command line and /status
  libcli11-dev         # command line flags
  libfmt-dev           # formatted output
  zlib1g-dev           # LIBSVM files in .gz
  libbz2-dev           # LIBSVM files in .bz2
  liblzma-dev          # LIBSVM files in .xz
  libopenmpi-dev       # peers over MPI (left out where there is none)
  openmpi-bin          # mpirun
  pybind11-dev         # the binding for Python (left out where there is none)
  python3-dev          # the binding for Python
  libdpdk-dev          # millrace-switch on DPDK (left out where there is none)
  libgtest-dev         # unit tests (the dev preset builds them)
  libgmock-dev         # unit tests
  librapidcheck-dev    # property tests
  iproute2             # deploy/netlab.sh: demo and benchmarks with --link-rate
  procps               # the scripts' view of processes
)
# kubectl 1.21 or later is no package of Debian 12: without it kubernetes_test skips the components, and reports it.
readonly TEST_PACKAGES=(
  clang-19             # asan and fuzz presets (libFuzzer)
  libclang-rt-19-dev   # libFuzzer and sanitizer run-time
  llvm-19              # llvm-symbolizer for readable sanitizer reports
  clang-tidy-19        # lint
  clang-format-19      # format check
  python3              # tests/lint
  python3-numpy        # tests of the binding for Python
  mypy                 # its types
  python3-torch        # tests of its package for PyTorch
  etcd-server          # tests of the membership table in etcd; they start their own
  openssl              # their certificates
  prometheus           # tests of rules and dashboards; they start their own
  python3-yaml         # the rules, and the objects for Kubernetes, as data
  slurm-wlm            # test of deploy/slurm; it starts its own
  munge                # Slurm's authentication
  nftables             # packet loss in netlab tests
  dpdk-dev             # dpdk-testpmd, beside which tests/bench/switch_veth.sh measures
  ethtool              # checksums of veth pairs
  chromium             # test of the page
  zsh                  # accepts the completion scripts
  groff-base           # manual pages of an installation
  systemd              # systemd-analyze rates the services
)
readonly TORCH_PACKAGES=(
  python3-torch        # the training
  python3-matplotlib   # its plot
  libopenblas0-pthread # matrix products in a tenth of the time that reference BLAS takes
)
readonly PAPER_PACKAGES=(
  python3              # tests/bench/papers
  python3-numpy        # data and optimisers of the experiments
  python3-matplotlib   # plots
  python3-torch        # networks
  python3-zmq          # bare ZeroMQ beside the rows of a store (tests/bench/store_rows.py)
  libopenblas0-pthread # an LSTM's gradient in a tenth of the time that reference BLAS takes
)
readonly PACKAGE_PACKAGES=(
  python3              # manual pages
  file                 # cpack finds the programs of a package
  dpkg-dev             # dpkg-shlibdeps
  lintian              # packages.sh --lint
  mmdebstrap           # packages.sh --test, --image
  systemd-container    # packages.sh --test boots a root
  podman               # builds and runs the image of deploy/Containerfile
  crun                 # its run-time
)
readonly PYTHON_PACKAGES=(
  python3-numpy             # tests/worker/python
  mypy                      # types of the binding
  python3-torch             # tests of its package for PyTorch
  python3-pip               # builds the wheel
  python3-scikit-build-core # builds the wheel; Debian 12 lacks it
  python3-pybind11          # a requirement of the wheel's build
  python3-venv              # a fresh virtual environment for the wheel
)
readonly ROOT_PACKAGES=(
  mmdebstrap           # makes a root of another release
  uidmap               # for users other than root
)

say() { printf 'setup: %s\n' "$*" >&2; }

usage() {
  sed -n '2,/^set -/{/^#/p}' "$0" | sed 's/^# \{0,1\}//'
}

# Prints the packages of "$@" that dpkg does not have installed.
missing_of() {
  local installed package
  installed=$(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' 2>/dev/null | sed -n 's/^installed \([^:]*\).*/\1/p')
  for package in "$@"; do
    grep -qxF -- "$package" <<<"$installed" || printf '%s\n' "$package"
  done
}

# apt_retry ARGS…: apt-get, once more after a pause if it fails (a mirror in the middle of an update).
apt_retry() {
  local log
  log=$(mktemp)
  for attempt in 1 2; do
    if DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1; then
      rm -f "$log"
      return 0
    fi
    [ "$attempt" = 2 ] || { say "apt-get $1 failed, trying once more"; sleep 3; }
  done
  tail -n 20 "$log" >&2
  say "apt-get $1 failed twice (its last lines are above, all of it is in $log)"
  return 1
}

main() {
  local packages=("${BUILD_PACKAGES[@]}") action=install argument
  for argument in "$@"; do
    case "$argument" in
      --tests) packages+=("${TEST_PACKAGES[@]}") ;;
      --torch) packages+=("${TORCH_PACKAGES[@]}") ;;
      --papers) packages+=("${PAPER_PACKAGES[@]}") ;;
      --packages) packages+=("${PACKAGE_PACKAGES[@]}") ;;
      --python) packages+=("${PYTHON_PACKAGES[@]}") ;;
      --roots) packages+=("${ROOT_PACKAGES[@]}") ;;
      --list) action=list ;;
      --check) action=check ;;
      -h | --help) usage; exit 0 ;;
      *) say "unknown option '$argument'"; usage >&2; exit 2 ;;
    esac
  done
  if [ "$action" = list ]; then
    printf '%s\n' "${packages[@]}" | sort -u
    exit 0
  fi
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is not a Debian-like system (no dpkg and apt-get): install the packages named in deploy/setup.sh by hand"
    exit 4
  fi
  local missing
  mapfile -t missing < <(missing_of "${packages[@]}")
  if [ "$action" = check ]; then
    [ "${#missing[@]}" -eq 0 ] && exit 0
    printf '%s\n' "${missing[@]}"
    exit 1
  fi
  [ "${#missing[@]}" -eq 0 ] && exit 0
  if [ "$(id -u)" -ne 0 ]; then
    say "${#missing[@]} packages are missing and installing them needs root: run 'sudo deploy/setup.sh', or install ${missing[*]}"
    exit 3
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  apt_retry update || exit 5
  apt_retry install --no-install-recommends "${missing[@]}" || exit 5
  mapfile -t missing < <(missing_of "${packages[@]}")
  if [ "${#missing[@]}" -ne 0 ]; then
    say "still missing after the installation: ${missing[*]}"
    exit 5
  fi
}

main "$@"
