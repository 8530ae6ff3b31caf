"""Common parts of the tests of `millrace-switch` on devices of DPDK: a veth pair between two network namespaces, jobs
for both of two lcores, and processes that end with their test.

Takes the folder of the programs off the front of the command line."""

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
BENCH = PROGRAM + "-bench"
TIMEOUT_S = 240
NEAR, FAR = f"mswd{os.getpid()}-near", f"mswd{os.getpid()}-far"
WINDOW, SLOTS = 40960, 32
JOBS = 6, 7  # of the first lcore and of the second


def command(*arguments):
    return subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


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


def main():
    if reason := cannot_run():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()


class OnDevice(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        key = self.folder / "bench.key"
        key.write_text("".join(f"{byte:02x}" for byte in range(32)) + "\n", encoding="utf-8")
        key.chmod(0o600)

    def write_jobs(self, window=WINDOW, **fields):
        jobs = [{"name": f"bench {number}", "job": number, "key_file": "bench.key", "workers": 4, "window_indices": window,
                 "slots": SLOTS, **fields} for number in JOBS]
        (self.folder / "jobs.json").write_text(json.dumps({"jobs": jobs}), encoding="utf-8")

    def make_link(self, mtu=1500):
        for host in (NEAR, FAR):
            self.addCleanup(command, "ip", "netns", "del", host)
            self.assertEqual(command("ip", "netns", "add", host).returncode, 0)
        for line in (f"-n {NEAR} link add near mtu {mtu} type veth peer name far mtu {mtu} netns {FAR}",
                     f"-n {NEAR} addr add 10.78.0.2/24 dev near", f"-n {NEAR} link set near up", f"-n {FAR} link set far up",
                     f"-n {FAR} link set lo up"):
            made = command("ip", *line.split())
            self.assertEqual(made.returncode, 0, made.stderr)
        # No device fills in checksums between namespaces.
        command(*inside(NEAR, "ethtool", "-K", "near", "tx", "off"))

    def start(self, *arguments):
        process = subprocess.Popen([*map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def status(self, address):
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=120).read().decode())"
        said = command(*inside(FAR, sys.executable, "-c", program, f"http://{address}/status"))
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def lcores_after_a_load(self, address):
        """Waits until every lcore has reported a load. They report ten times a second, or later on a busy machine."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            lcores = self.status(address)["lcores"]
            if all(lcore["packets_in"] > 4 * SLOTS and lcore["events"].get("closed", 0) > SLOTS for lcore in lcores):
                return lcores
            self.assertLess(time.monotonic(), deadline, lcores)
            time.sleep(0.05)
