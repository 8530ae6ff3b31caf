#!/usr/bin/env python3
"""deploy/netlab.sh: links have the rate that was asked for, and nothing stays behind.

Exits 77 (skipped, for ctest) where network namespaces cannot be made."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

NETLAB = str(Path(__file__).resolve().parents[2] / "deploy/netlab.sh")
PREFIX = f"nt{os.getpid() % 100000}"
BURST_BYTES = 256 * 1024

RECEIVE = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
peer, _ = server.accept()
count = 0
while chunk := peer.recv(1 << 16):
    count += len(chunk)
print(count, time.monotonic(), flush=True)
"""
SEND = """
import socket, sys, time
print(time.monotonic())  # the hosts have one clock
with socket.create_connection((sys.argv[1], 7000), timeout=120) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
"""


def netlab(*arguments):
    return subprocess.run([NETLAB, *arguments], capture_output=True, text=True, timeout=240, check=False)


def lab_namespaces(prefix):
    """The namespaces of labs whose names match the pattern `prefix`."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.split("\n") if re.match(f"{prefix}-", line)]


def queueing(namespace, interface):
    """The queueing disciplines of an interface, as tc describes them."""
    shown = subprocess.run(["tc", "-j", "-n", namespace, "qdisc", "show", "dev", interface], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)


def transfer_mbit_s(sender, receiver, count):
    """Mbit/s of `count` bytes from one host to another, the first bucket's worth not counted."""
    with subprocess.Popen([NETLAB, "exec", PREFIX, str(receiver), "--", sys.executable, "-c", RECEIVE],
                          stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        sent = netlab("exec", PREFIX, str(sender), "--", sys.executable, "-c", SEND, f"10.77.0.{receiver}", str(count))
        received, ended = process.stdout.readline().split()
    if sent.returncode != 0 or int(received) != count:
        raise AssertionError(f"sent {count}, received {received}: {sent.stderr}")
    return (count - BURST_BYTES) * 8 / 1e6 / (float(ended) - float(sent.stdout))


class Netlab(unittest.TestCase):
    def setUp(self):
        self.addCleanup(netlab, "down", PREFIX)

    def test_EveryDirectionOfALinkHasTheRateAskedFor(self):
        up = netlab("up", PREFIX, "1", "1gbit", "1")
        self.assertEqual(up.returncode, 0, up.stderr)
        bits_per_byte = 8
        for namespace, interface in ((f"{PREFIX}-1", "eth0"), (f"{PREFIX}-switch", f"{PREFIX}-1")):
            (bucket,) = queueing(namespace, interface)
            self.assertEqual((bucket["kind"], bucket["options"]["rate"] * bits_per_byte), ("tbf", 1_000_000_000))
            self.assertAlmostEqual(bucket["options"]["burst"], BURST_BYTES, delta=BURST_BYTES // 1000)  # the kernel counts in time
        for namespace, interface in ((f"{PREFIX}-2", "eth0"), (f"{PREFIX}-switch", f"{PREFIX}-2")):
            self.assertNotIn("tbf", [discipline["kind"] for discipline in queueing(namespace, interface)])

    def test_HostsReachEachOtherAndNotAboveTheRateAskedFor(self):
        # No lower limit: a busy machine answers its timers late.
        up = netlab("up", PREFIX, "2", "100mbit")
        self.assertEqual(up.returncode, 0, up.stderr)
        self.assertLess(transfer_mbit_s(1, 2, 8_000_000), 101)

    def test_HostsUseTheCongestionControlOfTheLab(self):
        up = netlab("up", PREFIX, "1", "1gbit")
        self.assertEqual(up.returncode, 0, up.stderr)
        chosen = netlab("exec", PREFIX, "1", "--", "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
        self.assertEqual(chosen.stdout, "reno\n", up.stderr)

    def test_DownRemovesEverythingAndMayBeRepeated(self):
        netlab("up", PREFIX, "3", "1gbit")
        self.assertEqual(len(lab_namespaces(PREFIX)), 4)
        for _ in range(2):
            self.assertEqual(netlab("down", PREFIX).returncode, 0)
            self.assertEqual(lab_namespaces(PREFIX), [])

    def test_NetlabReportsAFailedSetupAndLeavesNoNamespace(self):
        # A bucket that tc does not take: found out when the first host is half made.
        broken = {**os.environ, "NETLAB_BURST": "bad"}
        for arguments in (["up", PREFIX, "2", "1gbit"], ["run", "2", "1gbit", "--", "true"], ["check"]):
            with self.subTest(arguments=arguments):
                ended = subprocess.run([NETLAB, *arguments], capture_output=True, text=True, timeout=240, check=False, env=broken)
                self.assertEqual(ended.returncode, 1, ended.stderr)
                self.assertIn("could not set up", ended.stderr)
                self.assertEqual(lab_namespaces(PREFIX), [])

    def test_AnInterruptionAtAnyMomentOfUpLeavesNothing(self):
        # Again and again until the script ends: while it makes hosts, and while it removes them. The pauses grow, so that
        # on a busy machine too a fork gets through.
        script = subprocess.Popen([NETLAB, "up", PREFIX, "16", "1gbit"], stderr=subprocess.PIPE, text=True, start_new_session=True)
        while not lab_namespaces(PREFIX):
            self.assertIsNone(script.poll())
        pause_s = 0.01
        while script.poll() is None:
            os.killpg(script.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                script.wait(timeout=pause_s)
            pause_s *= 1.1
        _, err = script.communicate()
        self.assertEqual((script.returncode, lab_namespaces(PREFIX)), (130, []), err)

    def test_UpTwiceIsRefusedAndLeavesTheFirst(self):
        netlab("up", PREFIX, "1", "1gbit")
        self.assertEqual(netlab("up", PREFIX, "1", "1gbit").returncode, 1)
        self.assertEqual(len(lab_namespaces(PREFIX)), 2)

    def test_LinksThatLosePacketsCarryThemOneByOneOrInBursts(self):
        netlab("up", PREFIX, "1", "none")
        for arguments, segments, verdict in ((["0.5"], 1, "drop"), (["0.5", "bursts"], 65535, "drop"), (["single"], 1, "accept"), (["0"], 65535, "")):
            with self.subTest(arguments=arguments):
                done = netlab("lose", PREFIX, *arguments)
                if done.returncode == 3:
                    self.skipTest(done.stderr.strip())
                self.assertEqual(done.returncode, 0, done.stderr)
                link = subprocess.run(["ip", "-d", "-n", PREFIX + "-switch", "link", "show", PREFIX + "-1"], capture_output=True, text=True, check=True)
                self.assertRegex(link.stdout, rf"gso_max_segs {segments}\b")
                rules = netlab("exec", PREFIX, "1", "--", "nft", "list", "ruleset").stdout
                self.assertEqual(verdict in rules if verdict else rules == "", True, rules)

    def test_HelpSaysWhatExitCodesMean(self):
        self.assertIn("Exit codes: ", netlab("--help").stdout)

    def test_TheMachineItselfKeepsItsInterfaces(self):
        before = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        netlab("up", PREFIX, "2", "1gbit")
        self.assertEqual(subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout, before)

    def test_RunPassesTheExitCodeOnAndCleansUp(self):
        script = 'test "$NETLAB_HOSTS" = 2 && echo "$NETLAB_PREFIX" && exit 9'
        run = netlab("run", "2", "none", "--", "bash", "-c", script)
        self.assertEqual(run.returncode, 9, run.stderr)
        self.assertEqual(lab_namespaces(run.stdout.strip()), [])

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun")
    def test_MpirunPutsEachRankOnAHostOfItsOwnAndCleansUp(self):
        before = lab_namespaces(r"lab\d+")
        script = 'echo "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname) $(ip -4 -o addr show eth0)"; exit $OMPI_COMM_WORLD_RANK'
        ended = netlab("mpirun", "--ranks", "3", "--link-rate", "1gbit", "--", "bash", "-c", script)
        for rank in range(3):
            self.assertRegex(ended.stdout, f"{rank} of 3 on host{rank + 1} .* 10.77.0.{rank + 1}/24", ended.stderr)
        self.assertNotEqual(ended.returncode, 0)
        self.assertEqual(lab_namespaces(r"lab\d+"), before)

    def test_MpirunWithoutACommandOrRanksIsRefused(self):
        for arguments in (["--ranks", "2"], ["--", "true"], ["--ranks", "none", "--", "true"], ["--ranks", "2", "--link-rate", "fast", "--", "true"]):
            self.assertEqual(netlab("mpirun", *arguments).returncode, 2, arguments)

    def test_ShapesThatCannotBeAreRefused(self):
        for arguments in (["up", "UPPER", "2", "1gbit"], ["up", PREFIX, "0", "1gbit"], ["up", PREFIX, "2", "fast"], ["up", PREFIX, "2", "1gbit", "0", "900"],
                          ["lose", PREFIX, "0.1", "all"], ["lose", PREFIX, "2"], ["lose", PREFIX, "single", "bursts"],
                          ["lose", PREFIX, "0.1", "bursts", "all"], ["what"]):
            self.assertEqual(netlab(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    able = netlab("check")
    if able.returncode != 0:
        print("skipped: " + able.stderr.strip())
        sys.exit(77)
    unittest.main()
