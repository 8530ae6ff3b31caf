#!/bin/bash
# Checks installed packages in a booted root: deploy/packages.sh --test runs it there. Its lines go to
# /var/log/service-check.log, its exit code to /var/log/service-check.code.
set -euo pipefail
exec >/var/log/service-check.log 2>&1
trap 'code=$?; [ $code = 0 ] || journalctl --no-pager -n 60; echo $code >/var/log/service-check.code' EXIT

say() { printf '== %s\n' "$*"; }
property() { systemctl show --value -p "$2" "$1"; }

# get PORT PATH: the answer's first and last line.
get() {
  exec 3<>"/dev/tcp/127.0.0.1/$1"
  printf 'GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n' "$2" >&3
  sed -n '1p;$p' <&3
  exec 3>&-
}

# until_is WANT COMMAND…: waits until the command prints WANT; the unit's time limit bounds it.
until_is() {
  local want=$1
  shift
  until [ "$("$@")" = "$want" ]; do sleep 0.2; done
}

# in_sandbox UNIT: the running process has the user, no capability, a filter of system calls, a read-only file system.
in_sandbox() {
  local pid
  pid=$(property "$1" MainPID)
  grep -qx $'Uid:\t'"$(id -u millrace)"$'\t.*' "/proc/$pid/status"
  grep -qx $'CapBnd:\t0000000000000000' "/proc/$pid/status"
  grep -qx $'NoNewPrivs:\t1' "/proc/$pid/status"
  grep -qx $'Seccomp:\t2' "/proc/$pid/status"
  awk '$5 == "/" { print $6 }' "/proc/$pid/mountinfo" | grep '^ro\b' >/dev/null
}

say "the shard starts as its own user, and says so when it is ready"
systemctl start millrace-server@0
systemctl is-active millrace-server@0
in_sandbox millrace-server@0
until_is ready property millrace-server@0 StatusText
get 7700 /readyz | grep '200 OK' >/dev/null
get 7700 /readyz | grep -x ready >/dev/null
[ "$(stat -c %U:%a /var/lib/millrace)" = millrace:750 ]

say "its exposure is at most 2.5"
systemd-analyze security --no-pager --threshold=25 millrace-server@0 | tail -n 1
systemd-analyze security --no-pager --threshold=25 millrace-switch | tail -n 1

say "two workers train"
cd /tmp
millrace data synthetic --like url --rows 2000 --test-share 0.2 -o rows.svm >/dev/null
for worker in 0 1; do
  millrace train --train rows.svm --servers 127.0.0.1:7600 --worker $worker --workers 2 -o model.bin >"worker$worker.log" 2>&1 &
done
wait %1
wait %2
millrace eval --model-file model.bin --test rows.test.svm
python3 -c 'import millrace; print("python3-millrace", millrace.__version__)'

say "a program compiles with the development files, and runs"
# shellcheck disable=SC2046  # flags are words
g++ -std=c++20 -pthread /consumer.cc -o consumer $(pkg-config --cflags --libs millrace)
./consumer

say "a reload leaves it ready"
pid=$(property millrace-server@0 MainPID)
systemctl reload millrace-server@0
until_is ready property millrace-server@0 StatusText
[ "$(property millrace-server@0 MainPID)" = "$pid" ]

say "a reload reads the policy again"
millrace keys new --folder /etc/millrace/keys cluster worker-0 >/dev/null
printf '{"rules": [{"keys": ["worker-0"], "jobs": ["other"], "may": ["create"]}]}\n' >/etc/millrace/policy.json
chown -R root:millrace /etc/millrace/keys /etc/millrace/policy.json
chmod 750 /etc/millrace/keys
chmod 640 /etc/millrace/keys/cluster.key /etc/millrace/policy.json
sed -i 's/^# \(key\|allowed-keys\|policy\) = /\1 = /' /etc/millrace/server-0.toml
systemctl restart millrace-server@0
until_is ready property millrace-server@0 StatusText
train_with_key() {
  millrace train --train rows.svm --servers 127.0.0.1:7600 --worker 0 --workers 1 --key /etc/millrace/keys/worker-0.key \
    --server-key /etc/millrace/keys/cluster.pub -o keyed.bin >keyed.log 2>&1
}
if train_with_key; then exit 1; fi
grep "key 'worker-0' lacks the right" keyed.log
sed -i 's/"other"/"*"/' /etc/millrace/policy.json
systemctl reload millrace-server@0
until_is ready property millrace-server@0 StatusText
train_with_key

