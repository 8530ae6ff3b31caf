#!/usr/bin/env python3
"""`millrace-peer train` under mpirun: the ranks' shares, models, errors and ends.

    peer_train_test.py FOLDER_OF_THE_PROGRAMS

Exits 77 (skipped, for ctest) where there is no mpirun, or the build has no MPI."""

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import mpi_ranks
from mpi_ranks import PROGRAM, PROGRAMS, RANKS_MAX_S

RANKS = 3


def start(arguments, ranks=RANKS):
    return mpi_ranks.start(ranks, ["train", *arguments])


def run(arguments, ranks=RANKS):
    return mpi_ranks.run(ranks, ["train", *arguments])


def ranks_of(mpirun):
    return mpi_ranks.pids_of_ranks(mpirun, range(RANKS))


def rows_like_w8a(path, rows, seed, end="\n"):
    """Of 300 features a few each; the label follows a linear model but for a row in fifty."""
    draw = random.Random(seed)
    weights = [random.Random(at).gauss(0, 1) for at in range(300)]
    with open(path, "w", encoding="ascii", newline="") as file:
        for _ in range(rows):
            features = sorted(draw.sample(range(300), 12))
            positive = sum(weights[at] for at in features) > 0
            if draw.random() < 0.02:
                positive = not positive
            file.write(("+1" if positive else "-1") + "".join(f" {at + 1}:1" for at in features) + end)


def rows_of_one_length(path, rows, seed):
    """As rows_like_w8a(), without noise, every line as long as the others, so that ranks have equally many."""
    draw = random.Random(seed)
    weights = [random.Random(at).gauss(0, 1) for at in range(300)]
    with open(path, "w", encoding="ascii") as file:
        for _ in range(rows):
            features = sorted(draw.sample(range(100, 300), 12))
            label = "+1" if sum(weights[at] for at in features) > 0 else "-1"
            file.write(label + "".join(f" {at}:1" for at in features) + "\n")


