#!/usr/bin/env python3
"""Sums of FSDP2's flat gradients beside a backward pass, with fake sessions and a stand-in for the sharded model.

    torch_sharded_test.py [FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE] [unittest arguments]

torch_fsdp_test.py has FSDP2 itself, where torch has it.
"""

import math
import threading
import unittest
from types import SimpleNamespace
from unittest import mock

import torch_required  # first: skips where PyTorch is absent  # noqa: F401

import torch

from in_threads import in_threads
from millrace.torch.bucket import Parts, Place
from millrace.torch.exchange import Exchange
from millrace.torch.fsdp import ShardedSums
from millrace.torch.residuals import Residuals
from torch_fake_job import SIZES, gradients, mean
from torch_fakes import FakeDevice, FakeLibrary, JobConfig, JobError, SumsInProcess, Tensor, WorkerConfig

SMALL = "first.bias"
PASS = threading.local()  # number: of the backward pass of this thread
GROUPS = (("second.weight", "second.bias"), ("first.weight", "first.bias"))  # in the order of the backward pass


class Group:
    """A group of FSDP2. Its flat gradient has no padding, and is the gradient behind the hook."""

    gradient_divide_factor, all_reduce_grads = None, True

    def __init__(self, names):
        self.names, self.gradient, self._all_reduce_hook = names, None, None
        ends = [sum(math.prod(SIZES[name]) for name in names[:at + 1]) for at in range(len(names))]
        self.parts = Parts(zip(names, [0, *ends], ends))


class Model:
    """Takes the place of fsdp.ShardedModel."""

    def __init__(self):
        self._groups = [Group(names) for names in GROUPS]

    def groups(self):
        return self._groups

    def name(self, group):
        return group.names[0].partition(".")[0]

    def parts(self, group):
        return group.parts

    def check_gradient(self, group, flat):
        """Accepts each gradient."""

    def begun(self, group):
        return group.gradient is not None

    def write(self, group, sums, begun):
        if begun:
            group.gradient += sums
        else:
            group.gradient.copy_(sums)


class Rank:
    """One replica of a model whose hooks are called within a backward pass."""

    def __init__(self, library, rank, **job):
        tensors = [Tensor(name, math.prod(size), select="none" if name == SMALL else "topk:0.05") for name, size in SIZES.items()]
        places = {name: Place(at, tensor.dimension, name == SMALL) for at, (name, tensor) in enumerate(zip(SIZES, tensors))}
        config = JobConfig(**{"name": "sharded", "workers": 2, "combine": "mean", "select": "topk:0.05", **job})
        self.session = library.Session(config, WorkerConfig(worker=rank), tensors)
        report = SimpleNamespace(count=lambda waited, hidden: None, tell=lambda: None)
        self.exchange = Exchange(self.session, places, Residuals(), None, report, 5.0)
        self.model, self.copied, self.passes = Model(), 0, 0
        self.sums = ShardedSums(self.exchange, self.model, "mean", self.count)
        for group in self.model.groups():
            group._all_reduce_hook = SimpleNamespace(sums=self.sums)

    def count(self, copied):
        self.copied += copied

    def backward(self, given, groups=(0, 1), between=lambda: None):
        """Runs a backward pass in which FSDP2 calls the hooks of some groups, and `between` behind each."""
        weight = torch.ones(1, requires_grad=True)
        self.passes += 1

        def in_pass(gradient):
            PASS.number = self.passes
            for group in (self.model.groups()[at] for at in groups):
                flat = torch.cat([given[name].flatten() for name in group.names])
                self.sums.add(group._all_reduce_hook, flat)
                group.gradient = flat if group.gradient is None else group.gradient + flat
                between()

        weight.register_hook(in_pass)
        weight.sum().backward()

    def gradient(self, name):
        group = next(group for group in self.model.groups() if name in group.names)
        return dict(group.parts.slices(group.gradient))[name]


