#!/usr/bin/env python3
"""millrace.torch.Replica with real shards: the mean of the workers' gradients, refusals, workers that are killed.

    torch_replica_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch_required  # first: skips where PyTorch is absent

import torch

from in_threads import in_threads
from torch_examples_test import ENVIRONMENT, EXAMPLES, torchrun, write_digits
from torch_shards import Shards, metrics_of

if torch_required.BUILT:
    from millrace import JobError
    from millrace.torch import Replica

TIMEOUT_S = 120
WORKERS = 2


def network(seed=5):
    """Returns a model of two layers; one parameter is frozen, and equal for all seeds."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    model[0].bias.requires_grad_(False).fill_(0.1)
    return model


def loss_of(model, worker, step):
    draw = torch.Generator().manual_seed(1_000 * step + worker)
    inputs, labels = torch.randn(8, 64, generator=draw), torch.randint(0, 10, (8,), generator=draw)
    return torch.nn.functional.cross_entropy(model(inputs), labels)


def parameters_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class WithShards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.shards = Shards()

    @classmethod
    def tearDownClass(cls):
        cls.shards.stop()

    def replica(self, model, worker, **options):
        options = {"rate": 0.1, "select": "none", "workers": WORKERS, "job": self.id().rsplit(".", 1)[-1], **options}
        return Replica(model, self.shards.servers, worker=worker, **options)


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class Steps(WithShards):
    def trained(self, steps=4, **options):
        """Returns the parameters of all workers. At the start worker 1 has other ones than worker 0."""
        models = [network(seed=5 + worker) for worker in range(WORKERS)]

        def train(worker):
            model = models[worker]
            with self.replica(model, worker, **options) as replica:
                while replica.steps < steps:
                    model.zero_grad()
                    loss_of(model, worker, replica.steps).backward()
                    replica.step()
            return parameters_of(model)

        return in_threads(train, WORKERS)

    def expected(self, rate_of, steps=4):
        """Returns the parameters after plain gradient descent with the mean of the workers' gradients."""
        model = network()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for step in range(steps):
            model.zero_grad()
            sum(loss_of(model, worker, step) for worker in range(WORKERS)).backward()
            with torch.no_grad():
                for parameter in trained:
                    parameter -= rate_of(step) * parameter.grad / WORKERS
        return parameters_of(model)

    def check(self, found, expected):
        self.assertTrue(torch.equal(found[0], found[1]))
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-6)

    def test_Dense_IsPlainGradientDescent(self):
        self.check(self.trained(), self.expected(lambda step: 0.1))

    def test_None_IsAsIfTheOptionWereNotGiven(self):
        self.check(self.trained(combine=None, initial_weights=None, returns=None, momentum=None), self.expected(lambda step: 0.1))
        model = network()
        with self.replica(model, 0, workers=1, select=None, job="selected") as replica:
            loss_of(model, 0, 0).backward()
            replica.step()
            sent = {tensor.name: tensor.entries_sent_last for tensor in replica.session.stats().tensors}
        self.assertEqual(sent["0.weight"], 64, "one of 100 entries")

    def test_RateOfTheStep_IsTheSchedule(self):
        rate = lambda step: 0.2 / (step + 1)  # noqa: E731
        self.check(self.trained(rate=rate), self.expected(rate))

    def test_UnusedParameter_SendsZeros(self):
        models = [network() for _ in range(WORKERS)]

        def body(worker):
            model = models[worker]
            before = model[2].weight.detach().clone()
            with self.replica(model, worker) as replica:
                model[0](torch.ones(1, 64)).sum().backward()
                replica.step()
                self.assertEqual(replica.steps, 1)
                self.assertEqual(replica.stats().steps, 1)
            return torch.equal(before, model[2].weight)

        self.assertEqual(in_threads(body, WORKERS), [True, True])

    def test_StepThatFailsHalfWay_LeavesTheJob(self):
        model = network()
        replica = self.replica(model, 0, workers=1, fuse_below=0)
        self.addCleanup(replica.close)

        def step_with_infinity(place):
            loss_of(model, 0, 0).backward()
            replica._parameters[place][1].grad.fill_(float("inf"))
            with self.assertRaises(JobError) as raised:
                replica.step()
            self.assertEqual(raised.exception.code, "non_finite")
            model.zero_grad()

        step_with_infinity(0)  # before the first push
        loss_of(model, 0, 0).backward()
        replica.step()
        self.assertEqual(replica.steps, 1)
        step_with_infinity(1)
        for call in (replica.step, replica.finish, lambda: replica.save("file")):
            with self.assertRaisesRegex(RuntimeError, "has left its job"):
                call()

    def test_EndWithinABlock_IsNotRepeated(self):
        for end in Replica.finish, Replica.close:
            with self.subTest(end.__name__), self.replica(network(), 0, workers=1, job=end.__name__, timeout=None) as replica:
                loss_of(network(), 0, 0).backward()
                replica.step()
                end(replica)
            replica.finish()

    def test_Http_HasTheMetricsOfTheWorker(self):
        model = network()
        with self.replica(model, 0, workers=1, http="127.0.0.1:0") as replica:
            loss_of(model, 0, 0).backward()
            replica.step()
            self.assertIn("millrace_worker_steps_total{", metrics_of(replica.session))

    def test_UnusableParametersAndGradients_AreRefused(self):
        wrong = network().double()
        with self.assertRaisesRegex(TypeError, "parameter '0.weight' is torch.float64 on cpu"):
            self.replica(wrong, 0)
        turned = network()
        turned[2].weight = torch.nn.Parameter(torch.zeros(100, 10).t())
        with self.assertRaisesRegex(TypeError, "parameter '2.weight' .* not contiguous"):
            self.replica(turned, 0)
        with self.assertRaisesRegex(ValueError, "no parameters that need gradients"):
            self.replica(network().requires_grad_(False), 0)
        for option in ({"select": "no such thing"}, {"codec": "nonsense"}):
            with self.assertRaisesRegex(JobError, "no such thing|nonsense"):
                self.replica(torch.nn.Linear(4, 2), 0, workers=1, **option)
        with self.assertRaisesRegex(ValueError, "rate is 0"):
            self.replica(network(), 0, rate=0)
        with self.assertRaisesRegex(TypeError, "did you mean 'quorum'"):
            self.replica(network(), 0, quorumm=1)
        words = torch.nn.Embedding(10, 4, sparse=True)
        with self.replica(words, 0, workers=1) as replica:
            words(torch.tensor([3])).sum().backward()
            with self.assertRaisesRegex(TypeError, "gradient of 'weight' has layout torch.sparse"):
                replica.step()


