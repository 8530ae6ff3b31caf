#!/usr/bin/env bash
# Several hosts on one machine: network namespaces behind a bridge, each link limited to a rate. Needs root and
# iproute2.
#
#   deploy/netlab.sh up PREFIX HOSTS RATE [UNLIMITED [MTU]]
#       hosts PREFIX-1 … PREFIX-HOSTS with addresses 10.77.0.1 … and links of RATE (1gbit). Then UNLIMITED more whose
#       links have none, as a switch's. MTU: 1500 to 9000.
#   deploy/netlab.sh lose PREFIX FRACTION
#       from now on each packet to a host is lost with this chance (0.01), by itself. Links to hosts then carry packets
#       one by one. A packet that a host sends leaves the host as without loss. Needs nft.
#   deploy/netlab.sh lose PREFIX FRACTION bursts
#       the same, and links carry packets as without loss. A piece that arrives as one is lost as one.
#   deploy/netlab.sh lose PREFIX single
#       none is lost, and links carry packets one by one through the rule of `lose PREFIX FRACTION`: to compare with.
#   deploy/netlab.sh lose PREFIX 0
#       none is lost, and links are as they were.
#   deploy/netlab.sh exec PREFIX HOST -- COMMAND…
#       runs COMMAND on host number HOST.
#   deploy/netlab.sh down PREFIX
#       removes the hosts; nothing to remove is no error.
#   deploy/netlab.sh run HOSTS RATE -- COMMAND…
#       up, then COMMAND with NETLAB_PREFIX and NETLAB_HOSTS set, then down in every case.
#   deploy/netlab.sh mpirun --ranks RANKS --link-rate RATE [--hosts HOSTS] [OPTIONS OF MPIRUN…] -- COMMAND…
#       as run, with COMMAND as RANKS processes of an MPI job.
#       HOSTS are RANKS by default; the ranks go round the hosts.
#   deploy/netlab.sh check
#       exits 0 if this machine can do it. Otherwise prints one sentence on the missing part.
#
# The bridge is in a namespace of its own (PREFIX-switch): no interface, address or route of the machine itself changes.
# Every direction of a link has its token bucket; the rate counts Ethernet frames, so TCP payload reaches 0.95 of it.
# RATE "none" leaves links unlimited. A bucket holds 256 KiB (NETLAB_BURST overrides), 2 ms at 1 Gbit/s. Where the
# machine's timers are later than that (a busy virtual machine), links stay below their rate. So compare with a bare
# transfer of the same run. TCP on the hosts uses Reno (NETLAB_CONGESTION overrides; "default" leaves the machine's):
# see deploy/DESIGN.md.
# Exit codes: the command's own for exec and run; else 0 done, 1 failed, 2 usage, 3 not root or no iproute2.
set -euo pipefail

readonly NETWORK=10.77.0
readonly HOSTS_MAX=64
readonly BURST=${NETLAB_BURST:-256k}
readonly MTU_USUAL=1500 MTU_MAX=9000
readonly CONGESTION=${NETLAB_CONGESTION:-reno}

say() { printf 'netlab: %s\n' "$*" >&2; }
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }

require_tools() {
  local tool
  for tool in ip tc setsid; do
    command -v "$tool" >/dev/null || { say "'$tool' is missing: run deploy/setup.sh (packages iproute2, util-linux)"; exit 3; }
  done
  [ "$(id -u)" -eq 0 ] || { say "network namespaces need root: run it with sudo"; exit 3; }
}

require_prefix() {
  # Interface names have at most 15 characters.
  [[ ${1:-} =~ ^[a-z][a-z0-9]{0,7}$ ]] || { say "a prefix is 1 to 8 lower-case letters and digits, not '${1:-}'"; exit 2; }
}

