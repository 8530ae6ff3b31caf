#!/usr/bin/env python3
"""Buckets in a device's memory, with fake sessions and the CPU's tensors in the place of a device's.

    torch_device_test.py [FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE] [unittest arguments]
"""

import array
import logging
import math
import threading
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

import torch

from millrace.torch import device, hook
from torch_fakes import FakeBucket, FakeDevice, FakeLibrary, FakeView, JobConfig, JobError, SumsInProcess, Tensor, WorkerConfig
from torch_fake_job import SIZES, Job, Scaler, gradients, mean


class OnDevice(unittest.TestCase):
    """All buckets are ready at an event."""

    def setUp(self):
        for name, value in (("millrace.torch.device.Streams", FakeDevice), ("millrace.torch.state.ready_of", lambda _: "ready")):
            patch = mock.patch(name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def compare(self, steps, saved=False, **options):
        """Runs a job on devices and one in the host's memory; compares all results and residuals.

        Returns  the first job, and the figures of its ranks.
        """
        with Job(**options) as host, Job(**options) as job:
            for at, given in enumerate(steps):
                with mock.patch("millrace.torch.state.ready_of", lambda _: None):
                    expected = host.step([{name: values.clone() for name, values in part.items()} for part in given])
                found = job.step(given)
                for name in SIZES:
                    for rank in range(2):
                        self.assertTrue(torch.equal(found[rank][name], expected[rank][name]), f"step {at}, {name}")
                    self.assertTrue(torch.equal(job.residual_sum(name), host.residual_sum(name)), f"step {at}, {name}")
                if saved:
                    for state in (*host.states, *job.states):
                        state.state_dict()
            return job, [state.stats() for state in job.states]

    def test_UpdatesHaveTheBitsOfTheHost(self):
        _, (stats, _) = self.compare([gradients(seed) for seed in range(4)], select="topk:0.05", dense_below=0)
        self.assertEqual(stats.bytes_from_devices, 0)
        self.assertGreater(stats.bytes_to_devices, 0)

    def test_ParametersNotSelectedThere_AreCopiedAndTheLogSaysWhy(self):
        with self.assertLogs("millrace.torch", logging.INFO) as logs:
            job, (stats, _) = self.compare([gradients(seed) for seed in range(3)], select="topk:0.05", dense_below=300)
        small = 40 + 280 + 7
        self.assertEqual(stats.bytes_from_devices, 3 * 4 * small)
        # The first step asks for each parameter, later ones do not.
        self.assertEqual(job.states[0].session.pushed_there, 3 + 3)
        lines = "\n".join(logs.output)
        self.assertRegex(lines, "1 parameters with 1200 entries are selected or coded there")
        self.assertRegex(lines, f"3 parameters with {small} entries are copied to the host and their updates back: .*selection none")

    def test_DenseJobs_AreCodedThere(self):
        """A quantizer codes the whole gradient on the device. Raw values are copied to the host."""
        entries = sum(math.prod(size) for size in SIZES.values())
        for codec, copied in (("raw+f16", 0), ("gap", entries)):
            with self.assertLogs("millrace.torch", logging.INFO) as logs:
                job, (stats, _) = self.compare([gradients(seed) for seed in range(3)], select="none", codec=codec, fuse_below=0)
            self.assertEqual(stats.bytes_from_devices, 3 * 4 * copied, codec)
            self.assertEqual(job.states[0].session.pushed_there, len(SIZES) * (1 if copied else 3), codec)
            self.assertRegex("\n".join(logs.output), f"{entries - copied} entries are selected or coded there")

    def test_DeviceWithoutMemory_StepIsCopiedToTheHost(self):
        with Job(select="topk:0.05", dense_below=0) as job, Job(select="topk:0.05", dense_below=0) as whole:
            for step in range(3):
                expected = whole.step(gradients(step))
                if step == 1:
                    push = job.states[0].session.push

                    def without_memory(tensor, gradient, *given, push=push, **more):
                        if isinstance(gradient, FakeView):
                            raise JobError("no memory there", "limit_exceeded")
                        return push(tensor, gradient, *given, **more)

                    job.states[0].session.push = without_memory
                found = job.step(gradients(step))
                if step == 1:
                    job.states[0].session.push = push
                for name in SIZES:
                    self.assertTrue(torch.equal(found[1][name], expected[1][name]), f"step {step}, {name}")
            self.assertEqual(job.states[0].stats().bytes_from_devices, 4 * (1200 + 40 + 280 + 7))

    def test_ClosedState_EndsAPushThatWaits(self):
        job = Job(select="topk:0.05", dense_below=0)
        state = job.states[0]
        state.session.try_push = lambda *given, timeout: time.sleep(timeout)  # the step before has no update

        def too_late(*given, timeout):
            raise JobError("the step could not be pushed", "timeout")

        state.session.push = too_late
        future = hook(state, job.bucket(0))
        state.close()
        with self.assertRaisesRegex(Exception, "could not be pushed|left its job"):
            future.wait()
        job.states[1].close()

    def test_SavedResiduals_ReturnToTheSameBits(self):
        self.compare([gradients(seed) for seed in range(4)], saved=True, select="topk:0.05", dense_below=50)

    def test_ScaledGradients_AreSkippedByAllRanks(self):
        for select, dense_below in (("topk:0.1", 50), ("none", 0)):
            scaler = Scaler(512.0)
            with Job(grad_scaler=scaler, select=select, dense_below=dense_below) as job:
                given = [gradients(seed) for seed in range(3)]
                total = {name: torch.zeros(size, dtype=torch.float64) for name, size in SIZES.items()}
                for at in range(3):
                    scaled = [{name: values * 512.0 for name, values in part.items()} for part in given[at]]
                    if at == 1:
                        scaled[1]["first.weight"].view(-1)[3] = float("inf")
                    results = job.step(scaled)
                    for name in SIZES:
                        self.assertTrue(torch.equal(results[0][name], results[1][name]))
                        self.assertEqual(bool(torch.isinf(results[0][name]).all()), at == 1)
                        total[name] += 0 if at == 1 else 2 * results[0][name].double() / 512.0
                    if at == 1:
                        job.states[0].state_dict()
                for name, size in SIZES.items():
                    kept = 2 * mean(given[0], name) + 2 * mean(given[2], name)
                    residual = sum(state.state_dict()["residual"][str(rank)][name] for rank, state in enumerate(job.states))
                    error = (total[name] + residual.view(size).double() - kept).abs().max()
                    self.assertLessEqual(float(error), 1e-4, name)

    def test_HalfPrecision_IsRoundedToOnce(self):
        with Job(workers=1, select="topk:0.5", dense_below=0) as job:
            names = list(SIZES)
            given = gradients(3, workers=1)[0]
            bucket = FakeBucket([job.parameters[0][name] for name in names], [given[name] for name in names], dtype=torch.bfloat16)
            before = bucket.buffer().clone()
            found = hook(job.states[0], bucket).wait()
            self.assertEqual(found.dtype, torch.bfloat16)
            sent = found != 0
            self.assertTrue(torch.equal(found[sent], before[sent]))
            self.assertGreater(int(sent.sum()), 700)

    def test_HookDoesNotPush(self):
        """A push waits for the gradient; the thread of the backward pass must not."""
        with Job(select="topk:0.05", dense_below=0) as job:
            pushed, threads = threading.Event(), []
            for state in job.states:
                push = state.session.push
                state.session.push = lambda *given, push=push, **more: (
                    threads.append(threading.current_thread().name), pushed.wait(10), push(*given, **more))[-1]
            futures = [hook(state, job.bucket(rank)) for rank, state in enumerate(job.states)]
            self.assertFalse(any(future.done() for future in futures))
            pushed.set()
            for future in futures:
                future.wait()
            self.assertEqual(set(threads), {"millrace pusher"})

    def test_RefusedGradients_EndTheExchange(self):
        with Job(select="topk:0.05", dense_below=0) as job:
            given = gradients(0)
            given[0]["second.bias"][0] = float("nan")
            with self.assertRaisesRegex(Exception, "NaN"):
                job.step(given)
            with self.assertRaisesRegex(JobError, "NaN"):
                hook(job.states[0], job.bucket(0))

    def test_SessionsWithoutPieces_SumInTheHostsMemory(self):
        """As peers do."""
        no_call = mock.patch("torch_fakes.Session.try_wait", new_callable=mock.PropertyMock, side_effect=AttributeError)
        with no_call, Job(select="none") as job:
            given = gradients(1)
            results = job.step(given)
            for name in SIZES:
                self.assertLessEqual(float((results[0][name].double() - mean(given, name)).abs().max()), 1e-5)
            self.assertEqual([state.session.pushed_there for state in job.states], [0, 0])


class FakeDeviceOfTwo(FakeDevice):
    """One of two devices: each has its own current stream, as in CUDA."""

    def gradients(self, buffer, ready):
        assert ready == "ready"
        return self._on("gradients")

    def updates(self):
        return self._on("updates")


class TwoDevices(unittest.TestCase):
    def test_EachHasItsStreamsItsParametersAndItsBytes(self):
        """A process with two devices: the pushes and updates of one leave the other's current stream and counts as they are."""
        names = ("first.weight", "first.bias")
        tensors = [Tensor(name, math.prod(SIZES[name]), select=select) for name, select in zip(names, ("topk:0.05", "none"))]
        session = FakeLibrary(SumsInProcess()).Session(JobConfig(name="two", workers=1, combine="mean"), WorkerConfig(worker=0), tensors)
        entries = {tensor.name: tensor.dimension for tensor in tensors}
        with mock.patch("millrace.torch.device.Streams", FakeDeviceOfTwo):
            both = [device.Transfers(f"card {at}", session, entries) for at in range(2)]
        given = gradients(1, workers=1)[0]
        with both[0].gradients(None, "ready"), both[1].gradients(None, "ready"):
            pushed = [there.push(name, given[name].flatten(), torch.float32, lambda view, at=at: session.push(at, view))
                      for at, (there, name) in enumerate(zip(both, names))]
        self.assertEqual([there.streams.current for there in both], [[None], [None]])
        self.assertEqual(session.pushed_there, 2, "the second device asks, and is refused")
        self.assertEqual([(number, host is None) for number, host in pushed], [(0, True), (0, False)])
        found = [torch.full((entries[name],), 7.0) for name in names]
        with both[1].updates():
            self.assertEqual([there.streams.current[-1] for there in both], [None, "updates"])
            both[1].copy(found[1], pushed[1][1])
        with both[0].updates():
            both[0].write(found[0], session.wait(0, 0).pieces)
        for at, name in enumerate(names):
            self.assertTrue(torch.equal(found[at] + session.residual(name), given[name].flatten()), name)
        small = 4 * entries[names[1]]
        self.assertEqual([there.streams.bytes_down for there in both], [0, small])
        self.assertEqual(both[1].streams.bytes_up, small)
        self.assertEqual(device.copied(both), (both[0].streams.bytes_up + small, small))
        with self.assertLogs("millrace.torch", logging.INFO) as logs:
            for there in both:
                there.tell()
        self.assertRegex(logs.output[0], f"card 0: gradients of 1 parameters with {entries[names[0]]} entries are selected or coded there")
        self.assertRegex(logs.output[2], f"card 1: gradients of 1 parameters with {entries[names[1]]} entries are copied")


class Updates(unittest.TestCase):
    @staticmethod
    def piece(begin, dimension, indices, values, denominator=1.0):
        return SimpleNamespace(begin=begin, dimension=dimension, dense=indices is None, values=array.array("f", values),
                               indices=None if indices is None else array.array("I", indices), denominator=denominator)

    def test_WrittenUpdate_IsTheQuotientAndZeroElsewhere(self):
        pieces = [self.piece(0, 4, [1, 3], [3.0, -6.0], 3.0), self.piece(5, 3, None, [1.0, 2.0, 4.0], 2.0),
                  self.piece(9, 2, [], [])]
        out = torch.full((12,), 7.0)
        device.write_update(out, pieces, lambda host: host)
        third = torch.tensor(1.0 / 3.0, dtype=torch.float32)
        expected = torch.tensor([0, 3 * third, 0, -6 * third, 0, 0.5, 1, 2, 0, 0, 0, 0])
        self.assertTrue(torch.equal(out, expected), out)

    def test_PiecesOfOneRun_AddUp(self):
        pieces = [self.piece(0, 4, [0, 2], [1.0, 2.0]), self.piece(0, 4, [2, 3], [10.0, 20.0]), self.piece(0, 4, None, [1.0] * 4)]
        out = torch.empty(5)
        device.write_update(out, pieces, lambda host: host)
        self.assertEqual(out.tolist(), [2.0, 1.0, 13.0, 21.0, 0.0])

    def test_NoPieces_AreZeros(self):
        out = torch.ones(3, dtype=torch.float16)
        device.write_update(out, [], lambda host: host)
        self.assertEqual(out.tolist(), [0, 0, 0])

    def test_HostBuckets_HaveNoEventAndAPlainFuture(self):
        self.assertIsNone(device.ready_of(torch.zeros(1)))
        future = device.future_of(torch.zeros(1))
        future.set_result(1)
        self.assertEqual(future.wait(), 1)


if __name__ == "__main__":
    unittest.main()
