#!/usr/bin/env python3
"""millrace-switch as a process: starts, answers /healthz, /metrics and /status, takes its jobs again, ends in order.
Reports the error where it cannot start.

Takes the folder of the programs as its first argument."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

PROGRAM = str(Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin").resolve() / "millrace-switch")
TIMEOUT_S = 240
HEADER_AND_MAC_BYTES = 80
JOB = {"name": "resnet", "job": 7, "key_file": "resnet.key", "role": "reduce", "workers": 4, "window_indices": 16384, "slots": 16}


BENCH = PROGRAM + "-bench"


def run(*arguments, program=PROGRAM):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class Switch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        key = self.folder / "resnet.key"
        key.write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
        key.chmod(0o600)
        self.jobs = self.write_jobs([JOB])

    def write_jobs(self, jobs):
        path = self.folder / "jobs.json"
        path.write_text(json.dumps({"jobs": jobs}), encoding="utf-8")
        return path

    def start(self, *arguments, listen="127.0.0.1:0", **environment):
        """The process and its start line."""
        flags = ["run", "--listen", listen, "--jobs", self.jobs, "--http", "127.0.0.1:0", "--json", *arguments]
        process = subprocess.Popen([PROGRAM, *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=os.environ | environment)
        self.addCleanup(self.end, process)
        return process, json.loads(process.stdout.readline())

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def get(self, line, path):
        with urllib.request.urlopen(f"http://{line['http']}{path}", timeout=TIMEOUT_S) as answer:
            return answer.read().decode()

    def status_when(self, line, holds):
        """Returns /status, as soon as `holds` accepts it."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            status = json.loads(self.get(line, "/status"))
            if holds(status):
                return status
            if time.monotonic() > deadline:
                self.fail(status)

    def wait_for_report(self, line):
        """Returns once each lcore has taken the changes that it was given before this call, and reported."""
        asked = before = time.monotonic()
        while not all(before - (lcore["seen_ms"] + 1) / 1000 > asked for lcore in json.loads(self.get(line, "/status"))["lcores"]):
            before = time.monotonic()
            self.assertLess(before, asked + TIMEOUT_S)

    def refused(self, code, sentence, *arguments):
        """Must end with `code` and one line on stderr that holds `sentence`."""
        ended = run(*arguments)
        self.assertEqual(ended.returncode, code, ended.stderr)
        self.assertIn(sentence, ended.stderr)
        self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)

    def test_ServesUntilSigterm(self):
        process, line = self.start()
        self.assertEqual(line["event"], "listening")
        self.assertEqual(self.get(line, "/healthz").strip(), "ok")
        status = self.status_when(line, lambda status: status["jobs"][0]["slots"] == 16)
        self.assertEqual(status["pmd"], "kernel")
        self.assertEqual(status["jobs"][0]["name"], "resnet")
        self.assertEqual(status["lcores"][0]["address"], line["addresses"][0])
        self.assertIn('millrace_switch_job_slots{job="resnet"} 16', self.get(line, "/metrics"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=TIMEOUT_S), 0)
        self.assertEqual(process.stderr.read(), "")

    def test_AJobOfSeveralLanesHasSlotsOnAsManyLcores(self):
        self.jobs = self.write_jobs([JOB | {"lanes": 2}])
        _, line = self.start("--lcores", "2", "--slots-max", "8")
        status = self.status_when(line, lambda status: status["jobs"][0]["slots"] == 16)
        self.assertEqual(status["jobs"][0]["lanes"], 2)
        self.assertEqual(status["slots_max"], 16)
        self.jobs = self.write_jobs([JOB | {"lanes": 3}])
        self.refused(2, '"slots" must be a multiple of "lanes"', "run", "--listen", "127.0.0.1:0", "--jobs", self.jobs)
        self.jobs = self.write_jobs([JOB | {"lanes": 4}])
        self.refused(2, "2 jobs (or lanes of one) on lcore 0, and --jobs-max is 1", "run", "--listen", "127.0.0.1:0", "--jobs", self.jobs,
                     "--lcores", "2", "--jobs-max", "1")

    def test_EndsOnSigintToo(self):
        process, _ = self.start()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=TIMEOUT_S), 0)

    def test_HostilePacketsAreCountedByReason(self):
        _, line = self.start()
        host, port = line["addresses"][0].rsplit(":", 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"short", (host, int(port)))
            sender.sendto(bytes(100), (host, int(port)))
            sender.sendto(bytes(2000), (host, int(port)))
        status = self.status_when(line, lambda status: status["lcores"][0]["events"].get("wrong_magic", 0) == 1
                                  and status["lcores"][0]["dropped"].get("too_long", 0) == 1)
        self.assertEqual(status["lcores"][0]["events"]["too_short"], 1)
        self.assertEqual(status["lcores"][0]["packets_in"], 2)
        metrics = self.get(line, "/metrics")
        self.assertIn('millrace_switch_port_dropped_total{lcore="0",reason="too_long"} 1', metrics)
        self.assertIn('millrace_switch_events_total{event="wrong_magic",lcore="0"} 1', metrics)

    def metrics_of(self, line, job):
        """The job's series, by name and what other label they have."""
        series = {}
        for name, labels, value in re.findall(r"^millrace_switch_job_(\w+){(.*)} (\S+)$", self.get(line, "/metrics"), re.MULTILINE):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if labels.pop("job") == job:
                series[name, *labels.values()] = float(value)
        return series

    def test_PacketsAreCountedForTheirJobAlone(self):
        key = self.folder / "load.key"
        key.write_text(bytes(range(32)).hex() + "\n", encoding="utf-8")
        key.chmod(0o600)
        self.write_jobs([JOB | {"name": "load", "key_file": "load.key", "window_indices": 6400, "slots": 8}, JOB | {"job": 8}])
        _, line = self.start()
        address = line["addresses"][0]
        load = run("load", "--to", address, "--workers", 4, "--switch-slots", 8, "--window-indices", 6400, "--duration", "0.5s", program=BENCH)
        self.assertEqual(load.returncode, 0, load.stderr)
        load = json.loads(load.stdout)
        # A packet of no job comes last: when it is counted, all before it are.
        host, port = address.rsplit(":", 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"short", (host, int(port)))
        status = self.status_when(line, lambda status: status["lcores"][0]["events"].get("too_short", 0) == 1)
        lcore, (loaded, idle) = status["lcores"][0], status["jobs"]
        self.assertEqual((loaded["name"], idle["name"]), ("load", "resnet"))
        self.assertEqual(loaded["packets_in"], lcore["packets_in"] - 1)
        self.assertEqual(loaded["bytes_in"], lcore["bytes_in"] - len(b"short"))
        self.assertEqual((loaded["packets_out"], loaded["bytes_out"]), (lcore["packets_out"], lcore["bytes_out"]))
        self.assertGreater(loaded["packets_in"], 4 * load["turns"], "a contribution of each worker, and handshakes")
        self.assertGreater(loaded["packets_out"], 4 * load["turns"])
        for direction in ("in", "out"):
            self.assertGreaterEqual(loaded[f"bytes_{direction}"], HEADER_AND_MAC_BYTES * loaded[f"packets_{direction}"])
            self.assertLessEqual(loaded[f"bytes_{direction}"], 1472 * loaded[f"packets_{direction}"])
        again = ("duplicate", "previous", "current_closed")
        self.assertEqual(loaded["retransmissions"], sum(loaded["events"].get(event, 0) for event in again))
        self.assertLessEqual(loaded["slots_in_use"], 8)
        for count in ("packets_in", "packets_out", "bytes_in", "bytes_out", "retransmissions", "slots_in_use"):
            self.assertEqual(idle[count], 0, count)
        metrics = self.metrics_of(line, "load")
        for direction in ("in", "out"):
            self.assertEqual(metrics["packets_total", direction], loaded[f"packets_{direction}"])
            self.assertEqual(metrics["bytes_total", direction], loaded[f"bytes_{direction}"])
        self.assertEqual(metrics.get(("retransmissions_total",), 0), loaded["retransmissions"])
        self.assertLessEqual(metrics["slots_in_use",], metrics["slots",])
        counted = {(f"{what}_total", way): 0 for what in ("packets", "bytes") for way in ("in", "out")} | {("retransmissions_total",): 0}
        self.assertEqual(self.metrics_of(line, "resnet"), counted | {("slots",): 16, ("slots_in_use",): 0, ("workers",): 4})

    def test_SeveralLcoresHaveOneAddressAndAJobEach(self):
        key = self.folder / "bench.key"
        key.write_text("".join(f"{byte:02x}" for byte in range(32)) + "\n", encoding="utf-8")
        key.chmod(0o600)
        self.write_jobs([JOB | {"name": f"bench {number}", "job": number, "key_file": "bench.key", "workers": 4, "window_indices": 6400, "slots": 8}
                         for number in (6, 7)])
        process, line = self.start("--lcores", "2")
        self.assertEqual(len(line["addresses"]), 1)
        for number in (6, 7):
            load = subprocess.run([BENCH, "load", "--to", line["addresses"][0], "--switch-job", str(number), "--switch-slots", "8", "--window-indices", "6400",
                                   "--duration", "0.3s"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual(load.returncode, 0, load.stderr)
            self.assertGreater(json.loads(load.stdout)["turns"], 8)
        status = self.status_when(line, lambda status: all(lcore["events"].get("closed", 0) > 8 for lcore in status["lcores"]))
        for job in status["jobs"]:
            self.assertEqual((job["phase"], job["slots"]), ("open", 8))
        for lcore in status["lcores"]:
            self.assertNotIn("wrong_job", lcore["events"])
        second = subprocess.run([PROGRAM, "run", "--listen", line["addresses"][0], "--jobs", self.jobs, "--lcores", "2"], capture_output=True, text=True,
                                timeout=TIMEOUT_S, check=False)
        self.assertEqual(second.returncode, 6, "a shared port is in use all the same")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=TIMEOUT_S), 0)

    def test_SighupReloadsTheJobsFile(self):
        process, line = self.start("--quiet", "--window-indices-max", "16384")
        self.write_jobs([JOB | {"slots": 32}, JOB | {"name": "bert", "job": 8}])
        process.send_signal(signal.SIGHUP)
        status = self.status_when(line, lambda status: [job["slots"] for job in status["jobs"]] == [32, 16])
        self.assertEqual(status["slots"], 48)
        # The last two are beyond this switch's limits, which the list itself does not know.
        for wrong in ({"slots": 0}, {"racks": [[0, 1], [1, 2]]}, {"window_indices": 32768}, {"packet_bytes": 8972}):
            self.write_jobs([JOB | wrong])
            process.send_signal(signal.SIGHUP)
            sentence = process.stderr.readline()
            self.assertRegex(sentence, "jobs.json: .*; the jobs stay as they are")
        self.wait_for_report(line)
        self.assertEqual([job["slots"] for job in json.loads(self.get(line, "/status"))["jobs"]], [32, 16])

    @unittest.skipIf("asan" in PROGRAM or "tsan" in PROGRAM, "sanitizers take more address space than any limit")
    def test_AJobWithoutMemoryLeavesTheOthersAlone(self):
        process, line = self.start("--quiet", "--slots-max", "144", "--packet-bytes-max", "8972")
        self.status_when(line, lambda status: status["jobs"][0]["slots"] == 16)
        taken = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.prlimit(process.pid, resource.RLIMIT_AS, (taken + (1 << 29), taken + (1 << 29)))
        large = JOB | {"name": "large", "job": 8, "workers": 64, "slots": 128, "packet_bytes": 8972, "racks": [[at] for at in range(64)]}
        self.write_jobs([JOB, large])
        process.send_signal(signal.SIGHUP)
        self.assertRegex(process.stderr.readline(), "job 'large': there is no memory .*; the jobs stay as they are")
        self.wait_for_report(line)
        status = json.loads(self.get(line, "/status"))
        self.assertEqual([(job["name"], job["slots"]) for job in status["jobs"]], [("resnet", 16)])

    @unittest.skipIf("asan" in PROGRAM or "tsan" in PROGRAM, "sanitizers take more address space than any limit")
    def test_AStartWithoutMemoryNamesTheLimits(self):
        ended = subprocess.run([PROGRAM, "run", "--listen", "127.0.0.1:0", "--jobs", self.jobs, "--slots-max", "65535"], capture_output=True,
                               text=True, timeout=TIMEOUT_S, check=False,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("there is no memory for 65535 slots of 65536 indices on each of 1 lcores: fewer --slots-max", ended.stderr)

    def test_TheSwitchNotifiesItsServiceManagerOfItsState(self):
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.settimeout(TIMEOUT_S)
        manager.bind(str(self.folder / "notify"))
        process, line = self.start(NOTIFY_SOCKET=str(self.folder / "notify"), WATCHDOG_USEC="200000")

        def next_state():
            datagram = b"WATCHDOG=1"
            while datagram == b"WATCHDOG=1":
                datagram = manager.recv(4096)
            return datagram.decode()

        self.assertEqual(next_state(), "READY=1\nSTATUS=serving")
        self.assertEqual(manager.recv(4096), b"WATCHDOG=1")
        self.assertEqual(self.get(line, "/readyz"), "ready\n")
        process.send_signal(signal.SIGHUP)
        self.assertRegex(next_state(), r"\ARELOADING=1\nMONOTONIC_USEC=\d+\Z")
        self.assertEqual(next_state(), "READY=1\nSTATUS=serving")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(next_state(), "STOPPING=1\nSTATUS=shutting down")
        self.assertEqual(process.wait(timeout=TIMEOUT_S), 0)

    def test_AJobBeyondTheSlotLimitIsReportedAndGetsNone(self):
        self.write_jobs([JOB, JOB | {"name": "bert", "job": 8}])
        process, line = self.start("--slots-max", "16")
        self.assertIn("job 'bert'", process.stderr.readline())
        self.status_when(line, lambda status: [job["slots"] for job in status["jobs"]] == [16, 0])

    def test_APortInUseIsReported(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.refused(6, f"cannot listen on UDP {address}", "run", "--listen", address, "--jobs", self.jobs)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused(6, "--http", "run", "--listen", "127.0.0.1:0", "--jobs", self.jobs, "--http",
                         f"127.0.0.1:{taken.getsockname()[1]}")

    def test_AnInvalidJobsFileIsRefused(self):
        self.refused(6, "none.json", "run", "--jobs", self.folder / "none.json")
        self.write_jobs([JOB | {"workers": 65}])
        self.refused(2, "job 'resnet' \"workers\" must be a number from 1 to 64", "run", "--listen", "127.0.0.1:0", "--jobs", self.jobs)
        (self.folder / "resnet.key").chmod(0o644)
        self.write_jobs([JOB])
        self.refused(2, "chmod", "run", "--listen", "127.0.0.1:0", "--jobs", self.jobs)

    def test_InvalidFlagsAreRefused(self):
        self.refused(2, "--frobnicate", "run", "--jobs", self.jobs, "--frobnicate")
        self.refused(2, "--jobs", "run")
        self.refused(2, "subcommand")

    def test_AFailedStartIsJsonWhereJsonWasAskedFor(self):
        ended = run("run", "--jobs", self.folder / "none.json", "--json")
        self.assertEqual(ended.returncode, 6)
        line = json.loads(ended.stdout)
        self.assertEqual(line["event"], "failed")
        self.assertEqual(line["code"], "io")

    def test_BenchChecksItsSums(self):
        ended = run("traffic", "--pmd", "memory", "--packets", "1000", "--repeats", "2", "--switch-slots", "8", "--window-indices", "6400", "--json", program=BENCH)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)
        self.assertEqual(report["turns_checked"], 2 * (1000 // 32) * 8)
        self.assertGreater(report["gbit_s"], 0)
        self.assertGreater(report["read_gbit_s"], 0)

    def test_BenchOverDpdkChecksItsSums(self):
        ended = run("traffic", "--packets", "1000", "--repeats", "1", "--switch-slots", "8", "--window-indices", "6400", "--json", program=BENCH)
        if ended.returncode in (5, 6):
            self.skipTest(ended.stderr.strip().split("\n")[-1])
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(json.loads(ended.stdout)["turns_checked"], (1000 // 32) * 8)

    def test_AMissingDriverIsReported(self):
        ended = run("run", "--listen", "10.0.0.1:7700", "--jobs", self.jobs, "--pmd", "net_nothing")
        if ended.returncode == 5:
            self.skipTest(ended.stderr.strip())
        # Some versions start without the device, some do not start.
        self.assertIn(ended.returncode, (2, 6), ended.stderr)
        self.assertIn("DPDK", ended.stderr.strip().split("\n")[-1])

    def test_AFloodOfFramesThatAreNoneIsCounted(self):
        # net_null gives frames of zeros without end.
        process, line = self.start("--pmd", "net_null", listen="10.0.0.1:7700")
        if line["event"] == "failed":
            self.assertIn(line["code"], ("unsupported", "io"))
            self.skipTest(line["error"])
        status = self.status_when(line, lambda status: sum(status["lcores"][0]["dropped"].values()) > 100_000)
        self.assertEqual(status["lcores"][0]["packets_in"], 0)
        self.assertEqual(self.get(line, "/healthz").strip(), "ok")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=TIMEOUT_S), 0)


if __name__ == "__main__":
    unittest.main()