# limit NAMESPACE INTERFACE RATE
limit() {
  [ "$3" = none ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$3" burst "$BURST" latency 200ms
}

# choose_congestion_control NAMESPACE
choose_congestion_control() {
  [ "$CONGESTION" = default ] && return
  # shellcheck disable=SC2016  # expanded by the inner shell
  ip netns exec "$1" sh -c 'echo "$1" >/proc/sys/net/ipv4/tcp_congestion_control' sh "$CONGESTION" 2>/dev/null ||
    say "$1 cannot use TCP congestion control '$CONGESTION': it keeps the machine's default"
}

# lose PREFIX FRACTION [bursts]. Packets on the way out of a host are not lost.
lose() {
  local prefix=$1 fraction=$2 pieces=${3:-} namespace number rules segments=1 verdict=drop
  command -v nft >/dev/null || { say "'nft' is missing: run deploy/setup.sh (package nftables)"; exit 3; }
  # In millionths, without the arithmetic of fractions that a shell lacks.
  local millionths
  if [ "$fraction" = single ]; then
    # The same rule, whose draw decides nothing: it costs a packet the same time, and no loss.
    millionths=10000 verdict=accept
  else
    millionths=$(awk -v f="$fraction" 'BEGIN { printf "%d", f * 1000000 + 0.5 }')
    [ "$millionths" -ne 0 ] && [ "$pieces" != bursts ] || segments=65535
  fi
  while read -r namespace; do
    number=${namespace#"$prefix-"}
    [ "$number" != switch ] || continue
    ip -n "$prefix-switch" link set "$namespace" gso_max_segs "$segments"
    rules="table inet netlab { }
delete table inet netlab"
    [ "$millionths" -eq 0 ] || rules="$rules
table inet netlab {
  chain loss {
    type filter hook input priority 0;
    iifname eth0 numgen random mod 1000000 < $millionths counter $verdict
  }
}"
    ip netns exec "$namespace" nft -f - <<<"$rules" ||
      { say "this machine's nft cannot drop packets at random (nft_numgen of the kernel)"; exit 3; }
  done < <(namespaces_of "$prefix")
}

# Names that start with PREFIX- and belong to a lab: the switch and the numbered hosts.
namespaces_of() {
  ip netns list | sed -n "s/^\($1-\(switch\|[0-9][0-9]*\)\)\( .*\)\{0,1\}$/\1/p"
}

# down PREFIX: removes all in a session of its own, which Ctrl-C does not reach: a half-removed lab would stay for ever.
# (An ignored SIGINT is no way. bash 5.2 restores it around every wait, and may then send itself one without end.)
down() {
  local tries=30
  # The new process may meet a signal before it has its session.
  while ((tries-- > 0)); do
    setsid --wait "$BASH" "$0" remove "$1" && return 0
  done
  say "could not remove all of '$1': deploy/netlab.sh down $1"
  return 1
}

remove() {
  local namespace pids
  while read -r namespace; do
    [ -n "$namespace" ] || continue
    # What still runs in there would keep the namespace alive without a name.
    pids=$(ip netns pids "$namespace" 2>/dev/null || true)
    # shellcheck disable=SC2086  # one word a process
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
    ip netns del "$namespace" || true
  done < <(namespaces_of "$1")
}

up_host() {
  local prefix=$1 number=$2 rate=$3 mtu=$4 host=$1-$2 link=$1-$2
  ip netns add "$host"
  # Both ends are made inside namespaces, so that no name of the machine's own is taken.
  ip -n "$host" link add eth0 mtu "$mtu" type veth peer name "$link" mtu "$mtu" netns "$prefix-switch"
  ip -n "$host" link set lo up
  ip -n "$host" addr add "$NETWORK.$number/24" dev eth0
  ip -n "$host" link set eth0 up
  choose_congestion_control "$host"
  ip -n "$prefix-switch" link set "$link" master bridge0 up
  limit "$host" eth0 "$rate"
  limit "$prefix-switch" "$link" "$rate"
}

# abandon PREFIX HOSTS RATE: at the end of a script that did not get through up().
abandon() {
  local code=$?
  down "$1"
  [ "$code" -eq 130 ] || say "could not set up $2 hosts with links of $3 (what was made is removed)"
}

# From its first namespace on, every end of the script removes the lab. The caller decides how long that stays so.
up() {
  local prefix=$1 hosts=$2 rate=$3 unlimited=${4:-0} mtu=${5:-$MTU_USUAL} number
  [ -z "$(namespaces_of "$prefix")" ] || { say "'$prefix' is up already: deploy/netlab.sh down $prefix"; exit 1; }
  # An ERR trap would not see what fails in a function.
  # shellcheck disable=SC2064  # locals, expanded now
  trap "abandon '$prefix' '$hosts' '$rate'" EXIT
  trap 'trap : INT TERM; exit 130' INT TERM
  ip netns add "$prefix-switch"
  ip -n "$prefix-switch" link add bridge0 mtu "$mtu" type bridge
  ip -n "$prefix-switch" link set bridge0 up
  for ((number = 1; number <= hosts; ++number)); do
    up_host "$prefix" "$number" "$rate" "$mtu"
  done
  for ((number = hosts + 1; number <= hosts + unlimited; ++number)); do
    up_host "$prefix" "$number" none "$mtu"
  done
}

check() {
  # A process of its own: in a list with || bash would continue after a failure. It reports the step that failed.
  "$BASH" "$0" run 1 1gbit -- true || exit 1
}

require_shape() {
  [[ ${1:-} =~ ^[0-9]+$ ]] && [ "$1" -ge 1 ] && [ "$1" -le "$HOSTS_MAX" ] || { say "hosts: 1 to $HOSTS_MAX, not '${1:-}'"; exit 2; }
  [[ ${2:-} =~ ^([0-9]+(\.[0-9]+)?[kmg]?bit|none)$ ]] || { say "a rate is a number with kbit, mbit or gbit, or none; not '${2:-}'"; exit 2; }
}

run() {
  local hosts=$1 rate=$2 prefix=lab$((RANDOM % 10000)) code=0
  shift 2
  up "$prefix" "$hosts" "$rate"
  # shellcheck disable=SC2064  # a local, expanded now
  trap "down '$prefix'" EXIT
  NETLAB_PREFIX=$prefix NETLAB_HOSTS=$hosts "$@" || code=$?
  exit "$code"
}

# require_count NAME VALUE
require_count() {
  [[ ${2:-} =~ ^[0-9]+$ ]] && [ "$2" -ge 1 ] || { say "$1 takes a number from 1 on, not '${2:-}'"; exit 2; }
}

# mpirun_hosts ARGUMENTS OF mpirun…
mpirun_hosts() {
  local ranks='' hosts='' rate=1gbit options=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case "$1" in
      --ranks) require_count --ranks "${2:-}"; ranks=$2; shift 2 ;;
      --hosts) require_count --hosts "${2:-}"; hosts=$2; shift 2 ;;
      --link-rate) rate=${2:-}; shift; shift || true ;;
      *) options+=("$1"); shift ;;
    esac
  done
  [ -n "$ranks" ] && [ "${1:-}" = -- ] && [ $# -ge 2 ] || { usage >&2; exit 2; }
  shift
  hosts=${hosts:-$ranks}
  require_shape "$hosts" "$rate"
  require_tools
  command -v mpirun >/dev/null || { say "'mpirun' is missing: run deploy/setup.sh (package openmpi-bin)"; exit 3; }
  run "$hosts" "$rate" "$BASH" "$0" mpirun-inside "$ranks" "${options[@]}" -- "$@"
}

