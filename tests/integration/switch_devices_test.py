#!/usr/bin/env python3
"""millrace-switch on the interfaces that the kernel lends to DPDK, between network namespaces: AF_XDP sockets
(net_af_xdp), frames of an MTU of 9000 (net_af_packet), and buffers in huge pages. Where a device refuses, the
message has the remedy.

Takes the folder of the programs. Exits 77 (skipped, for ctest) where there are no namespaces, or no DPDK. Where the
kernel refuses a bare AF_XDP socket or its BPF map, the tests of net_af_xdp skip by themselves, with the kernel's words.
"""

import ctypes
import json
import os
import re
import shutil
import socket
import struct
from pathlib import Path

from switch_lab import BENCH, FAR, JOBS, NEAR, PROGRAM, SLOTS, TIMEOUT_S, OnDevice, command, inside, main

AF_XDP = 44
PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
PAGES_WANTED = 256


def no_af_xdp():
    """Why this kernel has no AF_XDP sockets; None where it has."""
    try:
        socket.socket(AF_XDP, socket.SOCK_RAW, 0).close()
    except OSError as error:
        return f"this kernel gives no AF_XDP socket: {error}"
    # BPF_MAP_CREATE of an XSKMAP of one entry, in which the driver's program looks sockets up.
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
    wanted = ctypes.create_string_buffer(struct.pack("=5I", 17, 4, 4, 1, 0), 120)
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.syscall(number, 0, wanted, len(wanted)) if number else -1
    if made < 0:
        return f"this kernel makes no BPF map for AF_XDP sockets: {os.strerror(ctypes.get_errno())}"
    os.close(made)
    return None