def train_and_hold(test, worker, pipe, steps, hold, options):
    """Trains in a process of its own. The steps of `hold` are {step: word}: there it reports, and awaits a word."""
    torch.set_num_threads(1)
    model = network()
    replica = test.replica(model, worker, audit=True, heartbeat=0.2, **options)
    pipe.send(("begins", replica.steps, parameters_of(model).numpy().tobytes()))
    held = set()
    while replica.steps < steps:
        for step in hold:
            if replica.steps >= step and step not in held:
                held.add(step)
                pipe.send(("holds", replica.steps, parameters_of(model).numpy().tobytes()))
                pipe.recv()
        model.zero_grad()
        loss_of(model, worker, replica.steps).backward()
        replica.step()
    replica.session.finish()
    audit = replica.session.stats().audit
    pipe.send(("ends", replica.steps, parameters_of(model).numpy().tobytes(), audit))
    replica.close()
    os._exit(0)  # the fork has the test's own ends


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class Kills(WithShards):
    """Worker 1 is killed at step 20, while worker 0 continues to step 60 and holds there."""

    STEPS = 100

    def start(self, worker, hold, options):
        ours, theirs = multiprocessing.Pipe()
        pid = os.fork()  # torch and the package are there already
        if pid == 0:
            ours.close()
            try:
                train_and_hold(self, worker, theirs, self.STEPS, hold, options)
            finally:
                os._exit(1)
        theirs.close()
        self.addCleanup(ours.close)
        self.addCleanup(self.end, pid)
        self.running.add(pid)
        return pid, ours

    def end(self, pid):
        if pid in self.running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.running.discard(pid)

    def receive(self, pipe, word):
        self.assertTrue(pipe.poll(TIMEOUT_S), f"no '{word}'")
        message = pipe.recv()
        self.assertEqual(message[0], word)
        return message[1:]

    def train_with_a_kill(self, **options):
        self.running = set()
        _, first = self.start(0, (20, 60), options)
        pid, second = self.start(1, (20,), options)
        for pipe in (first, second):
            self.receive(pipe, "begins")
            self.receive(pipe, "holds")
        self.end(pid)
        first.send("continue")
        step, parameters = self.receive(first, "holds")  # without worker 1
        self.assertGreaterEqual(step, 60)
        _, second = self.start(1, (), options)
        begins, taken = self.receive(second, "begins")
        self.assertEqual(begins, step)
        self.assertEqual(taken, parameters, "it begins with the parameters of worker 0")
        first.send("continue")
        ends = [self.receive(pipe, "ends") for pipe in (first, second)]
        self.assertEqual([end[0] for end in ends], [self.STEPS] * WORKERS)
        self.assertEqual(ends[0][1], ends[1][1], "all workers have the same parameters")
        self.assertNotEqual(ends[0][1], parameters)
        for _, _, audit in ends:
            self.assertGreater(audit.checks, 0)
            self.assertEqual(audit.imbalance, 0)

    def test_Synchronous_OthersContinueAfterTheEviction(self):
        self.train_with_a_kill(select="topk:0.1", dense_below=0, dead_after=2)

    def test_Partial_OthersDoNotWait(self):
        self.train_with_a_kill(select="topk:0.1", dense_below=0, mode="partial", quorum=1, deadline=0.02)


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class Example(WithShards):
    """mnist_elastic.py: to its end, and under a torchrun that starts a killed process again."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        write_digits(Path(self.folder.name))

    def start(self, worker, workers, steps, *arguments, starter=(sys.executable,)):
        command = [*starter, EXAMPLES / "mnist_elastic.py", "--worker", worker, "--workers", workers, "--data", self.folder.name,
                   "--servers", self.shards.servers, "--job", self.id(), "--steps", steps, "--batch", 4, *arguments]
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)  # torchrun ends its worker, too
        return process

    def next_match(self, process, pattern):
        """Returns the groups of the pattern in the next line that has it."""
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(pattern, line):
                return found.groups()
        self.fail(f"no '{pattern}' in:\n{''.join(lines)}")

    def test_OneWorker_LearnsTheDigits(self):
        model = Path(self.folder.name) / "model.pt"
        text = self.start(0, 1, 150, "--select", "topk:0.05", "--model", model).communicate()[0]
        self.assertGreater(float(re.search(r"accuracy ([\d.]+) after step 150", text).group(1)), 0.5, text)
        self.assertEqual(set(torch.load(model)), {f"{layer}.{part}" for layer in (0, 3, 7, 9) for part in ("weight", "bias")})

    def test_KilledProcess_IsStartedAgainByTorchrun(self):
        self.kill_under_torchrun()

    def test_KilledProcessOfAPartialJob_IsStartedAgainByTorchrun(self):
        self.kill_under_torchrun("--mode", "partial")

    def kill_under_torchrun(self, *arguments):
        begins, step = r"process (\d+) begins at step (\d+)", r"step (\d+): loss"
        endless = 1_000_000_000
        elastic = torchrun("--nproc_per_node", 1, "--max_restarts", 1, "--monitor_interval", 0.2)
        first = self.start(0, 2, endless, *arguments)
        second = self.start(1, 2, endless, *arguments, starter=elastic)
        self.assertEqual(self.next_match(first, begins)[1], "0")
        killed, _ = self.next_match(second, begins)
        self.next_match(second, step)
        os.kill(int(killed), signal.SIGKILL)
        again, begun = self.next_match(second, begins)
        self.assertNotEqual(again, killed)
        # Worker 0 may still have had to apply the update of step 50, which worker 1 had applied.
        self.assertGreaterEqual(int(begun), 49)
        reported = int(self.next_match(second, step)[0])
        self.assertGreater(reported, int(begun))
        while int(self.next_match(first, step)[0]) < reported:
            pass  # the other worker, in its first process, has these steps as well
        self.assertIsNone(first.poll())


if __name__ == "__main__":
    unittest.main()
