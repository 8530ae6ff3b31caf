#!/usr/bin/env python3
"""`millrace train --store`: the servers hold the weights, workers pull the weights that a batch touches.

    store_train_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from commands import TIMEOUT_S, made_up_rows, millrace, run, start


class StoreTraining(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.rows = self.path("rows.svm")
        self.rows.write_text(made_up_rows(600, 3), encoding="utf-8")
        self.path("saves").mkdir()
        self.serve()

    def path(self, name):
        return Path(self.folder.name) / name

    def serve(self):
        with open(self.path("serve.log"), "a", encoding="utf-8") as log:
            self.server = subprocess.Popen(
                millrace("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--store-dir", self.path("saves"),
                         "--table", self.path("table.db")), stdout=subprocess.PIPE, stderr=log, text=True)
        self.servers = json.loads(self.server.stdout.readline())["servers"]
        self.addCleanup(self.end, self.server)

    def end(self, server):
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=240), 0)
        server.stdout.close()

    def train(self, job, *arguments, workers=2):
        """The bytes of the model, and what worker 0 printed last."""
        model = self.path(f"{job}.model")
        running = [start("train", "--servers", self.servers, "--job", job, "--worker", worker, "--workers", workers, "--train",
                         self.rows, "--json", "-o", model, "--batch", 16, *arguments) for worker in range(workers)]
        results = []
        for process in running:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            results.append(json.loads(out.strip().split("\n")[-1]))
        return model.read_bytes(), results[0]

    def wait_until(self, holds):
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(self.server.poll())
            time.sleep(0.01)

    def saves(self):
        return sorted(self.path("saves").glob("*.store"))

    def refused(self, sentence, *arguments):
        ended = run("train", "--servers", self.servers, "--train", self.rows, *arguments)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn(sentence, ended.stderr)

    def test_SgdAtTheServersIsSgdAtTheWorkersToTheBit(self):
        plain, _ = self.train("plain", "--lr", 0.75, "--epochs", 2)
        stored, _ = self.train("stored", "--store", "sgd:0.75", "--epochs", 2)
        self.assertEqual(plain, stored)
        sparse, _ = self.train("sparse", "--lr", 0.75, "--epochs", 2, "--select", "topk:0.2", "--reselect", "topk:0.3")
        kept, _ = self.train("kept", "--store", "sgd:0.75", "--epochs", 2, "--select", "topk:0.2", "--reselect", "topk:0.3")
        self.assertEqual(sparse, kept)
        self.assertNotEqual(plain, sparse)

    def test_EveryOptimizerTrains(self):
        for optimizer in ("momentum:0.1:0.9", "adagrad:0.5", "adam:0.05"):
            _, report = self.train(optimizer.split(":")[0], "--store", optimizer, "--epochs", 4)
            losses = [epoch["loss"] for epoch in report["epochs"]]
            self.assertLess(losses[-1], 0.75 * losses[0], optimizer)

    def test_ALaterRunContinuesFromTheSave(self):
        _, first = self.train("on", "--store", "adam:0.05", "--epochs", 3)
        self.end(self.server)
        self.serve()
        _, second = self.train("on", "--store", "adam:0.05", "--store-begin", "saved", "--epochs", 1, workers=1)
        self.assertLess(second["epochs"][0]["loss"], 0.8 * first["epochs"][0]["loss"])

    def test_AKilledWorkerRejoinsAndPulls(self):
        state = self.path("state")

        def begin(worker):
            return start("train", "--servers", self.servers, "--job", "back", "--worker", worker, "--workers", 2, "--train", self.rows,
                         "--json", "--batch", 2, "--epochs", 8, "--compute-time", "2ms", "--store", "sgd:0.1", "--state", f"{state}{worker}",
                         "--save-every", 20)

        workers = [begin(worker) for worker in range(2)]
        self.wait_until(Path(f"{state}1").exists)
        workers[1].kill()
        workers[1].communicate()
        workers[1] = begin(1)
        said = [process.communicate(timeout=TIMEOUT_S) for process in workers]
        for process, (_, err) in zip(workers, said):
            self.assertEqual(process.returncode, 0, err)
        self.assertIn("this worker continues from there", said[1][1])
        epochs = json.loads(said[0][0].strip().split("\n")[-1])["epochs"]
        self.assertLess(epochs[-1]["loss"], 0.8 * epochs[0]["loss"])

    def test_AnInterruptWithinAPullSavesTheState(self):
        """Paused shards answer no pull. With staleness a worker waits for no update before it pulls again."""
        def begin(worker):
            return start("train", "--servers", self.servers, "--job", "paused", "--worker", worker, "--workers", 2, "--train", self.rows, "--json",
                         "--batch", 2, "--epochs", 8, "--staleness", 8, "--compute-time", "2ms", "--store", "sgd:0.1", "--state",
                         self.path(f"state{worker}"), "--save-every", 20)

        def is_still(process):
            def used():
                return Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[11]

            before = used()
            time.sleep(0.3)
            return used() == before

        workers = [begin(worker) for worker in range(2)]
        state = self.path("state1")
        self.wait_until(lambda: state.exists() or workers[1].poll() is not None)
        shards = [int(pid) for pid in Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text(encoding="utf-8").split()]
        self.assertEqual(len(shards), 2)
        try:
            for shard in shards:
                os.kill(shard, signal.SIGSTOP)
            self.wait_until(lambda: is_still(workers[1]))
            workers[1].send_signal(signal.SIGINT)
            _, err = workers[1].communicate(timeout=TIMEOUT_S)
        finally:
            for shard in shards:
                os.kill(shard, signal.SIGCONT)
        self.assertEqual(workers[1].returncode, 7, err)
        self.assertIn(f"the state is in {state}", err)
        workers[1] = begin(1)
        said = [process.communicate(timeout=TIMEOUT_S) for process in workers]
        for process, (_, err) in zip(workers, said):
            self.assertEqual(process.returncode, 0, err)
        self.assertIn("this worker continues from there", said[1][1])

    def test_ServePassesOnThatStoresAreToBeSavedNow(self):
        state = self.path("state")
        worker = start("train", "--servers", self.servers, "--job", "now", "--train", self.rows, "--json", "--batch", 2, "--epochs", 8,
                       "--compute-time", "2ms", "--store", "sgd:0.1", "--state", state, "--save-every", 20)
        self.wait_until(state.exists)
        self.assertEqual(self.saves(), [])
        self.server.send_signal(signal.SIGUSR2)
        self.wait_until(self.saves)
        self.assertIsNone(worker.poll(), "it is not the save of a job that is over")
        _, err = worker.communicate(timeout=TIMEOUT_S)
        self.assertEqual(worker.returncode, 0, err)

    def test_WhatDoesNotBelongToAStoreIsRefused(self):
        for flag in (("--lr", 1), ("--lr-schedule", "inverse:2"), ("--l2", 0.001)):
            self.refused("the rate is the store's", "--store", "sgd:0.1", *flag)
        self.refused("store_begin belongs to a store", "--store-begin", "saved")
        self.refused("with --store they pull", "--store", "sgd:0.1", "--initial-weights", "first")
        self.refused("is not an optimizer", "--store", "rmsprop:1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