class Devices(OnDevice):
    def switch(self, device, *flags, window=40960, before=(), **fields):
        """A switch at the far end, whose jobs have these fields, and its first line. before: a command that runs it."""
        self.write_jobs(window, **fields)
        switch = self.start(*inside(FAR, *before, PROGRAM, "run", "--listen", "10.78.0.1:7700", "--jobs", self.folder / "jobs.json", "--pmd",
                                    device, "--http", "127.0.0.1:0", "--json", *flags))
        return switch, json.loads(switch.stdout.readline())

    def load(self, address, job, *flags, window=40960):
        return self.start(*inside(NEAR, BENCH, "load", "--to", address, "--switch-job", job, "--from", "10.78.0.2:0", "--switch-slots", SLOTS, "--window-indices",
                                  window, "--duration", "2s", *flags))

    def serve(self, device, *flags, load=(), window=40960, jobs=JOBS[:1], look=lambda pid: None, **fields):
        """Each lcore's status after all jobs have served a load. look: at the switch, while it runs."""
        switch, line = self.switch(device, *flags, window=window, **fields)
        if line["event"] != "listening":
            self.fail(f"{line['error']}\n{switch.stderr.read()}")
        loads = [self.load(line["addresses"][0], job, *load, window=window) for job in jobs]
        for one in loads:
            out, err = one.communicate(timeout=TIMEOUT_S)
            self.assertEqual(one.returncode, 0, err)
            self.assertGreater(json.loads(out)["turns"], SLOTS, "no slot continued")
        lcores = self.lcores_after_a_load(line["http"])
        look(switch.pid)
        switch.terminate()
        self.assertEqual(switch.wait(timeout=TIMEOUT_S), 0)
        for lcore in lcores:
            for fault in ("bad_mac", "replay", "wrong_binding", "malformed_payload", "stranger"):
                self.assertNotIn(fault, lcore["events"])
            for drop in ("too_long", "malformed_frame", "no_buffer"):
                self.assertNotIn(drop, lcore["dropped"])
        return lcores

    def refused(self, device, *flags, before=()):
        switch, line = self.switch(device, *flags, before=before)
        self.assertEqual(line["event"], "failed", line)
        self.assertNotEqual(switch.wait(timeout=TIMEOUT_S), 0)
        return line["error"]

    def test_AfXdpServesALoadAndLeavesNoProgramAtTheInterface(self):
        if reason := no_af_xdp():
            self.skipTest(reason)
        self.make_link(1500)
        self.serve("net_af_xdp,iface=far")
        self.assertNotIn("xdp", command("ip", "-n", FAR, "link", "show", "far").stdout)

    def test_AfXdpHandsPacketsToASecondLcore(self):
        if reason := no_af_xdp():
            self.skipTest(reason)
        self.make_link(1500)
        self.serve("net_af_xdp,iface=far", "--lcores", 2, jobs=JOBS)

    def test_AfXdpSaysHowLongItsFramesAre(self):
        if reason := no_af_xdp():
            self.skipTest(reason)
        self.make_link(1500)
        error = self.refused("net_af_xdp,iface=far", "--packet-bytes-max", 8972)
        self.assertRegex(error, r"needs an MTU of 9000: the driver of 'net_af_xdp,iface=far' takes \d+ at most, or --packet-bytes-max \d+")

    def test_AfPacketCarriesPacketsOfAnMtuOf9000(self):
        self.make_link(9000)
        # 4 % of a window's indices fill one such packet, and would six of the usual ones.
        for lcore in self.serve("net_af_packet,iface=far", "--packet-bytes-max", 8972, window=65472, packet_bytes=8972,
                                load=("--switch-packet-bytes", 8972, "--density", 0.04)):
            for way in ("in", "out"):
                self.assertGreater(lcore[f"bytes_{way}"], 4000 * lcore[f"packets_{way}"], f"packets {way} were short")

    def huge_kib(self, pid):
        """Of a process, in pages that the kernel reserved as huge ones."""
        smaps = Path(f"/proc/{pid}/smaps").read_text(encoding="ascii")
        return sum(int(kib) for kib in re.findall(r"^(?:Private|Shared)_Hugetlb: +(\d+) kB$", smaps, re.MULTILINE))

    def test_BuffersAreInHugePages(self):
        if not PAGES.exists():
            self.skipTest("this kernel has no huge pages of 2 MiB")
        before = int(PAGES.read_text(encoding="ascii"))
        self.addCleanup(PAGES.write_text, f"{before}\n", encoding="ascii")
        try:
            PAGES.write_text(f"{before + PAGES_WANTED}\n", encoding="ascii")
        except OSError as error:
            self.skipTest(f"no huge pages can be reserved here: {error}")
        if int(PAGES.read_text(encoding="ascii")) < before + PAGES_WANTED:
            self.skipTest("this machine has no memory in one piece for huge pages")
        self.make_link(1500)
        self.serve("net_af_packet,iface=far", "--huge-pages", look=lambda pid: self.assertGreater(self.huge_kib(pid), 16 << 10))
        self.serve("net_af_packet,iface=far", look=lambda pid: self.assertEqual(self.huge_kib(pid), 0))

    def test_TheErrorForMissingHugePagesNamesTheSetupScript(self):
        if PAGES.exists() and PAGES.read_text(encoding="ascii").strip() != "0":
            self.skipTest("this machine has huge pages")
        self.make_link(1500)
        self.assertIn("deploy/switch-host.sh", self.refused("net_af_packet,iface=far", "--huge-pages"))

    def test_TheSwitchRefusesAnInterfaceOfASmallerMtu(self):
        self.make_link(1500)
        error = self.refused("net_af_packet,iface=far", "--packet-bytes-max", 8972)
        self.assertIn("needs an MTU of 9000: the interface 'far' has 1500; 'ip link set far mtu 9000'", error)
        self.assertIn("--packet-bytes-max 1472", error)

    def test_TheSwitchRefusesAMissingInterface(self):
        self.make_link(1500)
        self.assertIn("there is no interface 'near' here", self.refused("net_af_xdp,iface=near"))

    def test_TheErrorForMissingDriversOfPoolsNamesTheirPackages(self):
        """Debian has a package for each driver. The program sees a folder of drivers without those of pools."""
        found = list(Path("/usr/lib").glob("*/dpdk/pmds-*/librte_net_af_packet.so"))
        if not found:
            self.skipTest("DPDK has its drivers elsewhere")
        self.make_link(1500)
        drivers = self.folder / "drivers"
        drivers.mkdir()
        for name in ("net_af_packet", "net_ring", "bus_vdev", "bus_pci"):
            for path in found[0].parent.glob(f"librte_{name}.so*"):
                shutil.copy(path, drivers, follow_symlinks=False)
        hidden = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', drivers, found[0].parent]
        error = self.refused("net_af_packet,iface=far", before=hidden)
        self.assertIn("librte-mempool-ring", error)
        self.assertNotIn("memory", error)


if __name__ == "__main__":
    main()
