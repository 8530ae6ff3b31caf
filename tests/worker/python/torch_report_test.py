#!/usr/bin/env python3
"""The figures of a State: seconds waited and hidden, lines and scalars, the planner's verdict.

    torch_report_test.py [FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE] [unittest arguments]
"""

import threading
import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

import numpy as np
import torch

from millrace.torch.bucket import Bucket, Layout, Place
from millrace.torch.exchange import Exchange
from millrace.torch.report import seconds_beside
from millrace.torch.residuals import Residuals
from millrace.torch.verdict import BEGIN, END, Verdict
from millrace.torch.wait_list import WaitList
from torch_fake_job import Job, gradients
from torch_fakes import wait_until


class TimedSession:
    """A session whose pushes take 2 s of a clock that the test moves. The test sets off the updates."""

    def __init__(self):
        self.now, self.in_the_middle = 0.0, lambda: None
        self._arrived = [threading.Event() for _ in range(3)]

    def push(self, tensor, gradient, timeout):
        self.now += 1.0
        self.in_the_middle()
        self.now += 1.0
        return 0

    def try_wait_into(self, tensor, step, out, timeout):
        return True if self._arrived[tensor].wait(timeout) else None

    def wait_list(self):
        return WaitList(self)

    def wait_into(self, tensor, step, out, timeout):
        raise AssertionError("the update is late")

    def arrive(self, *tensors):
        for tensor in tensors:
            self._arrived[tensor].set()


class Times(unittest.TestCase):
    """Seconds waited and hidden. The clock is the test's."""

    def test_SecondsBeside_CountEachMomentOnce(self):
        for flights, held, seconds in (([], [], 0), ([(1, 4)], [], 3), ([(1, 4), (2, 6)], [], 5), ([(1, 2), (5, 6)], [], 2),
                                       ([(1, 4)], [(0, 9)], 0), ([(1, 9)], [(2, 3), (2, 5), (8, 12)], 4), ([(4, 1)], [(0, 2)], 0)):
            self.assertEqual(seconds_beside(flights, held), seconds, (flights, held))

    def exchange(self, late):
        """Returns the session, three buckets, the Exchange, and a list that takes (waited, hidden)."""
        session, counted = TimedSession(), []
        report = SimpleNamespace(count=lambda *seconds: counted.append(seconds), tell=lambda: None)
        places = {name: Place(tensor, 3, late) for tensor, name in enumerate("abc")}
        exchange = Exchange(session, places, Residuals(), None, report, clock=lambda: session.now)
        self.addCleanup(exchange.close)
        buckets = [Bucket(torch.ones(3), Layout([torch.zeros(3)], [name]), name == "c", torch.futures.Future()) for name in "abc"]
        return session, buckets, exchange, counted

    def test_HiddenSeconds_AreThoseOfUpdatesInFlightBesideTheLoop(self):
        session, (first, second, last), exchange, counted = self.exchange(late=False)
        exchange.send(first)  # 0 to 2
        session.now = 10.0
        session.arrive(0)  # in flight from 2 to 10
        first.future.wait()
        session.now = 14.0  # the link was idle
        exchange.send(second)  # 14 to 16
        session.now = 30.0

        def second_arrives():
            session.arrive(1)  # in flight from 16 to 31, of which the loop is held for 1 s
            second.future.wait()

        session.in_the_middle = second_arrives
        step = exchange.send(last)  # 30 to 32
        session.now = 40.0
        session.arrive(2)
        exchange.await_step(step)
        self.assertEqual(counted, [(8.0, 8.0 + 14.0)])

    def test_ParametersThatTravelTogether_AreNotHidden(self):
        session, buckets, exchange, counted = self.exchange(late=True)
        for bucket in buckets:
            session.now += 8.0
            step = exchange.send(bucket)
        session.now = 40.0
        session.arrive(0, 1, 2)
        exchange.await_step(step)
        self.assertEqual(counted, [(10.0, 0.0)])


class Layouts(unittest.TestCase):
    """Of the memory that a Layout keeps of a bucket."""

    places = {"a": Place(5, 2, True), "b": Place(0, 3, False)}

    def setUp(self):
        self.layout = Layout([torch.zeros(2), torch.zeros(3)], ["a", "b"])

    def pushes(self, buffer):
        return self.layout.pushes(buffer, self.places)

    def test_PushesHaveTheMemoryOfTheirParameters(self):
        buffer = torch.arange(5.0)
        for turn in range(3):
            early, late, gradients = self.pushes(buffer)
            self.assertEqual([(at, name) for at, name, _ in early + late], [(1, "b"), (0, "a")], turn)
            self.assertEqual([tensor for tensor, _ in gradients], [0], turn)
            gradients[0][1][1] = 7.0 + turn  # a write arrives in the buffer
            self.assertEqual(buffer.tolist(), [0.0, 1.0, 2.0, 7.0 + turn, 4.0])

    def test_ABufferThatStaysKeepsItsPushes(self):
        buffer = torch.zeros(5)
        self.pushes(buffer)
        kept = self.pushes(buffer)
        self.assertIs(self.pushes(buffer), kept)
        other = torch.zeros(5)
        self.pushes(other).gradients[0][1][0] = 1.0
        self.assertEqual((buffer.sum().item(), other.sum().item()), (0.0, 1.0))
        self.assertIsNot(self.pushes(buffer), kept)

    def test_TheFirstBufferIsNotKept(self):
        """DDP replaces its buckets after the first step."""
        freed = []
        for uses in 1, 2:
            array = np.zeros(5, np.float32)
            weakref.finalize(array, freed.append, uses)  # the buffer's memory goes with it
            buffer = torch.from_numpy(array)
            for _ in range(uses):
                self.pushes(buffer)
            del array, buffer
        self.assertEqual(freed, [1])
        self.pushes(torch.zeros(5))
        self.assertEqual(freed, [1, 2])

    def test_ViewsOfATypeWithoutMemoryAreNotKept(self):
        buffer = torch.zeros(5, dtype=torch.bfloat16)
        first, second = self.pushes(buffer), self.pushes(buffer)
        self.assertIsNot(first, second)
        second.gradients[0][1].fill_(2.0)
        self.assertEqual(buffer.tolist(), [0.0, 0.0, 2.0, 2.0, 2.0])


