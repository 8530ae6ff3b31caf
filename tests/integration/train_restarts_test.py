#!/usr/bin/env python3
"""`millrace train --state`: workers that are killed or interrupted go on by the same command.

    train_restarts_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import random
import signal
import time
import unittest
import urllib.request

from commands import TIMEOUT_S, WithServers, made_up_rows, start


def flipped(data, draw):
    """Returns the bytes with one bit flipped."""
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1:]


class Restarts(WithServers):
    """A worker that ends early is started again by the same command."""

    def begin(self, workers, *more):
        """Starts all workers of a training of some seconds whose rate and L2 change every step."""
        data = self.path("restarts.svm", made_up_rows(900, 5))
        test = self.path("restarts.test.svm", made_up_rows(200, 6))
        flags = ["--train", data, "--test", test, "--batch", 2, "--epochs", 8, "--lr", 0.5, "--lr-schedule", "inverse:3", "--l2", 1e-3, "--audit", *more]

        def command(worker):
            return start("train", *self.flags(worker, workers), "--json", "--state", self.state(worker), *flags)

        self.command = command
        return [command(worker) for worker in range(workers)]

    def state(self, worker):
        return self.path(f"{self.id().rsplit('.', 1)[-1]}.state{worker}")

    def wait_for(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def end(self, processes):
        """All must train to the end with the same weights; returns their stderr."""
        said, losses = [], set()
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            result = json.loads(out.strip().split("\n")[-1])
            losses.add(json.dumps(result["epochs"][-1]["held_out"]))
            # Real gradients, and lives that were killed: nothing may be missing, or be there twice.
            self.assertEqual(result["audit"]["imbalance"], 0, result["audit"])
            self.assertGreater(result["audit"]["checks"], 0)
            self.assertNotIn("audit:", err)
            said.append(err)
        self.assertEqual(len(losses), 1, losses)
        for worker in range(len(processes)):
            self.assertFalse(self.state(worker).exists(), "a state belongs to a run that has not ended")
        return said

    def test_AKilledWorkerContinuesAtTheStepOfTheJob(self):
        workers = self.begin(3, "--save-every", 20)
        self.wait_for(self.state(1).exists)
        workers[1].kill()
        workers[1].communicate()
        workers[1] = self.command(1)
        self.assertRegex(self.end(workers)[1], "worker 1: the job is at step [0-9]+: this worker continues from there")

    def test_TheNumberOfAKilledWorkerIsFreeBeforeTwoHeartbeats(self):
        """Its closed connection says that it is dead. A heartbeat is as long as this test may last."""
        workers = self.begin(3, "--save-every", 20, "--heartbeat", f"{TIMEOUT_S}s", "--dead-after", "1h",
                             "--shard-silence", "1h")
        self.wait_for(self.state(1).exists)
        workers[1].kill()
        workers[1].communicate()
        workers[1] = self.command(1)
        self.assertIn("this worker continues from there", self.end(workers)[1])

    def test_AKilledWorkerWithoutAStateTakesTheWeightsOfTheOthers(self):
        workers = self.begin(2, "--save-every", 20, "-o", self.path("restarts.model"))
        self.wait_for(self.state(0).exists)
        workers[0].kill()
        workers[0].communicate()
        self.state(0).unlink()
        workers[0] = self.command(0)
        self.assertIn("this worker continues from there", self.end(workers)[0])
        self.assertTrue(self.path("restarts.model").exists())

    def test_AnInterruptedWorkerSavesItsStateAndIsStartedAgain(self):
        workers = self.begin(2, "--save-every", 30, "--compute-time", "5ms")  # worker 1 trains alone until worker 0 is back
        self.wait_for(self.state(0).exists)
        workers[0].send_signal(signal.SIGINT)
        _, err = workers[0].communicate(timeout=TIMEOUT_S)
        self.assertEqual(workers[0].returncode, 7, err)
        self.assertIn(f"the state is in {self.state(0)}", err)
        workers[0] = self.command(0)
        self.end(workers)

    def test_AWorkerRefusesADamagedStateAndAcceptsAnIntactOne(self):
        workers = self.begin(2, "--save-every", 30, "--compute-time", "5ms")
        self.wait_for(self.state(0).exists)
        workers[0].send_signal(signal.SIGINT)
        workers[0].communicate(timeout=TIMEOUT_S)
        whole, draw = self.state(0).read_bytes(), random.Random(self.id())
        damages = [("cut off", lambda data: data[:draw.randrange(len(data))])] * 3 + [("a flipped bit", lambda data: flipped(data, draw))] * 9
        for name, damage in damages:
            with self.subTest(name):
                self.state(0).write_bytes(damage(whole))
                ended = self.command(0)
                _, err = ended.communicate(timeout=TIMEOUT_S)
                self.assertEqual(ended.returncode, 3, err)
                self.assertIn(str(self.state(0)), err)
        self.state(0).write_bytes(whole)
        workers[0] = self.command(0)
        self.end(workers)

    def test_AStateOfAnotherJobIsRefusedByName(self):
        workers = self.begin(1, "--save-every", 10)
        self.wait_for(self.state(0).exists)
        workers[0].kill()
        workers[0].communicate()
        self.refused(5, "this is job 'another'", "train", *self.flags(job="another"), "--state", self.state(0), "--train",
                     self.path("restarts.svm"))

    def test_TheSameCommandAfterACrashTrainsOnAllRowsAgain(self):
        """Without --state: the job begins again, with all workers, as soon as the dead ones are certainly dead."""
        data = self.path("crash.svm", made_up_rows(200, 7))
        model = self.path("crash.model")

        def command(worker, *more):
            return start("train", *self.flags(worker, 2), "--json", "--train", data, "--connect-timeout", "60000ms", *more)

        first = [command(worker, "--epochs", 100_000, "--compute-time", "5ms") for worker in range(2)]
        self.wait_for(lambda: self.steps_of(self.id().rsplit(".", 1)[-1]) > 5)
        for process in first:
            process.kill()
            process.communicate()
        time.sleep(3)  # two heartbeats: a worker that was heard in them may live
        second = [command(worker, "--epochs", 3, "--batch", 16, "-o", model) for worker in range(2)]
        for process in second:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            result = json.loads(out.strip().split("\n")[-1])
            self.assertEqual(result["contributions"], 2 * result["rounds"], result)
            self.assertEqual(result["workers_missing"], 0)
        self.assertTrue(model.exists())

    def steps_of(self, job):
        with urllib.request.urlopen(f"http://{self.cluster['shards'][0]['http']}/status", timeout=120) as answer:
            jobs = json.load(answer)["jobs"]
        return max((one["steps_decided"] for one in jobs if one["name"] == job), default=0)

    def lose_a_worker(self, *more):
        """Two workers, of which one dies permanently; returns the exit code and output of the other one."""
        job = self.id().rsplit(".", 1)[-1]
        data = self.path("lost.svm", made_up_rows(120, 8))
        flags = ["--json", "--train", data, "--batch", 4, "--compute-time", "20ms", "--epochs", 20, "-o", self.path(job + ".model"), *more]
        workers = [start("train", *self.flags(worker, 2), *flags) for worker in range(2)]
        self.wait_for(lambda: self.steps_of(job) > 3)
        workers[1].kill()
        workers[1].communicate()
        out, err = workers[0].communicate(timeout=TIMEOUT_S)
        self.assertTrue(self.path(job + ".model").exists(), "the trained model is kept in any case")
        return workers[0].returncode, json.loads(out.strip().split("\n")[-1]), err

    def test_AJobThatEndsWithoutAWorkerReportsIt(self):
        code, result, err = self.lose_a_worker()
        self.assertEqual(code, 8, err)
        self.assertIn("without 1 of its 2 workers", err)
        self.assertIn("--workers-min 1", err)
        self.assertEqual(result["workers_missing"], 1)

    def test_AJobMayEndWithFewerWorkersWhereTheUserAllowsIt(self):
        code, result, err = self.lose_a_worker("--workers-min", 1)
        self.assertEqual(code, 0, err)
        self.assertEqual(result["workers_missing"], 1)

    def test_AJobWithTooFewWorkersEndsAtOnce(self):
        job = self.id().rsplit(".", 1)[-1]
        data = self.path("few.svm", made_up_rows(120, 8))
        flags = ["--train", data, "--compute-time", "20ms", "--epochs", 100_000, "--workers-min", 2]
        workers = [start("train", *self.flags(worker, 2), *flags) for worker in range(2)]
        self.wait_for(lambda: self.steps_of(job) > 3)
        workers[1].kill()
        workers[1].communicate()
        _, err = workers[0].communicate(timeout=TIMEOUT_S)
        self.assertEqual(workers[0].returncode, 8, err)
        self.assertIn("fewer than workers_min (2)", err)


if __name__ == "__main__":
    unittest.main()
