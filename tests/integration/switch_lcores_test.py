#!/usr/bin/env python3
"""millrace-switch on two lcores of DPDK, between network namespaces: net_af_packet with two queues, which the kernel fills by a hash of
addresses and ports, as a card's RSS does. Both lcores serve a job at the same time.

Takes the folder of the programs. Exits 77 (skipped, for ctest) where there are no namespaces, or no DPDK."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PROGRAM = str(Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin").resolve() / "millrace-switch")
TIMEOUT_S = 60
NEAR, FAR = f"mslc{os.getpid()}-near", f"mslc{os.getpid()}-far"
WINDOW, SLOTS = 40960, 32
JOBS = 6, 7  # of the first lcore and of the second


def command(*arguments, **options):
    return subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **options)


def inside(host, *arguments):
    return ["ip", "netns", "exec", host, *map(str, arguments)]


def cannot_run():
    """Why not; None where it can."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("ethtool"):
        return "it needs root, ip and ethtool"
    if "with DPDK" not in command(PROGRAM, "--version").stdout:
        return "this build has no DPDK"
    if command("ip", "netns", "add", NEAR).returncode != 0:
        return "network namespaces cannot be made here"
    command("ip", "netns", "del", NEAR)
    return None


class TwoLcores(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for host in (NEAR, FAR):
            self.addCleanup(command, "ip", "netns", "del", host)
            self.assertEqual(command("ip", "netns", "add", host).returncode, 0)
        for line in (f"-n {NEAR} link add near type veth peer name far netns {FAR}", f"-n {NEAR} addr add 10.78.0.2/24 dev near",
                     f"-n {NEAR} link set near up", f"-n {FAR} link set far up", f"-n {FAR} link set lo up"):
            made = command("ip", *line.split())
            self.assertEqual(made.returncode, 0, made.stderr)
        # Nobody fills in checksums between namespaces.
        command(*inside(NEAR, "ethtool", "-K", "near", "tx", "off"))
        key = self.folder / "bench.key"
        key.write_text("".join(f"{byte:02x}" for byte in range(32)) + "\n", encoding="utf-8")
        key.chmod(0o600)
        jobs = [{"name": f"bench {number}", "job": number, "key_file": "bench.key", "workers": 4, "window_indices": WINDOW, "slots": SLOTS}
                for number in JOBS]
        (self.folder / "jobs.json").write_text(json.dumps({"jobs": jobs}), encoding="utf-8")

    def start(self, *arguments):
        process = subprocess.Popen([*map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def status(self, address):
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
        said = command(*inside(FAR, sys.executable, "-c", program, f"http://{address}/status"))
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def serve_two_loads(self, device):
        """Both lcores' status after both have served a load at the same time."""
        switch = self.start(*inside(FAR, PROGRAM, "run", "--listen", "10.78.0.1:7700", "--jobs", self.folder / "jobs.json", "--pmd",
                                    device, "--lcores", 2, "--http", "127.0.0.1:0", "--json"))
        line = json.loads(switch.stdout.readline())
        self.assertEqual(line["event"], "listening", line)
        self.assertEqual(line["addresses"], ["10.78.0.1:7700"])
        loads = [self.start(*inside(NEAR, PROGRAM, "load", "--to", line["addresses"][0], "--job", number, "--from", "10.78.0.2:0", "--slots", SLOTS,
                                    "--window-indices", WINDOW, "--seconds", 2)) for number in JOBS]
        for load in loads:
            out, err = load.communicate(timeout=TIMEOUT_S)
            self.assertEqual(load.returncode, 0, err)
            self.assertGreater(json.loads(out)["turns"], SLOTS, "no slot went on")
        time.sleep(0.3)  # lanes say what they have counted ten times a second
        lcores = self.status(line["http"])["lcores"]
        switch.terminate()
        self.assertEqual(switch.wait(timeout=TIMEOUT_S), 0)
        for lcore in lcores:
            self.assertGreater(lcore["packets_in"], 4 * SLOTS)
            self.assertGreater(lcore["events"]["closed"], SLOTS)
            for fault in ("bad_mac", "replay", "wrong_binding", "malformed_payload", "stranger"):
                self.assertNotIn(fault, lcore["events"])
        return lcores

    def test_EachLcoreServesItsJobThroughAQueueOfItsOwn(self):
        self.serve_two_loads("net_af_packet,iface=far,qpairs=2")

    def test_ALcoreWithoutAQueueLivesOnWhatTheOtherPassesOn(self):
        self.serve_two_loads("net_af_packet,iface=far,qpairs=1")


if __name__ == "__main__":
    if reason := cannot_run():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()
