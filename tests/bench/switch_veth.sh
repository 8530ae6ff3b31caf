#!/usr/bin/env bash
# Compares millrace-switch on a veth pair through DPDK's net_af_packet with dpdk-testpmd. testpmd sends the same packets
# back through the same driver. Measures packets a second of each, in turns, and their ratio. Needs root, network
# namespaces, DPDK and two cores.
#
#   tests/bench/switch_veth.sh [PROGRAM] [--duration D] [--repeats N]    PROGRAM: default build/dev/bin/millrace-switch
#
# Two network namespaces hold an end of the pair each; nothing of the machine's own network changes. In one,
# `millrace-switch-bench load` keeps 32 slots busy for four workers. In the other, either the switch sums, or testpmd
# (--forward-mode=5tswap) turns packets round. All workers send the same indices, so that as many packets of the same
# length return in both cases. The switch adds such contributions in place. Beside it, in the same rounds (apart_*),
# each worker sends indices of its own. With these windows the switch then sends four packets for each that it takes.
# Prints one JSON object:
# - returned packets a second (switch_packets_s, testpmd_packets_s, apart_packets_s);
# - packets a second that the switch took (apart_taken_s);
# - all as medians of the rounds, and of each round (..._all);
# - switch and apart over testpmd (ratio, apart_ratio).
# Exit codes: 0 done; 1 failed; 2 usage; 77 it cannot be run here, with a sentence on the reason.
set -euo pipefail

program=build/dev/bin/millrace-switch
duration=3s
repeats=3
readonly LAB=msv$$
readonly NEAR=$LAB-near FAR=$LAB-far
readonly WINDOW=40960 SLOTS=32
# testpmd binds its forwarding thread to the second of its cores and sleeps on the first. The switch gets the same place, and the load
# the other: where the system moves them, one measurement is three times another.
readonly LOAD_CORE=0 SWITCH_CORE=1
folder=
started=

say() { printf 'switch_veth: %s\n' "$*" >&2; }
skip() { say "skipped: $*"; exit 77; }
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }

clean() {
  [ -z "$started" ] || kill "$started" 2>/dev/null || true
  ip netns del "$NEAR" 2>/dev/null || true
  ip netns del "$FAR" 2>/dev/null || true
  [ -z "$folder" ] || rm -rf "$folder"
}

require() {
  [ "$(id -u)" -eq 0 ] || skip "network namespaces and packet sockets need root"
  local tool
  for tool in ip ethtool dpdk-testpmd python3 taskset; do
    command -v "$tool" >/dev/null || skip "'$tool' is missing (deploy/setup.sh --tests)"
  done
  [ -x "$program" ] || { say "no program '$program': build it, or name it"; exit 2; }
  "$program" --version | grep -q 'with DPDK' || skip "$program was built without DPDK"
  ip netns add "$NEAR" 2>/dev/null || skip "network namespaces cannot be made here"
}

make_lab() {
  ip netns add "$FAR"
  ip -n "$NEAR" link add near type veth peer name far netns "$FAR"
  ip -n "$NEAR" addr add 10.78.0.2/24 dev near
  ip -n "$NEAR" link set near up
  ip -n "$FAR" link set far up
  # The kernel at the far end must not answer for the address that the switch has; it has none there, so it does not.
  # Checksums are computed at the near end, since no device fills them in on the way.
  ip netns exec "$NEAR" ethtool -K near tx off >/dev/null
  # testpmd answers no ARP.
  mac=$(ip -n "$FAR" link show far | sed -n 's/.*link\/ether \([0-9a-f:]*\).*/\1/p')
  ip -n "$NEAR" neigh replace 10.78.0.1 lladdr "$mac" dev near nud permanent
}

# load [OPTION…]: one measurement; prints its JSON.
load() {
  ip netns exec "$NEAR" taskset -c "$LOAD_CORE" "$program-bench" load --to 10.78.0.1:7700 --from 10.78.0.2:0 --switch-slots "$SLOTS" --window-indices "$WINDOW" \
    --duration "$duration" "$@"
}