# mpirun_inside RANKS OPTIONS… -- COMMAND…: in a lab that is up. Hosts are their addresses, which need no name look-up.
# Each has a host name of its own all the same: otherwise Open MPI takes them for one machine.
mpirun_inside() {
  local ranks=$1 hosts='' number
  shift
  local slots=$(((ranks + NETLAB_HOSTS - 1) / NETLAB_HOSTS))
  for ((number = 1; number <= NETLAB_HOSTS; ++number)); do hosts+=,$NETWORK.$number:$slots; done
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  # The agent's value is split at spaces, so that a path of the user's may not be in it.
  local folder
  folder=$(mktemp -d /tmp/netlab.XXXXXX)
  # shellcheck disable=SC2064  # a local, expanded now
  trap "rm -rf '$folder'" EXIT
  printf '#!/bin/sh\nexec %q %q agent "$@"\n' "$BASH" "$(realpath "$0")" >"$folder/agent"
  chmod +x "$folder/agent"
  # MPI waits by polling. Where ranks share cores it must yield in between. Elsewhere it must not. Each poll would yield
  # there, and a progress thread beside a computing thread would run only after the next tick of the clock.
  local yields=0
  ((ranks <= $(nproc))) || yields=1
  # Before the first host has its share, and where this script may use them all.
  [ "$(nproc)" -ne "$(nproc --all)" ] || NETLAB_CORES=$(nproc)
  export NETLAB_CORES
  # Shared memory is `vader`: Open MPI 4 has no other, and Open MPI 5 takes that name for its `sm`.
  on_host 1 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n "$ranks" --host "${hosts#,}" \
    --map-by node --bind-to none --oversubscribe --mca plm_rsh_agent "$folder/agent" --mca pml ob1 --mca btl tcp,vader,self \
    --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --mca mpi_yield_when_idle "$yields" "${options[@]}" "$@"
}

