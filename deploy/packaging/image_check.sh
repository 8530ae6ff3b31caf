#!/bin/bash
# Runs the root of deploy/Containerfile's image without a container engine: a shard, and two workers that train against it.
# deploy/packages.sh --image-test calls it in new mount, network and process namespaces.
#
#   image_check.sh ROOT CONTAINERFILE
#
# The root is read-only. The volume is writable, and belongs to the image's user. The shard is the entry point with the
# flags that the Containerfile names, and an open HTTP port in place of its certificate and token.
set -euo pipefail
root=$1
containerfile=$2

say() { printf '== %s\n' "$*"; }
field() { sed -n "s|^$1 ||p" "$containerfile"; }

user=$(field USER)
volume=$(field VOLUME)
workdir=$(field WORKDIR)
mapfile -t entry_point < <(field ENTRYPOINT | python3 -c 'import json, sys; print(*json.load(sys.stdin), sep="\n")')
uid=$(awk -F: -v name="$user" '$1 == name { print $3 }' "$root/etc/passwd")
gid=$(awk -F: -v name="$user" '$1 == name { print $4 }' "$root/etc/passwd")

[ "$uid" -ne 0 ] || { echo "the image's user is root"; exit 1; }

# inside COMMAND…: as the image's user, without any capability. The command takes the place of this process.
inside() {
  exec chroot "$root" /usr/bin/setpriv --reuid="$uid" --regid="$gid" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
    /usr/bin/env -i -C "$workdir" PATH=/usr/bin:/bin "$@"
}

# get PORT PATH: the answer's last line.
get() {
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n' "$2" >&3
  sed -n '$p' <&3
  exec 3>&-
}

ip link set lo up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t tmpfs -o "size=256m,mode=750,uid=$uid,gid=$gid" volume "$root$volume"
mkdir -p "$root/keys"
mount -t tmpfs -o "mode=750,uid=$uid,gid=$gid" keys "$root/keys"
(inside /usr/bin/millrace keys new --folder /keys cluster worker)
mount -o remount,ro "$root/keys"
mount -o remount,ro "$root/dev"
mount -o remount,bind,ro "$root"

say "only the volume is writable"
for folder in / /etc /tmp /var/tmp /run /usr /keys /dev; do
  if chroot "$root" /bin/touch "$folder/probe" 2>/dev/null; then echo "$folder is writable"; exit 1; fi
done
(inside /bin/touch "$volume/probe")

say "the shard starts as $user, without a capability"
(inside "${entry_point[@]}" --listen 0.0.0.0:7600 --advertise 127.0.0.1:7600 --key /keys/cluster.key --allowed-keys /keys --http-insecure) &
shard=$!
until [ "$(get 7700 /readyz 2>/dev/null)" = ready ]; do
  kill -0 "$shard"
  sleep 0.2
done
grep -qx "Uid:"$'\t'"$uid"$'\t.*' "/proc/$shard/status"
grep -qx $'CapBnd:\t0000000000000000' "/proc/$shard/status"
grep -qx $'NoNewPrivs:\t1' "/proc/$shard/status"
[ "$(readlink "/proc/$shard/root")" = "$root" ]

say "two workers train"
(inside /usr/bin/millrace data synthetic --like url --rows 2000 --test-share 0.2 -o rows.svm) >/dev/null
workers=()
for worker in 0 1; do
  (inside /usr/bin/millrace train --train rows.svm --servers 127.0.0.1:7600 --worker $worker --workers 2 --key /keys/worker.key \
    --server-key /keys/cluster.pub -o model.bin) >/dev/null &
  workers+=($!)
done
for worker in "${workers[@]}"; do wait "$worker"; done
(inside /usr/bin/millrace eval --model-file model.bin --test rows.test.svm)

say "SIGTERM ends it in order"
kill -TERM "$shard"
wait "$shard"
say "done"