end_started() {
  kill "$started"
  wait "$started" 2>/dev/null || true
  started=
}

# measure_switch NAME [OPTION…]: options are the load's.
measure_switch() {
  local name=$1
  shift
  ip netns exec "$FAR" taskset -c "$SWITCH_CORE" "$program" run --listen 10.78.0.1:7700 --jobs "$folder/jobs.json" --pmd net_af_packet,iface=far --json \
    >"$folder/switch.out" 2>"$folder/switch.err" &
  started=$!
  wait_for listening "$folder/switch.out"
  load "$@" >>"$folder/$name.json"
  end_started
}

measure_testpmd() {
  # --auto-start without --interactive forwards until its input ends: a pipe that this shell holds open.
  mkfifo "$folder/input"
  ip netns exec "$FAR" dpdk-testpmd --no-huge --no-shconf --file-prefix=testpmd -m 512 --no-pci --no-telemetry --iova-mode=va \
    --vdev=net_af_packet0,iface=far -l "$LOAD_CORE,$SWITCH_CORE" -- --forward-mode=5tswap --auto-start --nb-cores=1 --total-num-mbufs=16384 --burst=64 --port-topology=loop \
    <"$folder/input" >"$folder/testpmd.out" 2>&1 &
  started=$!
  exec 9>"$folder/input"
  # The last line that it writes out before its output is a full buffer; the load sends packets again that come early.
  wait_for 'Checking link' "$folder/testpmd.out"
  load --echo >>"$folder/testpmd.json"
  exec 9>&-
  wait "$started" || true
  started=
  rm "$folder/input"
}

# wait_for WORD FILE: until the program says it is ready.
wait_for() {
  local left=300
  until grep -q "$1" "$2" 2>/dev/null; do
    left=$((left - 1))
    if [ "$left" -le 0 ] || ! kill -0 "$started" 2>/dev/null; then
      cat "$folder"/*.out "$folder"/*.err >&2 2>/dev/null || true
      say "what was started did not get ready"
      exit 1
    fi
    read -rt 0.1 <> <(:) || true
  done
}

report() {
  python3 - "$folder" <<'PYTHON'
import json, statistics, sys
def rates(name, key="packets_s"):
    return [json.loads(line)[key] for line in open(f"{sys.argv[1]}/{name}.json")]
switch, testpmd, apart = rates("switch"), rates("testpmd"), rates("apart")
median = statistics.median
print(json.dumps({"switch_packets_s": median(switch), "testpmd_packets_s": median(testpmd), "ratio": median(switch) / median(testpmd),
                  "apart_packets_s": median(apart), "apart_ratio": median(apart) / median(testpmd),
                  "apart_taken_s": median(rates("apart", "contribution_packets_s")),
                  "switch_all": switch, "testpmd_all": testpmd, "apart_all": apart}))
PYTHON
}

main() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --duration) duration=${2:?}; shift ;;
      --repeats) repeats=${2:?}; shift ;;
      -h | --help) usage; exit 0 ;;
      -*) say "unknown option '$1'"; usage >&2; exit 2 ;;
      *) program=$1 ;;
    esac
    shift
  done
  trap clean EXIT
  require
  folder=$(mktemp -d)
  printf '%s\n' 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f >"$folder/bench.key"
  chmod 600 "$folder/bench.key"
  printf '{"jobs": [{"name": "bench", "job": 7, "key_file": "bench.key", "workers": 4, "window_indices": %s, "slots": %s}]}\n' \
    "$WINDOW" "$SLOTS" >"$folder/jobs.json"
  make_lab
  local round
  for ((round = 0; round < repeats; round++)); do
    measure_switch switch
    measure_testpmd
    measure_switch apart --apart
  done
  report
}

main "$@"
