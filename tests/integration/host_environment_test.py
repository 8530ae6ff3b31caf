#!/usr/bin/env python3
"""Hosts as they are in the field: names with addresses of both families, few file descriptors, filters of system calls.

    host_environment_test.py FOLDER_OF_PROGRAMS REFUSE_CALLS [unittest arguments]

Names are made up by a mount over /etc/hosts in a namespace of its own: those tests skip where that cannot be had (root).
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

REFUSE_CALLS = sys.argv.pop(2) if len(sys.argv) > 2 else "build/dev/tests/integration/refuse_calls"

from commands import PROGRAMS, TIMEOUT_S, made_up_rows, millrace  # noqa: E402
from reserved_ports import ReservedPorts  # noqa: E402

HOSTS = "127.0.0.1 localhost both\n::1 localhost both\n127.0.0.1 four\n::1 six\n"
JOB = 31


def has_ipv6():
    return Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").exists() and \
        Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").read_text(encoding="ascii").strip() == "0"


class InFolder(unittest.TestCase):
    """Programs of one test, in a folder of its own."""

    before = ()  # of every command line: the program's environment

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "train.svm").write_text(made_up_rows(60, 7), encoding="utf-8")

    def start(self, program, *arguments, before=None, **more):
        under = self.before if before is None else before
        process = subprocess.Popen([*under, str(PROGRAMS / program), *map(str, arguments)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **more)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def first_line(self, process):
        line = process.stdout.readline()
        self.assertNotEqual(line, "", process.stderr.read() if process.poll() is not None else "no line")
        return json.loads(line)

    def serve(self, *flags, listen="tcp://127.0.0.1:0", http="127.0.0.1:0", **more):
        """Starts a shard; returns its first line, which it prints when it listens."""
        process = self.start("millrace-server", "--table", self.folder / "table", "--listen", listen, "--http", http, "--json", *flags,
                             **more)
        return process, self.first_line(process)

    def worker(self, servers, *flags, worker=0, workers=1, epochs=2, **more):
        return self.start("millrace", "train", "--train", self.folder / "train.svm", "--servers", servers, "--worker", worker, "--workers",
                          workers, "--epochs", epochs, "--batch", 10, "--json", *flags, **more)

    def ends_well(self, *processes):
        results = []
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            results.append(json.loads(out.strip().split("\n")[-1]))
        return results

    def stops(self, process):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, err)
        return err


class Names(InFolder):
    """ZeroMQ uses the first address of a name: Millrace tries them all."""

    @classmethod
    def setUpClass(cls):
        cls.hosts = tempfile.NamedTemporaryFile("w", suffix=".hosts")
        cls.hosts.write(HOSTS)
        cls.hosts.flush()
        cls.before = ("unshare", "-m", "sh", "-c", f'mount --bind {cls.hosts.name} /etc/hosts && exec "$@"', "sh")
        if subprocess.run([*cls.before, "true"], capture_output=True, check=False).returncode != 0:
            raise unittest.SkipTest("no namespace of mounts can be made: not root?")
        if not has_ipv6():
            raise unittest.SkipTest("this machine has no IPv6")

    @classmethod
    def tearDownClass(cls):
        cls.hosts.close()

    def test_AWorkerFindsAServerOfEitherFamilyByAnyName(self):
        for family in ("127.0.0.1", "[::1]"):
            _, line = self.serve(listen=f"tcp://{family}:0")
            port = line["address"].rsplit(":", 1)[1]
            names = ["localhost", "both", "four" if family[0] == "1" else "six"]
            for name in names:
                with self.subTest(family=family, name=name):
                    self.ends_well(self.worker(f"{name}:{port}", "--job", f"{name}-{family[0]}"))

    def test_AWorkerReportsAnUnknownHostName(self):
        worker = self.worker("nowhere.invalid:7600", "--connect-timeout", "1000ms")
        _, err = worker.communicate(timeout=TIMEOUT_S)
        self.assertEqual(worker.returncode, 4, err)
        self.assertIn("'nowhere.invalid' cannot be found", err)

    def test_AServerListensAndShowsItsStatusOnEveryAddressOfAName(self):
        ports = ReservedPorts(1)
        self.addCleanup(ports.close)
        at = f"tcp://both:{ports.numbers[0]}"
        _, line = self.serve("--insecure", "--http-insecure", "--advertise", at, listen=at, http="both:0")
        self.assertTrue(line["address"].startswith("tcp://both:"), line)
        port = line["address"].rsplit(":", 1)[1]
        http = line["http"].rsplit(":", 1)[1]
        for host in ("127.0.0.1", "[::1]", "localhost"):
            with self.subTest(host):
                self.ends_well(self.worker(f"{host}:{port}", "--job", f"by-{host[-2:]}"))
                status = self.start("millrace", "status", f"{host}:{http}", "--json")
                out, err = status.communicate(timeout=TIMEOUT_S)
                self.assertEqual(status.returncode, 0, err)
                self.assertEqual(len(json.loads(out)["shards"]), 1)

    def test_AServerRefusesANameThatIsLoopbackAlone(self):
        process = self.start("millrace-server", "--table", self.folder / "table", "--listen", "both:0", "--insecure")
        _, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 2, err)
        self.assertIn("which no other host reaches", err)
        doctor = self.start("millrace", "doctor", "--listen", "four:0", "--json")
        out, err = doctor.communicate(timeout=TIMEOUT_S)
        self.assertEqual(doctor.returncode, 13, err)
        check = next(check for check in json.loads(out)["checks"] if check["check"] == "listen")
        self.assertIn("four is 127.0.0.1 here", check["found"])

    def test_ShardsFindEachOtherByTheNamesThatTheyAdvertise(self):
        # Re-selection: shards ask each other for their thresholds in every step.
        ports = ReservedPorts(2)
        self.addCleanup(ports.close)
        lines = [self.serve("--shard", shard, "--shards", 2, "--advertise", f"tcp://both:{port}", listen=f"tcp://127.0.0.1:{port}")[1]
                 for shard, port in enumerate(ports.numbers)]
        servers = ",".join(line["address"].removeprefix("tcp://") for line in lines)
        self.assertIn("both:", servers)
        self.ends_well(*(self.worker(servers, "--select", "topk:0.5", "--reselect", "topk:0.5", worker=worker, workers=2)
                         for worker in range(2)))

    def test_AWorkerFindsASwitchOfEitherFamilyByItsName(self):
        key = self.folder / f"{JOB}.key"
        key.write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
        key.chmod(0o600)
        jobs = self.folder / "jobs.json"
        jobs.write_text(json.dumps({"jobs": [{"name": "train", "job": JOB, "key_file": str(key), "workers": 1, "window_indices": 64,
                                              "slots": 1}]}), encoding="utf-8")
        _, line = self.serve()
        for family in ("127.0.0.1", "[::1]"):
            with self.subTest(family):
                switch = self.start("millrace-switch", "run", "--listen", f"{family}:0", "--jobs", jobs, "--json")
                port = self.first_line(switch)["addresses"][0].rsplit(":", 1)[1]
                result, = self.ends_well(self.worker(
                    line["address"].removeprefix("tcp://"), "--job", f"switch-{family[0]}", "--path", "switch", "--switch-address", f"both:{port}", "--switch-job",
                    JOB, "--switch-key", key, "--switch-slots", 16, "--grid", "64:-12"))
                self.assertTrue(result["switch"]["at_switch"], result["switch"])
                self.assertGreater(result["switch"]["turns"], 0)
                self.end(switch)


class OpenFiles(InFolder):
    """A process that may open few files reports it, and stays alive."""

    @staticmethod
    def limit(soft, hard=None):
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard or soft))

    def test_TheSoftLimitIsRaisedAtTheStart(self):
        process, line = self.serve(preexec_fn=self.limit(128, 4096))
        limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="ascii")
        row = next(row for row in limits.split("\n") if row.startswith("Max open files"))
        self.assertEqual(row.split()[3:5], ["4096", "4096"])
        self.ends_well(self.worker(line["address"].removeprefix("tcp://"), preexec_fn=self.limit(40, 4096)))
        said = self.stops(process)
        self.assertIn("may open 4096 files: enough for", said)
        self.assertIn("--jobs-max 64", said)

    def test_AServerAndASwitchThatCannotServeEndWithTheReason(self):
        server = self.start("millrace-server", "--table", self.folder / "table", "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0",
                            preexec_fn=self.limit(30))
        _, err = server.communicate(timeout=TIMEOUT_S)
        self.assertEqual(server.returncode, 6, err)
        self.assertIn("may open 30 files, and needs", err)
        jobs = self.folder / "jobs.json"
        jobs.write_text('{"jobs": []}', encoding="utf-8")
        switch = self.start("millrace-switch", "run", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--jobs", jobs,
                            preexec_fn=self.limit(30))
        _, err = switch.communicate(timeout=TIMEOUT_S)
        self.assertEqual(switch.returncode, 6, err)
        self.assertIn("may open 30 files", err)

    def test_AWorkerThatCannotReachItsShardsSaysWhy(self):
        worker = self.worker(",".join(f"127.0.0.1:{port}" for port in range(20000, 20020)), preexec_fn=self.limit(100))
        _, err = worker.communicate(timeout=TIMEOUT_S)
        self.assertNotIn(worker.returncode, (0, -6), err)
        self.assertIn("may open 100 files", err)
        self.assertIn("20 shards", err)

    def test_WorkersBeyondTheDescriptorsAreRefusedAndTheOthersTrain(self):
        process, line = self.serve(preexec_fn=self.limit(112))
        servers = line["address"].removeprefix("tcp://")
        crowd = [self.worker(servers, "--start-timeout", "60000ms", worker=worker, workers=16) for worker in range(16)]
        refused = []
        deadline = time.monotonic() + TIMEOUT_S
        while not refused and time.monotonic() < deadline:
            refused = [one for one in crowd if one.poll() is not None]
            time.sleep(0.05)
        for one in refused:
            _, err = one.communicate(timeout=TIMEOUT_S)
            self.assertIn("may open 112 files", err)
            self.assertIn("takes no more workers", err)
        with urllib.request.urlopen(f"http://{line['http']}/healthz", timeout=TIMEOUT_S) as answer:
            self.assertEqual(answer.status, 200)
        for one in crowd:
            self.end(one)
        self.assertIn("takes no more workers", self.stops(process))

    def test_AFloodOfConnectionsLeavesHealthAndAnIdleProcessor(self):
        import socket
        process, line = self.serve(preexec_fn=self.limit(200))
        port = int(line["address"].rsplit(":", 1)[1])
        flood = []
        self.addCleanup(lambda: [one.close() for one in flood])
        for _ in range(300):
            flood.append(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
        before = self.cpu_seconds(process.pid)
        began = time.monotonic()
        for _ in range(10):
            with urllib.request.urlopen(f"http://{line['http']}/healthz", timeout=TIMEOUT_S) as answer:
                self.assertEqual(answer.status, 200)
            time.sleep(0.1)
        spent = (self.cpu_seconds(process.pid) - before) / (time.monotonic() - began)
        self.assertLess(spent, 0.2, "a listener that cannot accept must not take a core")

    @staticmethod
    def cpu_seconds(pid):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class RefusedCalls(InFolder):
    """Filters of system calls that an operator may set: optional calls may be refused."""

    def test_ServersAndWorkersTrainUnderThem(self):
        for error in ("EPERM", "ENOSYS"):
            for calls in ("sched_setscheduler", "@resources", "pidfd_open", "madvise,memfd_create,process_vm_readv", "@resources,pidfd_open"):
                with self.subTest(error=error, calls=calls):
                    under = (REFUSE_CALLS, error, calls)
                    process, line = self.serve(before=under)
                    self.ends_well(self.worker(line["address"].removeprefix("tcp://"), before=under))
                    self.stops(process)

    def test_ASwitchOnDpdkNamesTheCallThatItNeeds(self):
        jobs = self.folder / "jobs.json"
        jobs.write_text('{"jobs": []}', encoding="utf-8")
        switch = self.start("millrace-switch", "run", "--listen", "10.0.0.1:7700", "--jobs", jobs, "--pmd", "net_null", "--json",
                            before=(REFUSE_CALLS, "EPERM", "sched_setaffinity"))
        out, err = switch.communicate(timeout=TIMEOUT_S)
        if switch.returncode == 5:
            self.skipTest("built without DPDK")
        self.assertEqual(switch.returncode, 6, err)
        self.assertIn("must let sched_setaffinity through", err + out)

    def test_AClusterOfChildrenStartsAndEndsUnderThem(self):
        for error in ("EPERM", "ENOSYS"):
            with self.subTest(error):
                serve = self.start("millrace", "serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json",
                                   before=(REFUSE_CALLS, error, "@resources,pidfd_open"))
                self.ends_well(self.worker(self.first_line(serve)["servers"]))
                self.stops(serve)

    def test_ASwitchRunsUnderThem(self):
        jobs = self.folder / "jobs.json"
        jobs.write_text('{"jobs": []}', encoding="utf-8")
        for error in ("EPERM", "ENOSYS"):
            with self.subTest(error):
                switch = self.start("millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", jobs, "--json",
                                    before=(REFUSE_CALLS, error, "@resources"))
                self.first_line(switch)
                self.stops(switch)

    def test_AProgramOfTheLibraryReportsTheRefusedCall(self):
        example = subprocess.run([REFUSE_CALLS, "EPERM", "sched_setscheduler", str(PROGRAMS / "millrace_example_training"),
                                  "tcp://127.0.0.1:1", "0", "1"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertGreater(example.returncode, 0, "an error, not a signal: " + example.stderr)
        self.assertIn("sched_setscheduler", example.stdout + example.stderr)
        self.assertIn("filter", example.stdout + example.stderr)


class Crashes(InFolder):
    """The remains of a crash do not block a later run."""

    def test_AFolderThatAKilledServeLeftIsRemovedByTheNextStart(self):
        place = self.folder / "tmp"
        place.mkdir()
        environment = {**os.environ, "TMPDIR": str(place)}

        def serve():
            process = self.start("millrace", "serve", "--shards", 1, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", env=environment)
            self.first_line(process)
            return process
        killed = serve()
        left = list(place.iterdir())
        self.assertEqual(len(left), 1)
        killed.kill()
        killed.communicate(timeout=TIMEOUT_S)  # its shards hold its pipes, and end with it
        beside = serve()
        self.assertFalse(left[0].exists())
        self.stops(beside)
        self.assertEqual(list(place.iterdir()), [])

    def test_TheFirstRestartAfterACrashOfEverythingTrains(self):
        # All are killed, the membership table stays: the job's name is free once its workers have been silent for 10 s.
        server, line = self.serve()
        servers = line["address"].removeprefix("tcp://")
        for worker in [self.worker(servers, "--compute-time", "5ms", epochs=100000, worker=worker, workers=2) for worker in range(2)]:
            deadline = time.monotonic() + TIMEOUT_S
            while self.steps(line) == 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            worker.kill()
        server.kill()
        self.end(server)
        _, line = self.serve()
        self.ends_well(*(self.worker(line["address"].removeprefix("tcp://"), epochs=4, worker=worker, workers=2) for worker in range(2)))

    @staticmethod
    def steps(line):
        with urllib.request.urlopen(f"http://{line['http']}/status", timeout=TIMEOUT_S) as answer:
            jobs = json.load(answer)["jobs"]
        return jobs[0]["steps_decided"] if jobs else 0


if __name__ == "__main__":
    unittest.main()