class Case(unittest.TestCase):
    """torch 1.13, which has no FSDP2, has no number of a backward pass: a rank counts its own."""

    def setUp(self):
        patch = mock.patch("torch._C._current_graph_task_id", lambda: PASS.number, create=True)
        patch.start()
        self.addCleanup(patch.stop)

    def ranks(self, count=2, **job):
        library = FakeLibrary(SumsInProcess())
        ranks = [Rank(library, rank, workers=count, **job) for rank in range(count)]
        for rank in ranks:
            self.addCleanup(rank.exchange.close)
        return ranks


class Sharded(Case):
    def train(self, steps, between=lambda: None, zero=True):
        """Returns the gradients of both ranks after each step, and the ranks."""
        ranks, found = self.ranks(), []
        for given in steps:
            in_threads(lambda rank, given=given: ranks[rank].backward(given[rank], between=between), 2)
            found.append([{name: rank.gradient(name).clone() for name in SIZES} for rank in ranks])
            for rank in ranks if zero else ():
                for group in rank.model.groups():
                    group.gradient = None
        return found, ranks

    def test_GradientsAreTheUpdates(self):
        """And nothing is lost: the gradients of all ranks are the updates and the residuals."""
        steps = [gradients(seed) for seed in range(3)]
        found, ranks = self.train(steps)
        for name in SIZES:
            applied = sum(2 * of_step[0][name].double() for of_step in found)
            kept = sum(rank.session.residual(name).double() for rank in ranks)
            entered = sum(2 * mean(given, name).flatten() for given in steps)
            self.assertLessEqual(float((applied + kept - entered).abs().max()), 1e-5, name)
            for of_step in found:
                self.assertTrue(torch.equal(of_step[0][name], of_step[1][name]), name)
                self.assertEqual(bool((of_step[0][name] == 0).any()), name != SMALL)
        entries = sum(math.prod(size) for size in SIZES.values())
        self.assertEqual([rank.copied for rank in ranks], 2 * [3 * 2 * 4 * entries])

    def test_GradientsThatArePresent_AreAddedTo(self):
        steps = [gradients(seed) for seed in range(3)]
        alone, _ = self.train(steps)
        together, _ = self.train(steps, zero=False)
        for name in SIZES:
            expected = alone[0][0][name] + alone[1][0][name] + alone[2][0][name]
            self.assertTrue(torch.equal(together[2][0][name], expected), name)

    def test_HooksReturn_BeforeTheOtherRankBegins(self):
        first, second = self.ranks()
        given, hooks = gradients(1), []

        def both_hooks_are_done():
            hooks.append(first)
            if len(hooks) == 2:
                in_threads(lambda _: second.backward(given[1]), 1)

        first.backward(given[0], between=both_hooks_are_done)
        self.assertTrue(torch.equal(first.gradient(SMALL), second.gradient(SMALL)))

    def test_DeviceUpdates_HaveTheBitsOfTheHost(self):
        steps = [gradients(seed) for seed in range(3)]
        expected, on_host = self.train(steps)
        with mock.patch("millrace.torch.device.Streams", FakeDevice), mock.patch("millrace.torch.device.ready_of", lambda _: "ready"):
            found, ranks = self.train(steps)
        for at, (of_device, of_host) in enumerate(zip(found, expected)):
            for rank in range(2):
                for name in SIZES:
                    self.assertTrue(torch.equal(of_device[rank][name], of_host[rank][name]), f"step {at}, rank {rank}, {name}")
        for name in SIZES:
            self.assertTrue(torch.equal(ranks[1].session.residual(name), on_host[1].session.residual(name)), name)
        self.assertEqual(ranks[0].session.pushed_there, 3 * len(SIZES) - 2, "later steps ask no more for the tensor without selection")
        up, down = ranks[0].exchange.copied()
        self.assertEqual(down, 3 * 4 * math.prod(SIZES[SMALL]))
        self.assertGreater(up, down)

    def test_GradientsOfADevice_AreWrittenBehindTheStreamsOfTheHooks(self):
        """FSDP2 divides and adds the zeros of the hooks there."""
        rank, = self.ranks(1)
        order = []
        write = rank.model.write
        rank.model.write = lambda group, *given: (order.append(rank.model.name(group)), write(group, *given))
        with mock.patch("millrace.torch.device.use_on_current_stream", lambda _: "a stream"), \
             mock.patch("millrace.torch.device.wait_for", order.append):
            rank.backward(gradients(1)[0])
        self.assertEqual(order, ["a stream", "second", "a stream", "first"])

    def test_SumsAreWritten_BehindCallbacksOfTheBackwardPass(self):
        """FSDP2 calls hooks in one, and waits for streams."""
        rank, = self.ranks(1)
        order, write = [], rank.model.write
        rank.model.write = lambda group, *given: (order.append("written"), write(group, *given))
        queue = torch.autograd.Variable._execution_engine.queue_callback
        rank.backward(gradients(1)[0], between=lambda: queue(lambda: order.append("called")))
        self.assertEqual(order, 2 * ["called"] + 2 * ["written"])

    def test_HookOnADevice_DoesNotPush(self):
        """A push waits for the gradient; the thread of the backward pass must not."""
        rank, = self.ranks(1)
        push, hooks, pushed = rank.session.push, [], threading.Event()

        def late(*given, **more):
            self.assertTrue(pushed.wait(10), "the hooks have not returned")
            return push(*given, **more)

        def after_a_hook():
            hooks.append(rank)
            if len(hooks) == 2:
                pushed.set()

        rank.session.push = late
        with mock.patch("millrace.torch.device.Streams", FakeDevice), mock.patch("millrace.torch.device.ready_of", lambda _: "ready"):
            rank.backward(gradients(1)[0], between=after_a_hook)
        self.assertEqual(len(hooks), 2)


