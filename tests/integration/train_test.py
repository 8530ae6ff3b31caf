#!/usr/bin/env python3
"""`millrace train` with real shards and workers: what compression costs in quality, and every way to fail in one sentence.

    train_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Real data is read from $MILLRACE_SHARED/data; those tests skip where it is missing.
"""

import contextlib
import gzip
import json
import os
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from commands import NETLAB, PROGRAMS, TIMEOUT_S, W8A, WithServers, made_up_rows, millrace, run, start, target


@unittest.skipUnless(W8A.exists(), f"no {W8A}")
class Quality(WithServers):
    """97 % of w8a is one class: accuracy says nothing there, average precision and log-loss do."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with gzip.open(W8A, "rt", encoding="utf-8") as file:
            lines = [line for line in file if line.strip()]
        for name, keep in (("train.svm", lambda row: row % 5), ("test.svm", lambda row: row % 5 == 0)):
            text = "".join(line for row, line in enumerate(lines) if keep(row))
            (Path(cls.folder.name) / name).write_text(text, encoding="utf-8")

    def held_out(self, job, *arguments):
        model = self.path(job + ".model")
        results = self.train(4, "--train", self.path("train.svm"), "--test", self.path("test.svm"), "--batch", 64, "--epochs", 6,
                             "--lr-schedule", "inverse:1", "--l2", 1e-6, "-o", model, *arguments, job=job)
        ends = [result["epochs"][-1]["held_out"] for result in results]
        for other in ends[1:]:
            self.assertEqual(other, ends[0], "all workers hold the same weights, to the bit")
        evaluated = json.loads(run("eval", "--model-file", model, "--test", self.path("test.svm"), "--json").stdout)
        self.assertAlmostEqual(evaluated["log_loss"], ends[0]["log_loss"], places=5)
        return ends[0], sum(result["bytes_up"] for result in results)

    def test_SelectedAndQuantizedGradientsReachWhatDenseOnesDo(self):
        dense, dense_bytes = self.held_out("dense", "--lr", 8, "--dense")
        sent, sent_bytes = self.held_out("compressed", "--lr", 8, "--select", "topk:0.1", "--reselect", "topk:0.1", "--codec-up", "gap+qsgd4",
                                         "--codec-down", "gap+qsgd8")
        self.assertGreater(dense["average_precision"], 0.6)
        self.assertLess(abs(sent["log_loss"] / dense["log_loss"] - 1), 0.01)
        self.assertLess(abs(sent["average_precision"] / dense["average_precision"] - 1), 0.005)
        self.assertLess(sent_bytes, dense_bytes / 3)

    def test_LosslessSparseGradientsGiveTheLossOfDenseOnes(self):
        dense, _ = self.held_out("dense-svm", "--dense", "--model", "svm", "--lr", 1)
        sparse, _ = self.held_out("sparse-svm", "--model", "svm", "--lr", 1)
        self.assertAlmostEqual(sparse["loss"], dense["loss"], places=4)


class Asynchronous(WithServers):
    def test_TheLearningRateIsThatOfAllWorkersTogether(self):
        train = self.path("asynchronous.svm", made_up_rows(3000, 2))
        test = self.path("asynchronous-test.svm", made_up_rows(500, 3))
        flags = ["--train", train, "--test", test, "--epochs", 4, "--batch", 50, "--lr", 0.5, "--l2", 1e-5]
        losses = {}
        for mode in ("synchronous", "asynchronous"):
            results = self.train(3, *flags, "--mode", mode, job=mode)
            losses[mode] = [result["epochs"][-1]["held_out"]["loss"] for result in results]
            # No worker waits for one that begins later: that one continues from the job's step.
            self.assertLessEqual({result["steps"] for result in results}, {80} if mode == "synchronous" else set(range(1, 81)))
        # A worker that finishes earlier has evaluated without the others' last steps. At the undivided rate this would
        # be 0.7.
        self.assertAlmostEqual(min(losses["asynchronous"]) / losses["synchronous"][0], 1, delta=0.2, msg=str(losses))

    def test_AResumedWorkerReceivesMissedStepsInMergedUpdates(self):
        train = self.path("merged.svm", made_up_rows(3000, 2))
        job = self.id().rsplit(".", 1)[-1]
        flags = ["--train", train, "--epochs", 100_000, "--batch", 50, "--lr", 0.5, "--mode", "asynchronous", "--json"]
        workers = [start("train", *self.flags(worker, 2), *flags) for worker in range(2)]
        try:
            self.wait_for(lambda: self.steps_decided(job) > 10, 60)
            before = self.steps_decided(job)
            workers[1].send_signal(signal.SIGSTOP)
            self.wait_for(lambda: self.steps_decided(job) >= before + 40, 5)  # it is not taken for dead so soon
            workers[1].send_signal(signal.SIGCONT)
            self.wait_for(lambda: self.metric("millrace_shard_merged_steps_total", job) >= 20, 30)
            updates, steps = (self.metric(f"millrace_shard_merged_{what}_total", job) for what in ("updates", "steps"))
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
                worker.send_signal(signal.SIGINT)
            for worker in workers:
                worker.communicate(timeout=240)
        self.assertGreaterEqual(steps, 20, f"{updates} updates")
        self.assertGreaterEqual(steps, 2 * updates)

    @staticmethod
    def wait_for(condition, seconds):
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)

    def metric(self, name, job):
        text = "".join(self.page(port, "metrics") for port in self.http_ports())
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f'{name}{{job="{job}"}}'))

    def steps_decided(self, job):
        return self.metric("millrace_shard_rounds_total", job)

    def http_ports(self):
        return [shard["http"].rsplit(":", 1)[1] for shard in self.cluster["shards"]]

    @staticmethod
    def page(port, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=120) as answer:
            return answer.read().decode("utf-8")

    def test_ReselectionIsRefused(self):
        ended = run("train", *self.flags(), "--train", "none", "--mode", "asynchronous", "--reselect", "topk:0.5")
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("reselect: in mode asynchronous", ended.stderr)


class Runs(WithServers):
    def test_StepsInFlightAndOneWorkerTrainAsWell(self):
        train = self.path("a.svm", made_up_rows(3000, 2))
        test = self.path("b.svm", made_up_rows(500, 3))
        for staleness in (0, 3):
            result, = self.train(1, "--train", train, "--test", test, "--epochs", 4, "--batch", 50, "--staleness", staleness,
                                 job=f"staleness{staleness}")
            self.assertGreater(result["epochs"][-1]["held_out"]["accuracy"], 0.9)
            self.assertEqual(result["steps"], 240)

    def test_UpdatesThatWaitForAcknowledgementsGiveTheSameModel(self):
        train = self.path("held.svm", made_up_rows(3000, 2))
        models = []
        for acks in (0, 2, 3):
            model = self.path(f"acks{acks}.model")
            self.train(3, "--train", train, "--epochs", 2, "--batch", 50, "--select", "topk:0.2", "--apply-after-acks", acks, "-o", model,
                       job=f"acks{acks}")
            models.append(Path(model).read_bytes())
        self.assertEqual(models[1], models[0])
        self.assertEqual(models[2], models[0])

    def test_MoreAcknowledgementsThanWorkersAreRefused(self):
        self.refused(2, "apply_after_acks 3 is over workers 2", "train", *self.flags(0, 2), "--train", self.path("one.svm", "1 1:1\n"),
                     "--apply-after-acks", 3)

    def test_MoreWorkersThanSomeBatchesStayInStep(self):
        # Seven rows for three workers with batches of two: the last batches are short, one is empty.
        train = self.path("few.svm", "1 1:1\n0 2:1\n1 1:1\n0 2:1\n1 1:1 2:1\n0 3:1\n1 1:1\n")
        results = self.train(3, "--train", train, "--epochs", 2, "--batch", 2)
        self.assertEqual({result["steps"] for result in results}, {4})

    def test_StepsEndARunEarly(self):
        result, = self.train(1, "--train", self.path("c.svm", made_up_rows(1000, 4)), "--steps", 7, "--epochs", 5)
        self.assertEqual((result["steps"], len(result["epochs"])), (7, 1))

    def test_TheStatusPortAnswersWhileAWorkerTrains(self):
        train = self.path("d.svm", made_up_rows(2000, 5))
        worker = subprocess.Popen(millrace("train", *self.flags(), "--train", train, "--epochs", 1_000_000, "--http", "127.0.0.1:0"),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        port = None
        for line in worker.stdout:
            if line.startswith("status: port "):
                port = line.split()[-1]
            if line.lstrip().startswith("1 "):
                break
        status = run("status", f"127.0.0.1:{port}", "--json")
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=240)
        self.assertEqual(worker.returncode, 7)
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertEqual(json.loads(status.stdout)["said"][f"127.0.0.1:{port}"]["workers"], 1)


class BenchServe(unittest.TestCase):
    """The benchmark's own oracle, and how it ends when a process of it does."""

    def test_SmallUpdatesAgreeWithTheOracleInAnyCheckedRound(self):
        for seed in range(1, 5):
            for workers, n, density in ((3, 60_000, 0.01), (1, 20_000, 0.01), (2, 40, 0.05)):
                ended = run("bench", "serve", "--dimension", n, "--density", density, "--workers", workers, "--shards", 3, "--rounds", 12,
                            "--warmup", 1, "--threshold-period", 9, "--seed", seed, "--json")
                self.assertEqual(ended.returncode, 0, ended.stderr)
                rows = [row for row in json.loads(ended.stdout.strip().split("\n")[-1])["rows"] if "codec" in row]
                self.assertEqual([(row["algorithm"], row["agrees_with_oracle"]) for row in rows], [("lossless", True), ("qsgd4", True)])

    def test_AKilledWorkerOrShardEndsTheBenchmarkAsEndedEarly(self):
        for victim in ("worker", "shard"):
            with self.subTest(victim=victim), tempfile.TemporaryDirectory() as folder:
                bench = subprocess.Popen(millrace("bench", "serve", "--dimension", 1000, "--workers", 2, "--shards", 1, "--rounds", 5000, "--only", "lossless"),
                                         text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": folder})
                while not bench.stderr.readline().startswith("millrace-bench serve: lossless"):
                    self.assertIsNone(bench.poll())
                running = {}
                while len(running.get("millrace-bench", [])) < 2:  # the workers, which begin when the shard has
                    self.assertIsNone(bench.poll())
                    running = {}
                    for child in Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text(encoding="utf-8").split():
                        running.setdefault(Path(target(f"/proc/{child}/exe")).name, []).append(int(child))
                os.kill(running["millrace-bench" if victim == "worker" else "millrace-server"][0], signal.SIGKILL)
                _, err = bench.communicate(timeout=240)
                self.assertEqual(bench.returncode, 8, err)
                self.assertIn(f"lossless: {victim} 0 was ended by signal 9", err)


class StoppedWriter(unittest.TestCase):
    """Another process was stopped while it wrote the membership table: its lock stays."""

    def test_ALockedTableDelaysANewJobButNotARunningOne(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data = folder / "a.svm"
            data.write_text(made_up_rows(2000, 7), encoding="utf-8")
            serve = start("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--table", folder / "table.db")
            servers = json.loads(serve.stdout.readline())["servers"]
            running = start("train", "--servers", servers, "--job", "running", "--train", data, "--epochs", 1_000_000)
            lines = iter(running.stdout.readline, "")
            while not next(lines).lstrip().startswith("1 "):
                pass
            writer = sqlite3.connect(folder / "table.db", isolation_level=None)
            writer.execute("BEGIN IMMEDIATE")
            # Its Hello asks the shards to write, again and again.
            beginning = start("train", "--servers", servers, "--job", "beginning", "--train", data, "--epochs", 1, "--connect-timeout", "60000ms")
            locked, last, longest = time.monotonic(), time.monotonic(), 0
            while time.monotonic() < locked + 4:
                next(lines)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            self.assertIsNone(beginning.poll())
            writer.execute("ROLLBACK")
            writer.close()
            out, err = beginning.communicate(timeout=TIMEOUT_S)
            self.assertEqual(beginning.returncode, 0, out + err)
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=240)
            serve.send_signal(signal.SIGTERM)
            _, err = serve.communicate(timeout=240)
            self.assertEqual(serve.returncode, 0, err)
            # Waiting for the lock as long as at the start, 5 s, would have held up every step.
            self.assertLess(longest, 4.5)


class StreamsThatFail(unittest.TestCase):
    """Standard output or error is a full disk, or closed."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.data = Path(self.folder.name) / "a.svm"
        self.data.write_text(made_up_rows(100, 8), encoding="utf-8")

    def shell(self, command):
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=self.folder.name)

    def test_ALogThatCannotBeWrittenEndsNeitherAShardNorAWorker(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            shard = subprocess.Popen([str(PROGRAMS / "millrace-server"), "--table", Path(self.folder.name) / "t.db", "--listen", "tcp://127.0.0.1:0", "--json"],
                                     stdout=subprocess.PIPE, stderr=full, text=True)
            address = json.loads(shard.stdout.readline())["address"].removeprefix("tcp://")
            worker = subprocess.run(millrace("train", "-v", "--servers", address, "--train", self.data, "--epochs", 1), stdout=subprocess.DEVNULL,
                                    stderr=full, timeout=TIMEOUT_S, check=False)
            self.assertEqual((worker.returncode, shard.poll()), (0, None))
            shard.send_signal(signal.SIGTERM)
            self.assertEqual(shard.wait(timeout=240), 0)
            shard.stdout.close()
            usage = subprocess.run(millrace("train", "--lr", "nan"), stderr=full, timeout=TIMEOUT_S, check=False)
            self.assertEqual(usage.returncode, 2)

    def test_OutputThatCannotBeWrittenIsAFailure(self):
        for command in ("-bench worker --dimension 64 --repeats 1 --json", " data synthetic --rows 10 -o x.svm", " --help", " --version", " serve --listen 127.0.0.1:0 --http 127.0.0.1:0"):
            with self.subTest(command=command):
                ended = self.shell(f"{PROGRAMS / 'millrace'}{command} > /dev/full")
                self.assertEqual(ended.returncode, 6, ended.stderr)
                self.assertIn("standard output could not be written", ended.stderr)

    def test_AFileThatMayNotGrowIsAFailureThatLeavesNothing(self):
        ended = self.shell(f"ulimit -f 4; exec {PROGRAMS / 'millrace'} data synthetic --rows 2000 -o large.svm")
        self.assertEqual(ended.returncode, 6, ended.stderr)
        self.assertIn("File too large", ended.stderr)
        self.assertEqual([path.name for path in Path(self.folder.name).iterdir()], ["a.svm"])

    def test_WithoutStreamsNothingIsPrintedIntoOtherFiles(self):
        program = PROGRAMS / "millrace"
        self.assertEqual(self.shell(f"{program} data synthetic --rows 100 -o open.svm").returncode, 0)
        self.assertEqual(self.shell(f"{program} data synthetic --rows 100 -o closed.svm <&- >&- 2>&-").returncode, 0)
        folder = Path(self.folder.name)
        self.assertEqual((folder / "open.svm").read_bytes(), (folder / "closed.svm").read_bytes())
        self.assertEqual(self.shell(f"{program} eval --model-file none --test a.svm 2>&-").returncode, 6)


class ServersThatEnd(unittest.TestCase):
    def test_AJobWhoseServersAreShutDownHasEndedEarly(self):
        with tempfile.TemporaryDirectory() as name:
            data = Path(name) / "a.svm"
            data.write_text(made_up_rows(2000, 7), encoding="utf-8")
            serve = start("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json")
            servers = json.loads(serve.stdout.readline())["servers"]
            worker = start("train", "--servers", servers, "--train", data, "--epochs", 1_000_000)
            while not worker.stdout.readline().lstrip().startswith("1 "):
                self.assertIsNone(worker.poll())
            serve.send_signal(signal.SIGTERM)
            _, err = worker.communicate(timeout=TIMEOUT_S)
            self.assertEqual((worker.returncode, err.count("\n")), (8, 1), err)
            self.assertIn("was shut down", err)
            _, err = serve.communicate(timeout=240)
            self.assertEqual(serve.returncode, 0, err)


def reasons_of(ended):
    """The lines of stderr, without a shard's warning that few files may be open here."""
    return [line for line in ended.stderr.splitlines() if " warning: this process may open " not in line]


class Refusals(WithServers):
    def test_BadDataIsNamedByFileAndLine(self):
        broken = self.path("broken.svm", "1 1:1\n0 2:nan\n")
        self.refused(3, "broken.svm:2: the value in '2:nan' is not a finite number", "train", *self.flags(), "--train", broken)
        empty = self.path("empty.svm", "")
        self.refused(3, "empty.svm: it holds no rows", "train", *self.flags(), "--train", empty)
        fine = self.path("fine.svm", "1 1:1\n0 2:1\n")
        self.refused(3, "fine.svm:2: index 2 is above 1, the largest of --dimension 1", "train", *self.flags(), "--train", fine, "--dimension", 1)
        self.refused(6, "absent.svm: No such file or directory", "train", *self.flags(), "--train", self.path("absent.svm"))

    def test_FlagsThatCannotBeAreRefusedBeforeAnythingIsRead(self):
        fine = self.path("flags.svm", "1 1:1\n0 2:1\n")
        for sentence, flags in (("workers count from 0", ["--worker", 3, "--workers", 3]), ("--lr times --l2", ["--lr", 100, "--l2", 0.5]),
                                ("--test names the held-out rows", ["--curve-every", 5]),
                                ("--density", ["--density", 1.5]), ("cannot select", ["--dense", "--density", 0.1])):
            self.refused(2, sentence, "train", "--servers", self.servers, "--train", fine, *flags)
        self.refused(2, "is not an address", "train", "--servers", "somewhere", "--train", fine)
        # A file that is not there would be found first if data were read before the job is checked.
        absent = self.path("absent.svm")
        for sentence, flags in (("--codec-up: codec 'gap+nothing' is not", ["--codec-up", "gap+nothing"]), ("--codec-down", ["--codec-down", "qsgd4"]),
                                ("select", ["--select", "topk:2.5"]), ("select", ["--select", "largest:0.1"]), ("reselect", ["--reselect", "topk"]),
                                ("codec_error drop", ["--codec-up", "gap+qsgd4:l2"]), ("--staleness", ["--staleness", 64]),
                                ("bloom_p0 takes dimensions up to", ["--codec-up", "bloom_p0+raw", "--dimension", 1 << 29])):
            with self.subTest(flags=flags):
                ended = self.refused(2, sentence, "train", *self.flags(), "--train", absent, *flags)
                self.assertEqual((ended.stdout, ended.stderr.count("\n")), ("", 1), ended.stderr)

    def test_ConfigFile_SetsFlagsThatTheCommandLineDoesNot(self):
        absent = self.path("absent.svm")
        file = self.path("job.toml", 'codec-up = "gap+nothing"\n[compression]\nunbiased = true\n')
        self.refused(2, "codec 'gap+nothing' is not", "train", *self.flags(), "--train", absent, "--config", file)
        self.refused(2, "set codec_error drop", "train", *self.flags(), "--train", absent, "--config", file, "--codec-up", "gap",
                     "--codec-error", "retain")
        for sentence, line in (("'codec-upp' is no flag of this command; did you mean 'codec-up'?", 'codec-upp = "gap"'), ("is not a duration", "dead-after = 10"),
                               ("audit is true or false", 'audit = "maybe"'), ("'late': known are", 'mode = "late"')):
            with self.subTest(line=line):
                self.refused(2, sentence, "train", *self.flags(), "--train", absent, "--config", self.path("wrong.toml", line + "\n"))

    def test_AnImpossibleBenchmarkOrDemonstrationIsRefusedAtOnce(self):
        nowhere = self.path("nowhere")
        for sentence, arguments in (("codec 'gap+nothing' is not", ["bench", "serve", "--codec", "gap+nothing"]),
                                    ("qsgd4' loses something", ["bench", "serve", "--codec", "gap+qsgd4"]), ("Bloom false positive rate", ["bench", "serve", "--codec", "bloom_p0:1.5+raw"]),
                                    ("--parts-per-shard", ["bench", "serve", "--parts-per-shard", 65]), ("--link-rate: 'fast' is not a rate", ["bench", "serve", "--link-rate", "fast"]),
                                    *[("is not a rate", ["bench", "serve", "--link-rate", rate]) for rate in ("0bit", "999bit", "9" * 20 + "gbit", "1001gbit", "-1gbit")],
                                    ("--link-rate: 'fast' is not a rate", ["demo", "--folder", nowhere, "--link-rate", "fast"]),
                                    ("--quorum", ["demo", "--folder", nowhere, "--mode", "partial", "--quorum", 4097]), ("quorum", ["demo", "--folder", nowhere, "--quorum", 2]),
                                    ("'late': known are", ["demo", "--folder", nowhere, "--mode", "late"]), ("--workers 2 at least", ["demo", "--folder", nowhere, "--kill", "--workers", 1]),
                                    ("--lr times --l2", ["demo", "--folder", nowhere, "--lr", 100, "--l2", 0.5])):
            with self.subTest(arguments=arguments):
                ended = self.refused(2, sentence, *arguments)
                self.assertEqual((ended.stdout, ended.stderr.count("\n")), ("", 1), ended.stderr)
        self.assertFalse(nowhere.exists())

    def test_AServerThatCannotBeReachedIsNamed(self):
        fine = self.path("reach.svm", "1 1:1\n0 2:1\n")
        self.refused(4, "127.0.0.1:1", "train", "--servers", "127.0.0.1:1", "--train", fine, "--connect-timeout", "300ms")

    def test_AServerThatIsNotMillraceIsReported(self):
        fine = self.path("foreign.svm", "1 1:1\n0 2:1\n")
        http = self.cluster["shards"][0]["http"]
        self.refused(4, "does not answer as a Millrace server does", "train", "--servers", http, "--train", fine, "--connect-timeout", "1500ms")

    def test_ValuesThatAreNotFiniteAreDroppedAndCountedOnRequest(self):
        # Weights overflow in the first steps, and gradients with them.
        huge = self.path("huge.svm", "".join(f"{row % 2} 1:3e38 2:3e38\n" for row in range(200)))
        self.refused(3, "the gradient holds NaN or infinity", "train", *self.flags(job="refuse"), "--train", huge, "--lr", 1e6)
        ended = run("train", *self.flags(job="drop"), "--train", huge, "--lr", 1e6, "--non-finite", "drop", "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        epochs = json.loads(ended.stdout.strip().split("\n")[-1])["epochs"]
        self.assertGreater(sum(epoch["non_finite_dropped"] for epoch in epochs), 0)
        said = run("train", *self.flags(job="said"), "--train", huge, "--lr", 1e6, "--non-finite", "drop")
        self.assertIn("values of gradients were NaN or infinite and are left out", said.stdout)

    def test_WorkersThatDisagreeOnTheShapeAreRefusedWithTheReason(self):
        small = self.path("small.svm", "1 1:1\n0 2:1\n")
        large = self.path("large.svm", "1 1:1\n0 3:1\n")
        first = start("train", *self.flags(0, 2), "--train", small, "--start-timeout", "30000ms")
        second = start("train", *self.flags(1, 2), "--train", large, "--start-timeout", "30000ms")
        # The second worker is refused; the first one waits for it until it is ended.
        deadline = time.monotonic() + TIMEOUT_S
        while first.poll() is None and second.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        refused, waiting = (first, second) if first.poll() is not None else (second, first)
        waiting.kill()
        waiting.communicate()
        _, err = refused.communicate()
        self.assertEqual(refused.returncode, 5, err)
        self.assertIn("dimension", err)

    def test_AModelThatCannotBeWrittenIsReported(self):
        train = self.path("e.svm", made_up_rows(100, 6))
        ended = run("train", *self.flags(), "--train", train, "--epochs", 1, "-o", self.path("no") / "such" / "model")
        self.assertEqual(ended.returncode, 6, ended.stderr)
        self.assertIn("cannot write", ended.stderr)

    def test_UnwritableOutputsAreRefusedBeforeTraining(self):
        fine = self.path("outputs.svm", "1 1:1\n0 2:1\n")
        for flag in ("-o", "--state"):
            ended = self.refused(6, "cannot write", "train", *self.flags(), "--train", fine, flag, self.path("no") / "such" / "file")
            self.assertEqual(ended.stdout, "")
        self.refused(6, "is a folder", "train", *self.flags(), "--train", fine, "-o", self.folder.name)

    def test_EveryUsageErrorIsOneLineWithTheCommandAndItsHelp(self):
        data = ("--train", "a.svm", "--servers", "127.0.0.1:1")
        for sentence, arguments in (("millrace train: --lr: 'nan' is not a number from 1e-12", ["train", *data, "--lr", "nan"]),
                                    ("--l2: 'nan'", ["train", *data, "--l2", "nan"]), ("schedule 'nan'", ["train", *data, "--lr-schedule", "nan"]),
                                    ("--density: 'nan'", ["bench", "select", "--density", "nan"]), ("--lr", ["demo", "--lr", "nan"]),
                                    ("--seed: '-1'", ["train", *data, "--seed", -1]), ("--steps: '-1'", ["train", *data, "--steps", -1]),
                                    ("millrace train: --train is required", ["train"]), ("is not an address", ["train", *data[:3], "127.0.0.1:70000"]),
                                    ("there is no 'nothing'", ["data", "nothing"]), ("see millrace-bench --help", ["bench"]),
                                    ("leaves no port for shard 1", ["serve", "--listen", "127.0.0.1:65535"]), ("leaves no port", ["serve", "--http", "127.0.0.1:65535"]),
                                    ("--drain", ["serve", "--drain", "-5s"]), ("--only", ["bench", "serve", "--only", "none"]),
                                    ("--output: it is empty", ["train", *data, "-o", ""]), ("--state: it is empty", ["train", *data, "--state", ""]),
                                    ("--train: it is empty", ["train", "--train", "", *data[2:]]), ("--http: '' is not an address", ["train", *data, "--http", ""]),
                                    ("--model-file: it is empty", ["eval", "--model-file", "", "--test", "a"]), ("--input: it is empty", ["data", "debian", "-o", "a", "--input", ""]),
                                    ("--table: it is empty", ["serve", "--table", ""]), ("--codec: it is empty", ["bench", "serve", "--codec", ""]),
                                    ("'a b:1' is not an address", ["train", *data[:3], "a b:1"]),
                                    ("is the file of --output", ["data", "synthetic", "--rows", 10, "-o", "a", "--test-output", "./a"])):
            with self.subTest(arguments=arguments):
                ended = self.refused(2, sentence, *arguments)
                self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)
                self.assertEqual(ended.stdout, "")

    def test_TheServersUsageErrorsAreOneLineToo(self):
        table = ["--table", self.path("unused.db")]
        for sentence, flags in (("--table is required", []), ("--shard", [*table, "--shard", 3, "--shards", 2]), ("65536", [*table, "--listen", "tcp://127.0.0.1:65536"]),
                                ("give HOST:PORT", [*table, "--listen", "ipc:///tmp/x"]), ("--advertise", [*table, "--advertise", "here"]),
                                *[("is not a size", [*table, "--message-bytes-max", size]) for size in ("-1", "1" + 30 * "0", "16E", "10QB", "1.5GiB", "64M", "", "x")],
                                ("it takes 1B", [*table, "--message-bytes-max", 0]), ("is not a duration", [*table, "--drain", 10]), ("is not a rate", [*table, "--link-rate", 1]),
                                ("--shard: '-1' is not a number", [*table, "--shard", -1]), ("--table: it is empty", ["--table", ""]), ("':memory:' is not the name", ["--table", ":memory:"]),
                                ("--http: ''", [*table, "--http", ""]), ("was not readable", [*table, "--config", self.folder.name]),
                                ("nonsense", [*table, "--config", self.path("typing-error.ini", "nonsense=3\n")]),
                                ("--jobs-max", [*table, "--jobs-max", 0]), ("--http", [*table, "--listen", "tcp://127.0.0.1:0", "--http", "x"])):
            with self.subTest(flags=flags):
                ended = subprocess.run([str(PROGRAMS / "millrace-server"), *map(str, flags)], capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(sentence, ended.stderr)
                self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)

    def test_AnInterruptEndsAWorkerThatIsBlockedOnOthers(self):
        worker = start("train", *self.flags(0, 2), "--train", self.path("wait.svm", "1 1:1\n0 2:1\n"), "--start-timeout", "600000ms")
        while not json.loads(run("status", self.cluster["shards"][0]["http"], "--json").stdout)["said"][self.cluster["shards"][0]["http"]]["jobs"]:
            self.assertIsNone(worker.poll())
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=120)
        self.assertEqual(worker.returncode, 7, err)
        self.assertIn("interrupted", err)

    def test_AnInterruptionWhileDataIsMadeLeavesNoFile(self):
        folder = self.path("interrupted")
        folder.mkdir()
        maker = start("data", "synthetic", "--like", "webspam", "--rows", 1_000_000, "-o", folder / "a.svm")
        while not any(target(one).startswith(str(folder)) for one in Path("/proc").glob(f"{maker.pid}/fd/*")):
            self.assertIsNone(maker.poll())
        maker.send_signal(signal.SIGTERM)
        _, err = maker.communicate(timeout=120)
        self.assertEqual((maker.returncode, list(folder.iterdir())), (7, []), err)

    def test_ABenchmarkThatIsInterruptedLeavesNoProcessAndNoFolder(self):
        folder = self.path("bench")
        folder.mkdir()
        bench = subprocess.Popen(millrace("bench", "serve", "--dimension", 100_000, "--rounds", 100_000, "--workers", 1, "--shards", 1), text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)})
        self.assertIn("bare ZeroMQ", bench.stderr.readline())
        bench.send_signal(signal.SIGTERM)
        _, err = bench.communicate(timeout=120)
        self.assertEqual((bench.returncode, list(folder.iterdir())), (7, []), err)

    @unittest.skipUnless(subprocess.run([str(NETLAB), "check"], capture_output=True, check=False).returncode == 0, "no network namespaces")
    def test_ABenchmarkBehindARateThatIsInterruptedLeavesNoNamespace(self):
        def namespaces(bench):
            listed = subprocess.check_output(["ip", "netns", "list"], text=True)
            return [line for line in listed.split("\n") if line.startswith(f"mb{bench.pid % 100000}-")]

        def interrupt_again(bench):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bench.pid, signal.SIGINT)
        # Signals arrive while they are made, used or removed. In the last phase they arrive until the end, so that every
        # script and every process meets one while it is starting.
        for phase in ("making", "running", "removing", "always"):
            (folder := self.path(phase)).mkdir()
            bench = subprocess.Popen(millrace("bench", "serve", "--link-rate", "1gbit", "--dimension", 100_000, "--rounds", 100_000, "--workers", 2, "--shards", 2),
                                     text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)},
                                     start_new_session=True)  # a group of its own: Ctrl-C reaches all of it
            while not namespaces(bench):
                self.assertIsNone(bench.poll())
            if phase != "making":
                self.assertIn("bare ZeroMQ", bench.stderr.readline())
            made = namespaces(bench)
            os.killpg(bench.pid, signal.SIGINT)
            if phase == "removing":
                while namespaces(bench) == made and bench.poll() is None:
                    pass
                interrupt_again(bench)
            while phase == "always" and bench.poll() is None:
                interrupt_again(bench)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    bench.wait(timeout=0.01)
            _, err = bench.communicate(timeout=240)
            self.assertEqual((bench.returncode, namespaces(bench), list(folder.iterdir())), (7, [], []), f"{phase}: {err}")

    def test_ASecondSignalEndsServeAtOnceAndLeavesNothingBehind(self):
        for again, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            folder = self.path(f"serve{code}")
            folder.mkdir()
            serve = subprocess.Popen(millrace("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"), text=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)})
            self.assertIn("listening", serve.stdout.readline())
            shards = Path(f"/proc/{serve.pid}/task/{serve.pid}/children").read_text(encoding="utf-8").split()
            self.assertEqual((len(shards), len(list(folder.iterdir()))), (2, 1))
            for shard in shards:  # they do not end by themselves
                os.kill(int(shard), signal.SIGSTOP)
            serve.send_signal(signal.SIGTERM)
            while serve.poll() is None:  # the same signal within a second of the first is no second request
                with contextlib.suppress(subprocess.TimeoutExpired):
                    serve.wait(timeout=1.1)
                serve.send_signal(again)
            _, err = serve.communicate(timeout=120)
            self.assertEqual((serve.returncode, list(folder.iterdir())), (code, []), err)
            self.assertIn("second signal", err)
            self.assertFalse([shard for shard in shards if Path(f"/proc/{shard}").exists()])

    def test_AMissingTemporaryFolderIsReported(self):
        for arguments in (["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], ["bench", "serve", "--rounds", 1]):
            ended = subprocess.run(millrace(*arguments), capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "TMPDIR": "/no/such/folder"})
            self.assertEqual((ended.returncode, ended.stdout, ended.stderr.count("\n")), (6, "", 1), ended.stderr)
            self.assertIn("TMPDIR", ended.stderr)

    def test_AnInterruptionWhileShardsStartEndsServeInOrder(self):
        serve = subprocess.Popen(millrace("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"), text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, start_new_session=True)
        exe = ""
        while not exe.endswith("millrace-server"):
            self.assertIsNone(serve.poll())
            for shard in Path(f"/proc/{serve.pid}/task/{serve.pid}/children").read_text(encoding="utf-8").split():
                exe = target(f"/proc/{shard}/exe")
        os.killpg(serve.pid, signal.SIGINT)  # as Ctrl-C: to the shard as well
        _, err = serve.communicate(timeout=240)
        self.assertEqual(serve.returncode, 0, err)
        self.assertNotIn("millrace serve:", err)

    def test_OneRequestThatTimeoutSendsTwiceEndsServeInOrder(self):
        # timeout passes a signal on to its child, and then to the group that its child is in.
        for _ in range(3):
            serve = subprocess.Popen(["timeout", "600", *millrace("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json")], text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertIn("listening", serve.stdout.readline())
            serve.send_signal(signal.SIGTERM)
            _, err = serve.communicate(timeout=240)
            self.assertEqual(serve.returncode, 0, err)
            self.assertNotIn("millrace serve:", err)

    def test_APortInUseIsReported(self):
        port = self.servers.split(",", 1)[0].rsplit(":", 1)[1]
        ended = self.refused(6, "shard 0: ", "serve", "--shards", 1, "--listen", f"127.0.0.1:{port}")
        self.assertIn("in use", ended.stderr)
        self.assertEqual((ended.stdout, ended.stderr.count("\n")), ("", 1), ended.stderr)

    def test_ServeSaysInOneLineWhyAShardDidNotStart(self):
        table = self.path("other.db")
        with socket.socket() as taken:  # the second shard's port
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for code, sentence, flags in ((6, "in use", ["--listen", f"127.0.0.1:{port - 1}", "--http", "127.0.0.1:0"]),
                                          (6, "shard 0: ", ["--listen", "127.0.0.1:0", "--table", self.path("no") / "t.db"]),
                                          (6, "in use", ["--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port - 1}"]), (2, "--listen", ["--listen", "::1:0"])):
                with self.subTest(flags=flags):
                    ended = self.refused(code, sentence, "serve", "--shards", 2, *flags)
                    self.assertEqual((ended.stdout, len(reasons_of(ended))), ("", 1), ended.stderr)
        three = start("serve", "--shards", 3, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--table", table)
        self.assertIn("shard 0", three.stdout.readline())
        three.send_signal(signal.SIGTERM)
        three.communicate(timeout=240)
        ended = self.refused(5, "3 shards", "serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--table", table)
        self.assertEqual(len(reasons_of(ended)), 1, ended.stderr)


if __name__ == "__main__":
    unittest.main()