say "a second shard without a configuration is refused"
if systemctl start millrace-server@1; then exit 1; fi

say "the watchdog restarts a shard that has stopped"
mkdir -p /run/systemd/system/millrace-server@.service.d
printf '[Service]\nWatchdogSec=2s\n' >/run/systemd/system/millrace-server@.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart millrace-server@0
kill -STOP "$(property millrace-server@0 MainPID)"
until_is 1 property millrace-server@0 NRestarts
until_is ready property millrace-server@0 StatusText

say "a spare whose number is taken back waits again"
rm /run/systemd/system/millrace-server@.service.d/watchdog.conf
printf '[Service]\nRestartSec=10s\n' >/run/systemd/system/millrace-server@.service.d/restart.conf
systemctl daemon-reload
systemctl restart millrace-server@0
sed -i 's/^# \(key\|allowed-keys\) = /\1 = /' /etc/millrace/spare-0.toml
systemctl start millrace-spare@0
until_is 'a spare without a number' property millrace-spare@0 StatusText
kill -KILL "$(property millrace-server@0 MainPID)"
until_is ready property millrace-spare@0 StatusText  # it has the number
until_is 1 property millrace-spare@0 NRestarts       # the shard is back
until_is 'a spare without a number' property millrace-spare@0 StatusText
until_is ready property millrace-server@0 StatusText
systemctl stop millrace-spare@0
[ "$(property millrace-spare@0 Result)" = success ]

say "the switch starts, reloads and ends"
systemctl start millrace-switch
in_sandbox millrace-switch
get 9091 /readyz | grep -x ready >/dev/null
systemctl reload millrace-switch
until_is serving property millrace-switch StatusText
systemctl stop millrace-switch
[ "$(property millrace-switch Result)" = success ]

say "DPDK starts on an interface of the kernel with the drop-in of deploy/SERVICE.md"
if ldd /usr/bin/millrace-switch | grep librte_eal >/dev/null; then
  ip link add eth1 type veth peer name eth2
  ip link set eth1 up
  ip link set eth2 up
  install -D -m 644 /dpdk.conf /run/systemd/system/millrace-switch.service.d/dpdk.conf
  systemctl daemon-reload
  sed -i '1i pmd = "net_af_packet,iface=eth1"' /etc/millrace/switch.toml
  systemctl start millrace-switch
  get 9091 /readyz | grep -x ready >/dev/null
  get 9091 /status | grep -F '"pmd":"net_af_packet,iface=eth1"' >/dev/null
  systemctl stop millrace-switch
fi

say "a stop drains and is no failure"
systemctl stop millrace-server@0
[ "$(property millrace-server@0 Result)" = success ]

say "manual pages and completions are there"
[ -s /usr/share/bash-completion/completions/millrace-server ]
zcat /usr/share/man/man1/millrace-train.1.gz | grep 'SH NAME' >/dev/null

say "a removal ends the services, a purge leaves no file of the packages"
systemctl enable --now millrace-server@0
rm -r /etc/millrace/keys /etc/millrace/policy.json
apt-get purge -y -q millrace-server millrace-switch millrace-tools >/dev/null
if systemctl is-active millrace-server@0; then exit 1; fi
[ ! -e /etc/millrace ]
[ -z "$(find /var/lib/millrace -name 'table.db*' 2>/dev/null)" ]
[ ! -L /etc/systemd/system/multi-user.target.wants/millrace-server@0.service ]
say "done"