# cores_of NUMBER: the host's share of the machine's cores, where there is one for each. Otherwise two ranks may compute
# on one core while another idles, until the scheduler balances them.
cores_of() {
  local cores=${NETLAB_CORES:-0}
  ((NETLAB_HOSTS <= cores)) || return 0
  printf '%d-%d' $((($1 - 1) * cores / NETLAB_HOSTS)) $(($1 * cores / NETLAB_HOSTS - 1))
}

# on_host NUMBER COMMAND…: there, on its cores, under a host name of its own.
on_host() {
  local number=$1 cores pin=()
  shift
  cores=$(cores_of "$number")
  [ -z "$cores" ] || pin=(taskset -c "$cores")
  # shellcheck disable=SC2016  # expanded by the inner shell
  ip netns exec "$NETLAB_PREFIX-$number" "${pin[@]}" unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "host$number" "$@"
}

# agent [OPTIONS] ADDRESS COMMAND…: what Open MPI starts its daemons on other hosts with, in place of ssh.
agent() {
  while [[ ${1:-} == -* ]]; do shift; done
  local number=${1##*.}
  shift
  on_host "$number" sh -c "$*"
}

main() {
  local action=${1:-}
  shift || true
  case "$action" in
    up)
      require_prefix "${1:-}"; require_shape "${2:-}" "${3:-}"
      [[ ${4:-0} =~ ^[0-9]+$ ]] && (($2 + ${4:-0} <= HOSTS_MAX)) || { say "hosts: 1 to $HOSTS_MAX, with those without a limit"; exit 2; }
      [[ ${5:-$MTU_USUAL} =~ ^[0-9]{4}$ ]] && ((${5:-$MTU_USUAL} >= MTU_USUAL && ${5:-$MTU_USUAL} <= MTU_MAX)) ||
        { say "an MTU is $MTU_USUAL to $MTU_MAX, not '${5:-}'"; exit 2; }
      require_tools
      up "$1" "$2" "$3" "${4:-0}" "${5:-$MTU_USUAL}"
      trap - EXIT INT TERM ;;
    down | remove)
      require_prefix "${1:-}"; require_tools
      "$action" "$1" ;;
    lose)
      require_prefix "${1:-}"; require_tools
      [[ ${2:-} =~ ^(single|0(\.[0-9]{1,6})?)$ ]] || { say "a fraction is 0, 0.something or single, not '${2:-}'"; exit 2; }
      [[ ${3:-} =~ ^(bursts)?$ && $# -le 3 && ${2}${3:-} != singlebursts ]] ||
        { say "after a fraction comes nothing, or 'bursts'; not '${*:3}'"; exit 2; }
      [ -n "$(namespaces_of "$1")" ] || { say "there is no '$1': deploy/netlab.sh up"; exit 1; }
      lose "$1" "$2" "${3:-}" ;;
    exec)
      require_prefix "${1:-}"; require_tools
      [ "${3:-}" = -- ] && [ $# -ge 4 ] || { usage >&2; exit 2; }
      [ -n "$(namespaces_of "$1" | grep -x -- "$1-$2")" ] || { say "there is no host $2 of '$1': deploy/netlab.sh up"; exit 1; }
      local namespace=$1-$2
      shift 3
      exec ip netns exec "$namespace" "$@" ;;
    run)
      require_shape "${1:-}" "${2:-}"; require_tools
      [ "${3:-}" = -- ] && [ $# -ge 4 ] || { usage >&2; exit 2; }
      local hosts=$1 rate=$2
      shift 3
      run "$hosts" "$rate" "$@" ;;
    mpirun) mpirun_hosts "$@" ;;
    mpirun-inside) mpirun_inside "$@" ;;
    agent) agent "$@" ;;
    check) require_tools; check ;;
    -h | --help) usage ;;
    *) usage >&2; exit 2 ;;
  esac
}

main "$@"