class Train(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-peer-train-")
        cls.data = str(Path(cls.folder.name) / "train.svm")
        cls.test = str(Path(cls.folder.name) / "test.svm")
        rows_like_w8a(cls.data, 3_000, 1)
        rows_like_w8a(cls.test, 500, 2, "\r\n")
        cls.files = ["--train", cls.data, "--test", cls.test, "--batch", "100"]
        cls.quick = [*cls.files, "--epochs", "8", "--lr", "2"]
        cls.endless = [*cls.files, "--epochs", "1000000"]
        cls.serve = subprocess.Popen([str(PROGRAMS / "millrace"), "serve", "--shards", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.cluster = json.loads(cls.serve.stdout.readline())

    @classmethod
    def tearDownClass(cls):
        cls.serve.send_signal(signal.SIGTERM)
        cls.serve.wait(timeout=RANKS_MAX_S)
        cls.serve.stdout.close()
        cls.folder.cleanup()

    def trained(self, arguments, ranks=RANKS):
        ended = run([*arguments, "--json"], ranks)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        result = json.loads(ended.stdout.strip().split("\n")[-1])
        self.assertEqual(result["ranks"], ranks)
        self.assertTrue(result["models_identical"])
        self.assertEqual(result["rows"], 3_000)
        self.assertEqual(result["features"], 300)
        losses = [epoch["loss"] for epoch in result["epochs"]]
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(result["epochs"][-1]["held_out_accuracy"], 0.75)
        return result

    def test_LogisticRegressionAndSvm(self):
        for model in ("lr", "svm"):
            for ranks in (1, 3):
                with self.subTest(model=model, ranks=ranks):
                    self.trained([*self.quick, "--model", model, "--l2", "1e-5", "--lr-schedule", "inverse_sqrt:2"],
                                 ranks)

    def test_SelectionsCodecsAndThreads(self):
        for flags in (["--algorithm", "ssar_recursive_doubling", "--select", "topk:0.1", "--codec-up", "gap+qsgd4"],
                      ["--algorithm", "oktopk", "--select", "topk:0.1"], ["--threads", "3"],
                      ["--algorithm", "oktopk", "--select", "topk:0.1", "--boundaries", "pooled", "--boundary-period", "3"],
                      ["--mpi-threads", "single", "--algorithm", "dense_ring"]):
            with self.subTest(flags=flags):
                self.trained([*self.quick, *flags])

    def test_CoordinateDescentGoesDownInEveryEpoch(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                flags = [*self.files, "--optimizer", "scd", "--coordinates", "5", "--epochs", "10", "--l2", "1e-4", "--threads", "2"]
                result = self.trained(flags, ranks)
                objectives = [epoch["objective"] for epoch in result["epochs"]]
                self.assertEqual(objectives, sorted(objectives, reverse=True))
                dense = self.trained([*flags, "--allgather", "dense"], ranks)
                self.assertEqual((result["allgather"], dense["allgather"]), ("sparse", "dense"))
                self.assertEqual([epoch["objective"] for epoch in dense["epochs"]], objectives)

    def test_AsynchronousStepsOverlapAndTrain(self):
        for flags in (["--staleness", "1"], ["--staleness", "4", "--mpi-threads", "multiple"],
                      ["--staleness", "2", "--algorithm", "oktopk", "--select", "topk:0.1"],
                      ["--staleness", "1", "--optimizer", "scd", "--coordinates", "10"]):
            with self.subTest(flags=flags):
                rate = "1" if "scd" in flags else "2"
                result = self.trained([*self.files, "--epochs", "10", "--lr", rate, *flags])
                self.assertEqual(result["staleness"], int(flags[1]))

    def over_servers(self, job):
        return ["--path", "server", "--servers", self.cluster["servers"], "--job", job]

    def test_WithSumsThatAreExactBothPathsGiveTheSameBits(self):
        # The hinge's gradients are sums of -1, 0 and 1, over a power of two of rows: f32 adds them exactly in any order.
        data = str(Path(self.folder.name) / "grid.svm")
        rows_of_one_length(data, 2048, 3)
        for ranks in (2, 4):
            for select in ("none", "topk:20"):
                with self.subTest(ranks=ranks, select=select):
                    flags = ["--train", data, "--model", "svm", "--lr", "0.5", "--batch", "64", "--epochs", "2", "--select", select,
                             "--json"]
                    models, results = [], []
                    for name, path in (("peers", []), ("servers", self.over_servers(f"grid {ranks} {select}"))):
                        model = Path(self.folder.name) / f"{name}.model"
                        ended = run([*flags, *path, "-o", str(model)], ranks)
                        self.assertEqual(ended.returncode, 0, ended.stderr)
                        models.append(model.read_bytes())
                        results.append(json.loads(ended.stdout.strip().split("\n")[-1]))
                    self.assertEqual(models[0], models[1])
                    self.assertEqual([result["path"] for result in results], ["peers", "server"])
                    for result in results:
                        for epoch, other in zip(result["epochs"], results[0]["epochs"]):
                            self.assertEqual(epoch["loss"], other["loss"])
                            self.assertEqual(epoch["entries_mean"], other["entries_mean"])
                            for way in ("sent", "received"):
                                self.assertGreater(epoch[f"bytes_{way}_sum"], 4 * 32 * result["steps"] / 2)
                                self.assertGreaterEqual(epoch[f"bytes_{way}_sum"], epoch[f"bytes_{way}_max"])

    def test_ReproducibleEveryAlgorithmAndBothPathsGiveTheSameBits(self):
        flags = [*self.files, "--lr", "0.7", "--epochs", "2", "--select", "topk:60", "--reproducible", "--grid", "64:-20", "--json"]
        for more in ([], ["--reselect", "topk:80"]):
            models = {}
            for name, path in (("split", []), ("doubling", ["--algorithm", "ssar_recursive_doubling"]),
                               ("ring", ["--algorithm", "dense_ring"]), ("servers", self.over_servers(f"bits {len(more)}"))):
                model = Path(self.folder.name) / f"{name}.model"
                ended = run([*flags, *more, *path, "-o", str(model)])
                self.assertEqual(ended.returncode, 0, ended.stderr)
                models[name] = model.read_bytes()
            with self.subTest(flags=more):
                for name, model in models.items():
                    self.assertEqual(model, models["split"], name)

    def test_EveryOptimizerTrainsAlikeOverBothPaths(self):
        few = ["--select", "topk:0.1"]
        for name, flags in (("sgd", ["--lr", "2"]), ("oktopk_sgd", ["--lr", "2", "--threshold-period", "1", *few]),
                            ("topk_sgd", ["--lr", "2", "--select", "bucket_topk:0.125:64", "--codec-up", "gap+raw"]),
                            ("rgc", ["--lr", "0.5", "--momentum", "nesterov:0.5", "--clip", "1", "--select", "topk:0.1:dense=5"]),
                            ("momentum", ["--lr", "0.4", "--beta1", "0.8", "--l2", "1e-5"]),
                            ("adam", ["--lr", "0.02", "--epsilon", "1e-4", "--threshold-period", "1", *few])):
            with self.subTest(optimizer=name):
                flags = [*self.files, "--epochs", "8", "--optimizer", name, *flags]
                peers = self.trained(flags, 2)
                servers = self.trained([*flags, *self.over_servers(name)], 2)
                self.assertEqual((peers["optimizer"], peers["path"], servers["path"]), (name, "peers", "server"))
                self.assertEqual(peers["select"], servers["select"])
                for over_peers, over_servers in zip(peers["epochs"], servers["epochs"]):
                    self.assertAlmostEqual(over_peers["loss"], over_servers["loss"], delta=0.01)

    def test_UnbiasedSelectionsAndSvrgTrainAlikeOverBothPaths(self):
        draws = ["--unbiased", "--select", "gspar:0.3"]
        for name, flags in (("sgd", ["--lr", "1", *draws]), ("sgd", ["--lr", "1", "--unbiased", "--select", "uniform:0.5"]),
                            ("svrg", ["--lr", "1"]), ("svrg", ["--lr", "1", "--snapshot-every", "15", *draws]),
                            ("adam", ["--lr", "0.02", *draws])):
            with self.subTest(optimizer=name, flags=flags):
                flags = [*self.files, "--epochs", "8", "--optimizer", name, *flags]
                peers = self.trained(flags, 2)
                servers = self.trained([*flags, *self.over_servers(f"unbiased {name} {len(flags)} {flags[-1]}")], 2)
                self.assertEqual(peers["unbiased"], "--unbiased" in flags)
                last = [result["epochs"][-1]["loss"] for result in (peers, servers)]
                self.assertAlmostEqual(last[0], last[1], delta=0.03)  # the paths draw apart

    def auto(self, job, *flags):
        """Flags of a run whose ranks choose their path."""
        return ["--path", "auto", "--servers", self.cluster["servers"], "--job", f"auto {job}", *flags]

    def model_and_result(self, name, flags, ranks):
        model = Path(self.folder.name) / f"{name}.model"
        ended = run([*flags, "--json", "-o", str(model)], ranks)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return model.read_bytes(), json.loads(ended.stdout.strip().split("\n")[-1])

    def test_ThePathThatRanksChooseTrainsTheModelOfThatPath(self):
        # Sums of the hinge's gradients are exact (above), so that both paths' models are the same bits as well.
        data = str(Path(self.folder.name) / "auto.svm")
        rows_of_one_length(data, 1024, 3)
        few = ["--train", data, "--model", "svm", "--lr", "0.5", "--batch", "64", "--epochs", "2", "--select", "topk:20"]
        # Two ranks need one message each among themselves, and four with two shards, each at least as slow: peers. Around the ring go
        # 8 MB for 20 entries, which loses to servers unless the ranks wake each other up slowly.
        for expected, more in (("peers", []), (None, ["--dimension", "2000000", "--algorithm", "dense_ring"])):
            with self.subTest(flags=more):
                chosen, result = self.model_and_result("auto", [*few, *self.auto(f"chosen {len(more)}", *more)], 2)
                choice = result["path_choice"]
                self.assertEqual(result["path"], "server" if choice["servers_ms"] < choice["peers_ms"] else "peers", choice)
                self.assertIn(result["path"], (expected,) if expected else ("peers", "server"), choice)
                self.assertIn("by the cost models", choice["reason"])
                self.assertEqual((choice["entries"], result["models_identical"]), (20, True))
                self.assertGreater(min(choice[name] for name in ("latency_us", "server_latency_us", "byte_ns")), 0)
                self.assertEqual("algorithm" in result, result["path"] == "peers")
                # Without the algorithm servers are asked as they always are: they sum by themselves.
                other = more if result["path"] == "server" else [*more[:2], *self.over_servers(f"other {len(more)}")]
                model, forced = self.model_and_result("other", [*few, *other], 2)
                self.assertNotEqual(forced["path"], result["path"])
                self.assertNotIn("path_choice", forced)
                self.assertEqual(model, chosen)
                self.assertEqual([epoch["loss"] for epoch in forced["epochs"]], [epoch["loss"] for epoch in result["epochs"]])

    def test_AutoTakesTheOnlyPossiblePathAndReportsTheReason(self):
        for path, reason, flags in (
                ("peers", "servers cannot: scd gathers", ["--optimizer", "scd", "--coordinates", "10"]),
                ("peers", "servers cannot: gtopk is an allreduce", ["--algorithm", "gtopk", "--select", "topk:0.1", "--lr", "2"]),
                ("server", "peers cannot: --codec-up: peers have no automatic codec", ["--codec-up", "auto", "--lr", "2"])):
            with self.subTest(reason=reason):
                flags = [*self.files, "--epochs", "8", *flags, *self.auto(reason)]
                result = self.trained(flags, 2)
                self.assertEqual(result["path"], path)
                self.assertTrue(result["path_choice"]["reason"].startswith(reason), result["path_choice"])
                self.assertNotIn("servers_ms", result["path_choice"], "nothing was measured")
        ended = run([*self.files, "--epochs", "1", *self.auto("told"), "--http", "127.0.0.1:0"], 2)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(len(re.findall("^path (peers|server): by the cost models a step's sum takes peers ", ended.stdout, re.M)), 1,
                         ended.stdout)
        self.assertEqual(ended.stdout.count(": status: port "), 2, ended.stdout)

    def test_UnreachableServersAreAnErrorAlsoWhereRanksMayChoose(self):
        servers = ["--servers", self.cluster["servers"] + ",127.0.0.1:1", "--connect-timeout", "100ms"]
        self.refused([*self.quick, "--path", "auto", *servers], 4, "shard 2 at tcp://127.0.0.1:1 could not be reached: Connection refused")

    def test_OptimizersTakeTheirPapersOptionsByThemselves(self):
        for name, expected in (("topk_sgd", {"select": "bucket_topk:0.015625:512", "codec": "gap+qsgd4"}),
                               ("rgc", {"select": "by_size:0.001", "momentum": "correction:0.9",
                                        "algorithm": "redsync_allgather"}),
                               ("adam", {"select": "topk:0.01", "algorithm": "oktopk"})):
            with self.subTest(optimizer=name):
                ended = run([*self.files, "--optimizer", name, "--steps", "3", "--lr", "0.1", "--json"])
                self.assertEqual(ended.returncode, 0, ended.stderr)
                result = json.loads(ended.stdout.strip().split("\n")[-1])
                self.assertEqual({key: result[key] for key in expected}, expected)

    def test_StepsInFlightOverServersTrain(self):
        result = self.trained([*self.files, "--epochs", "10", "--lr", "2", "--staleness", "2", "--mpi-threads", "funneled",
                               *self.over_servers("in flight")])
        self.assertEqual(result["staleness"], 2)

    def test_ServersThatEndInterruptionsAndAStoppedRankEndAllRanks(self):
        for what in ("interrupted", "servers", "stopped"):
            with self.subTest(what=what):
                serve = subprocess.Popen([str(PROGRAMS / "millrace"), "serve", "--shards", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                                          "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                servers = json.loads(serve.stdout.readline())["servers"]
                with serve, start([*self.endless, "--path", "server", "--servers", servers]) as mpirun:
                    ranks = ranks_of(mpirun)
                    while not mpirun.stdout.readline().strip().startswith("2 "):
                        self.assertIsNone(mpirun.poll())
                    if what == "servers":
                        serve.send_signal(signal.SIGTERM)
                    else:
                        os.kill(ranks[1], signal.SIGTERM if what == "interrupted" else signal.SIGSTOP)
                    try:
                        _, err = mpirun.communicate(timeout=RANKS_MAX_S)
                    except subprocess.TimeoutExpired:
                        mpirun.kill()
                        self.fail(f"ranks still run after {RANKS_MAX_S} s")
                    serve.send_signal(signal.SIGTERM)
                    serve.wait(timeout=RANKS_MAX_S)
                    self.assertNotEqual(mpirun.returncode, 0)
                    if what == "interrupted":
                        self.assertEqual(mpirun.returncode, 7, err)
                    else:
                        # The shard that evicts the worker names it, and writes the sentence into the table for the other one.
                        stopped = "worker 1 of job .* went silent"
                        self.assertRegex(err, "rank [0-9].* ends: .*shard" if what == "servers" else stopped)

    def test_FullBatchesGiveTheSameLossForEveryNumberOfRanks(self):
        flags = ["--train", self.data, "--test", self.test, "--batch", "3000", "--epochs", "20", "--lr", "1"]
        losses = [self.trained(flags, ranks)["epochs"][-1]["loss"] for ranks in (1, 2, 3, 5)]
        for loss in losses[1:]:
            self.assertAlmostEqual(loss, losses[0], places=5)

    def test_TheModelIsWrittenAndEvaluated(self):
        model = str(Path(self.folder.name) / "a.model")
        ended = run([*self.quick, "-o", model])
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("3 ranks, 1 threads each; 3,000 rows, 300 features", ended.stdout)
        self.assertIn("held-out", ended.stdout)
        self.assertEqual(len(ended.stdout.strip().split("\n")), 2 + 8 + 1, ended.stdout)
        evaluated = subprocess.run([str(PROGRAMS / "millrace"), "eval", "--model-file", model, "--test", self.test], check=False,
                                   capture_output=True, text=True, timeout=RANKS_MAX_S)
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)

    def refused(self, arguments, code, words):
        ended = run(arguments)
        self.assertEqual(ended.returncode, code, ended.stderr)
        self.assertEqual(ended.stderr.count(words), 1, ended.stderr)
        self.assertNotIn("interrupted", ended.stderr)

    def test_ABadFileIsReportedOnce(self):
        def file(name, text):
            path = Path(self.folder.name) / name
            path.write_bytes(text)
            return ["--train", str(path)]
        self.refused(["--train", "/no/such/file"], 6, "/no/such/file: No such file or directory")
        self.refused(["--train", self.folder.name], 6, "no regular file")
        self.refused(file("empty", b""), 3, "it holds no rows")
        self.refused(file("labels", b"1:1 2:1\n" * 20), 3, "the label '1:1' is not a number")
        self.refused(file("one", b"1 1:1\n" * 20), 3, "two classes are needed")
        self.refused(file("gzip", b"\x1f\x8b\x08rest"), 3, "decompress it first")
        self.refused([*self.quick, "--dimension", "20"], 3, "the largest of --dimension 20")
        self.refused([*self.quick, "-o", "/no/such/folder/model"], 6, "cannot write /no/such/folder/model:")

    def test_InvalidOptionsAreRefusedBeforeMpiStarts(self):
        servers, auto = (["--path", path, "--servers", "127.0.0.1:7600"] for path in ("server", "auto"))
        for arguments, word in (([], "--train is required"), (["--algorithm", "no_such"], "ssar_split_allgather"),
                                (["--algorithm", "oktopk"], "--select topk"), (["--lr-schedule", "linear"], "inverse_sqrt"),
                                (["--codec-up", "auto"], "--codec-up"), (["--lr", "1000", "--l2", "0.5"], "an l2 of 0.500000 is 1 or more"),
                                (["--select", "uniform:0.1"], "add --unbiased"),
                                (["--unbiased", "--select", "topk:0.1"], "one that draws"),
                                (["--unbiased", "--algorithm", "topk_a", "--select", "topk:0.1"], "exact sums"),
                                (["--optimizer", "oktopk_sgd", "--unbiased", "--select", "gspar:0.1"], "take --optimizer sgd"),
                                (["--snapshot-every", "5"], "is of --optimizer svrg"),
                                (["--allgather", "dense"], "is of --optimizer scd"),
                                ([*servers, "--unbiased", "--select", "topk:0.1"], "one that draws"),
                                (["--optimizer", "scd", "--model", "svm"], "scd trains lr and l2svm"),
                                (["--optimizer", "scd", "--select", "topk:0.1"], "no --select"),
                                (["--optimizer", "scd", "--algorithm", "gtopk"], "no --algorithm"),
                                (["--optimizer", "scd", "--algorithm", "auto"], "no --algorithm"),
                                (["--optimizer", "scd", "--algorithm", "ssar_split_allgather"], "no --algorithm"),
                                (["--staleness", "65"], "--staleness"),
                                (["--path", "server"], "--path server needs --servers"),
                                (["--path", "auto"], "--path auto needs --servers"), ([*auto, "--codec-up", "auto", "--quantizer", "raw+qsgd4"], "--codec-up"),
                                ([*auto, "--codec-up", "auto", "--algorithm", "dense_ring"], "--codec-up: peers have no automatic codec"),
                                ([*auto, "--select", "uniform:0.1"], "add --unbiased"),
                                (["--servers", "127.0.0.1:7600"], "--servers is of --path server or auto"),
                                ([*servers, "--algorithm", "gtopk"], "--algorithm is of --path peers"),
                                ([*servers, "--quantizer", "raw+qsgd4"], "--quantizer is of dense phases"),
                                ([*servers, "--optimizer", "scd"], "scd"), ([*servers, "--staleness", "64"], "staleness"),
                                (["--momentum", "correction:0.9"], "rgc has"), (["--clip", "1"], "no --clip"),
                                (["--optimizer", "adam", "--beta1", "1"], "beta 1 must be in [0, 1)")):
            given = arguments and ["--train", self.data, *arguments]
            ended = subprocess.run([PROGRAM, "train", *given], capture_output=True, text=True, timeout=RANKS_MAX_S, check=False)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(word, ended.stderr)

    def test_EveryRankReportsDifferingOptions(self):
        ended = mpi_ranks.run_differing(["train", *self.quick, "--l2", "0.25"], ["train", *self.quick])
        self.assertNotEqual(ended.returncode, 0)
        for rank in range(RANKS):
            self.assertIn(f"millrace-peer train: rank {rank}: ", ended.stderr)
        self.assertIn("l2=0.25", ended.stderr)

    def test_SigtermToOneRankOrToMpirunEndsAllCleanly(self):
        model = Path(self.folder.name) / "never.model"
        for whom in ("rank", "mpirun"):
            with self.subTest(whom=whom), start([*self.endless, "-o", str(model)]) as mpirun:
                ranks = ranks_of(mpirun)
                # Until an epoch is printed: from then on it trains.
                while not mpirun.stdout.readline().strip().startswith("2 "):
                    self.assertIsNone(mpirun.poll())
                os.kill(ranks[1] if whom == "rank" else mpirun.pid, signal.SIGTERM)
                try:
                    _, err = mpirun.communicate(timeout=RANKS_MAX_S)
                except subprocess.TimeoutExpired:
                    mpirun.kill()
                    self.fail(f"ranks still run after {RANKS_MAX_S} s")
                if whom == "rank":
                    self.assertEqual(mpirun.returncode, 7, err)
                    self.assertEqual(err.count("millrace-peer train: interrupted after step"), 1, err)
                self.assertNotEqual(mpirun.returncode, 0)
                self.assertFalse(model.exists())

    def test_AsynchronousStepsNeedAThreadThatMayCallMpi(self):
        self.refused([*self.quick, "--staleness", "1", "--mpi-threads", "funneled"], 2, "--mpi-threads serialized")

    def test_AStoppedRankIsNamed(self):
        for flags in ([], ["--staleness", "2"]):
            with self.subTest(flags=flags), start([*self.endless, "--rank-silence", "6000ms", *flags]) as mpirun:
                ranks = ranks_of(mpirun)
                while not mpirun.stdout.readline().strip().startswith("2 "):
                    self.assertIsNone(mpirun.poll())
                os.kill(ranks[2], signal.SIGSTOP)
                try:
                    _, err = mpirun.communicate(timeout=RANKS_MAX_S)
                except subprocess.TimeoutExpired:
                    mpirun.kill()
                    self.fail(f"ranks still run after {RANKS_MAX_S} s")
                self.assertRegex(err, "rank 0: .*rank 2 has not answered for 6000 ms")
                self.assertNotEqual(mpirun.returncode, 0)


if __name__ == "__main__":
    mpi_ranks.main()
