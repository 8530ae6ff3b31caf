#!/usr/bin/env bash
# Prepares a host for millrace-switch on DPDK at full speed: huge pages, vfio-pci, quiet cores, a steady clock rate.
# It prints the changes that it would make, and makes them with --apply only.
#
#   deploy/switch-host.sh [--pages N] [--device PCI…]           prints missing parts, and the commands to change them.
#   deploy/switch-host.sh --apply [--pages N] [--device PCI…]   runs them (root). Prints commands that need a reboot.
#
#   --pages N      huge pages of 2 MiB to reserve (default 512: 1 GiB).
#   --device PCI   a network device to give to vfio-pci, as 0000:01:00.0; repeatable. The kernel loses it, and with it
#                  every connection over it. Never give the one that you are logged in by.
#   --cores LIST   processors for the switch, as 2-3 (default: all but the first two); only for the advice on isolation
#
# Without any of it millrace-switch runs as well: on kernel sockets, or on DPDK without huge pages on an interface of
# the kernel (--pmd net_af_packet,iface=eth1).
# Exit codes: 0 all is in order, or was made so. 1 a part is missing (without --apply) or failed. 2 usage. 3 not root.
set -euo pipefail

say() { printf '%s\n' "$*"; }
complain() { printf 'switch-host: %s\n' "$*" >&2; }
usage() { sed -n '2,/^set -/{/^#/p}' "$0" | sed 's/^# \{0,1\}//'; }

readonly HUGE_PAGES=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
apply=no
pages=512
cores=
devices=()
missing=0

# change WHAT COMMAND…: prints both; runs the command with --apply.
change() {
  local what=$1
  shift
  say "  $what"
  say "    $*"
  if [ "$apply" = yes ]; then
    bash -c "$*" || { complain "failed: $*"; missing=1; return 0; }
  else
    missing=1
  fi
}

huge_pages() {
  say "Huge pages (millrace-switch run --huge-pages)"
  if [ ! -r "$HUGE_PAGES" ]; then
    say "  this kernel has none of 2 MiB: run without --huge-pages"
    return
  fi
  local reserved
  reserved=$(cat "$HUGE_PAGES")
  if [ "$reserved" -ge "$pages" ]; then
    say "  $reserved of 2 MiB are reserved"
  else
    change "$reserved of 2 MiB are reserved, $pages are wanted; best soon after the start, before memory is in pieces" \
      "echo $pages > $HUGE_PAGES"
    # The kernel takes the number, and reserves the pages that it finds.
    reserved=$(cat "$HUGE_PAGES")
    if [ "$apply" = yes ] && [ "$reserved" -lt "$pages" ]; then
      complain "the kernel reserved $reserved of $pages huge pages: its memory is in pieces. Restart the machine, or set hugepages=$pages on \
the kernel's command line"
      missing=1
    fi
  fi
}

device_driver() {
  local link=/sys/bus/pci/devices/$1/driver
  if [ -e "$link" ]; then basename "$(readlink -f "$link")"; else echo none; fi
}

give_devices() {
  [ "${#devices[@]}" -gt 0 ] || return 0
  say "Devices (millrace-switch run --pmd PCI)"
  if [ -z "$(ls /sys/kernel/iommu_groups 2>/dev/null)" ]; then
    say "  no IOMMU is on: without one vfio-pci needs its no-iommu mode, in which a device can write anywhere. For intel_iommu=on or"
    say "  amd_iommu=on set the kernel's command line and start the machine anew"
  fi
  local device driver
  for device in "${devices[@]}"; do
    if [ ! -e "/sys/bus/pci/devices/$device" ]; then
      complain "there is no PCI device $device (lspci -D lists them)"
      missing=1
      continue
    fi
    driver=$(device_driver "$device")
    if [ "$driver" = vfio-pci ]; then
      say "  $device has vfio-pci"
    else
      change "$device has the driver $driver" \
        "modprobe vfio-pci && { [ $driver = none ] || echo $device > /sys/bus/pci/devices/$device/driver/unbind; }" \
        "&& echo vfio-pci > /sys/bus/pci/devices/$device/driver_override && echo $device > /sys/bus/pci/drivers_probe"
      if [ "$apply" = yes ] && [ "$(device_driver "$device")" != vfio-pci ]; then
        complain "$device has the driver $(device_driver "$device") still: the kernel's log has the reason (dmesg)"
        missing=1
      fi
    fi
  done
}

quiet_cores() {
  say "Cores"
  local isolated all
  all=$(nproc --all)
  isolated=$(cat /sys/devices/system/cpu/isolated 2>/dev/null || true)
  if [ "$all" -lt 4 ]; then
    say "  $all processors: too few to keep some for the switch alone"
  elif [ -n "$isolated" ]; then
    say "  processors $isolated are isolated; start the switch there: taskset -c $isolated millrace-switch run …"
  else
    cores=${cores:-2-$((all - 1))}
    say "  no processor is isolated. On the kernel's command line, and then a new start of the machine:"
    say "    isolcpus=$cores nohz_full=$cores rcu_nocbs=$cores"
    say "  and taskset -c $cores millrace-switch run …: nothing else runs there, no timer interrupts it"
  fi
}

steady_rate() {
  say "Clock rate"
  local governors=(/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor) kinds
  if [ ! -e "${governors[0]}" ]; then
    say "  not this system's to set (a virtual machine)"
    return
  fi
  kinds=$(sort -u "${governors[@]}" | tr '\n' ' ')
  if [ "$kinds" = "performance " ]; then
    say "  governor performance"
  else
    change "governor ${kinds% }: the rate goes up only some time after work begins" \
      "for one in /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do echo performance > \$one; done"
  fi
}

main() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --apply) apply=yes ;;
      --pages | --device | --cores)
        [ $# -ge 2 ] || { complain "$1 needs a value"; exit 2; }
        case "$1" in
          --pages)
            [[ $2 =~ ^[0-9]{1,7}$ ]] || { complain "--pages: '$2' is not a number"; exit 2; }
            pages=$2
            ;;
          --device)
            [[ $2 =~ ^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$ ]] ||
              { complain "--device: '$2' is not a PCI address, as 0000:01:00.0"; exit 2; }
            devices+=("$2")
            ;;
          --cores)
            [[ $2 =~ ^[0-9]+([,-][0-9]+)*$ ]] || { complain "--cores: '$2' is not a list, as 2-3"; exit 2; }
            cores=$2
            ;;
        esac
        shift
        ;;
      -h | --help) usage; exit 0 ;;
      *) complain "unknown option '$1'"; usage >&2; exit 2 ;;
    esac
    shift
  done
  [ "$apply" = no ] || [ "$(id -u)" -eq 0 ] || { complain "--apply needs root: run it with sudo"; exit 3; }
  huge_pages
  give_devices
  quiet_cores
  steady_rate
  [ "$apply" = yes ] || [ "$missing" = 0 ] || say "Nothing was changed. With --apply the indented commands are run."
  exit "$missing"
}

main "$@"