class Failures(Case):
    def assert_ended(self, rank, words):
        self.assertTrue(rank.exchange.failed())
        self.assertRaisesRegex((RuntimeError, ValueError), words, rank.exchange.raise_within_step)
        self.assertRaisesRegex((RuntimeError, ValueError), words, rank.backward, gradients(1)[0])

    def test_PassWithoutOneOfTheModules_IsRefusedAtItsEnd(self):
        rank, = self.ranks(1)
        rank.backward(gradients(0)[0])
        self.assertFalse(rank.exchange.failed())
        self.assertRaisesRegex(ValueError, "^first had no gradient", rank.backward, gradients(1)[0], groups=(0,))
        self.assert_ended(rank, "first had no gradient")

    def test_ModuleWithTwoGradients_IsRefused(self):
        rank, = self.ranks(1)
        self.assertRaisesRegex(ValueError, "^second has a second gradient", rank.backward, gradients(1)[0], groups=(0, 0))
        self.assert_ended(rank, "second gradient")

    def test_PassThatEndsBetweenModules_LeavesNoStateToSave(self):
        def ends():
            raise ArithmeticError("of the model")

        rank, = self.ranks(1)
        self.assertRaisesRegex(ArithmeticError, "of the model", rank.backward, gradients(1)[0], between=ends)
        self.assertTrue(rank.exchange.failed())
        self.assertRaisesRegex(RuntimeError, "ended within its step", rank.exchange.raise_within_step)
        self.assertRaisesRegex(RuntimeError, "ended within its step", rank.backward, gradients(1)[0], groups=(1,))

    def test_MissingHook_IsNamed(self):
        rank, = self.ranks(1)
        rank.model.groups()[1]._all_reduce_hook = None
        self.assertRaisesRegex(ValueError, "^first: set_all_reduce_hook", rank.backward, gradients(1)[0])

    def test_AbsentReplica_IsATimeout(self):
        first, _ = self.ranks()
        with mock.patch.object(first.exchange, "_timeout", 0.3), self.assertRaises(JobError) as raised:
            first.backward(gradients(1)[0])
        self.assertEqual(raised.exception.code, "timeout")
        self.assert_ended(first, "blocked on another worker")


if __name__ == "__main__":
    unittest.main()