class Reports(unittest.TestCase):
    def test_EveryNthStep_WritesALineAndScalars(self):
        scalars = []

        class Writer:
            def add_scalar(self, name, value, step):
                scalars.append((name, step))

        with self.assertLogs("millrace.torch", "INFO") as logs, Job(select="topk:0.05", dense_below=0, summary_every=2,
                                                                    tensorboard=Writer()) as job:
            for seed in range(4):
                job.step(gradients(seed))
            self.assertTrue(wait_until(lambda: sum(step == 4 for _, step in scalars) >= 16))
            stats = job.states[0].stats()
        lines = [line for line in logs.output if "bytes" not in line and "step 4:" in line]
        self.assertEqual(len(lines), 2)
        self.assertIn(("millrace/residual_norm", 2), scalars)
        self.assertEqual(stats.steps, 4)
        self.assertEqual(stats.entries, 60 + 2 + 14 + 1)
        self.assertAlmostEqual(stats.ratio, 0.1, places=2)
        self.assertGreater(stats.residual_norm, 0)
        self.assertEqual((stats.advice, stats.dense_from_rate), ("", 0.0))
        self.assertNotIn("session", stats.as_dict())

    def verdict(self, link_rate, waited):
        """Judges steps that wait that long. Dense gradients take 1 ms, and 8e6 bits over the rate."""
        def advise(*, density, link_rate, select, dimension, workers, shards):
            self.assertEqual((density, select, dimension, workers, shards), (1.0, "none", 1_000_000, 4, 2))
            return SimpleNamespace(servers_dense=SimpleNamespace(seconds=1e-3 + 8e6 / link_rate, transfer_seconds=8e6 / link_rate))

        verdict = Verdict(advise, 1_000_000, 4, 2, link_rate)
        told = [verdict.look(step, 5.0 + step * waited) for step in range(END + 3)]
        self.assertEqual([step for step, last in enumerate(told) if last], [END])
        return verdict

    def test_Verdict_ComparesTheMeasuredWaitWithTheModelsTime(self):
        dense = self.verdict(link_rate=1e9, waited=0.021)
        self.assertAlmostEqual(dense.dense_from_rate, 4e8, delta=1e3)
        self.assertRegex(dense.text, r"^dense would be faster: a step waits 21.0 ms, and dense gradients would take 9.0 ms at 1 Gbit/s")
        self.assertEqual(dense.line(), dense.text)
        sparse = self.verdict(link_rate=1e8, waited=0.021)
        self.assertEqual(sparse.text, "")
        self.assertRegex(sparse.line(), "faster on links over 400 Mbit/s, by the cost model; the link's 100 Mbit/s are less")
        unknown = self.verdict(link_rate=0, waited=0.021)
        self.assertEqual((unknown.text, round(unknown.dense_from_rate)), ("", 400_000_000))
        self.assertIn("link_rate= tells", unknown.line())
        never = self.verdict(link_rate=1e9, waited=0.0005)
        self.assertEqual((never.text, never.dense_from_rate), ("", float("inf")))
        self.assertIn("not be faster on any link", never.line())

    def test_VerdictOverPeers_ComparesWithTheFastestDenseAllreduce(self):
        def advise(*, density, link_rate, select, dimension, workers, shards):
            times = (("gtopk", False, 1e-4), ("dense_ring", True, 3e-3), ("dense_rabenseifner", True, 2e-3), ("servers", False, 9e-3))
            return SimpleNamespace(servers_dense=None, ranking=[
                SimpleNamespace(algorithm=name, dense=dense, seconds=seconds, transfer_seconds=1e-3) for name, dense, seconds in times])

        verdict = Verdict(advise, 1_000_000, 4, None, 1e9)
        verdict.look(BEGIN, 0.0)
        verdict.look(END, 0.005 * (END - BEGIN))
        self.assertAlmostEqual(verdict.dense_from_rate, 2.5e8, delta=1e3)  # 4 ms are spare for the bytes, which take 1 ms at 1 Gbit/s
        self.assertRegex(verdict.text, r'would take 2\.0 ms at 1 Gbit/s.*try select="none" and allreduce="dense_rabenseifner"$')

    def test_ModelOfMoreEntriesThanThePlannerTakes_HasNoVerdict(self):
        time = SimpleNamespace(seconds=1.0, transfer_seconds=0.5)
        for entries, last in ((1 << 32, True), (5_000_000_000, False)):
            advise = mock.Mock(return_value=SimpleNamespace(servers_dense=time))
            verdict = Verdict(advise, entries, 4, 2, 1e9)
            verdict.look(BEGIN, 0.0)
            self.assertEqual((verdict.look(END, 1.0), advise.called), (last, last))

    def test_BrokenWriter_DoesNotEndTraining(self):
        class Writer:
            def add_scalar(self, name, value, step):
                raise OSError("disk full")

        with self.assertLogs("millrace.torch", "ERROR"), Job(select="none", workers=1, summary_every=1,
                                                             tensorboard=Writer()) as job:
            for seed in range(2):
                job.step(gradients(seed, workers=1))
            self.assertTrue(wait_until(lambda: job.states[0].stats().steps == 2))


if __name__ == "__main__":
    unittest.main()
