#!/usr/bin/env python3
"""Steps that fail or are interrupted, ends that fail, and a main thread that ends first: with fake sessions.

    torch_failures_test.py [FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE] [unittest arguments]
"""

import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

import torch

from millrace.torch import Replica, State, hook, leaving
from millrace.torch.store_job import StoreJob
from torch_fake_job import SIZES, Job, Scaler, gradients
from torch_fakes import FakeBucket, FakeLibrary, JobError, SumsInProcess

# All parameters travel with their neighbours, or each by itself.
LATE, EARLY = {"select": "none"}, {"select": "topk:0.05", "dense_below": 0, "fuse_below": 0}


def raises_at(number, error, call):
    """Returns a function that calls `call`, but raises `error` at the call with this number, from 1 on."""
    calls = []

    def called(*arguments, **named):
        calls.append(arguments)
        if len(calls) == number:
            raise error
        return call(*arguments, **named)

    called.calls = calls
    return called


class FailedSteps(unittest.TestCase):
    def assert_ended(self, state, bucket, reason):
        """Nothing is pushed any more, and no state is saved: it would lack a part of the step."""
        state.session.push = pushed = mock.Mock()
        state.session.save = saved = mock.Mock()
        with self.assertRaisesRegex((RuntimeError, TypeError), reason):
            hook(state, bucket)
        for call in (state.state_dict, lambda: state.save("file"), lambda: state.load_state_dict({})):
            with self.assertRaisesRegex(RuntimeError, "between two steps"):
                call()
        pushed.assert_not_called()
        saved.assert_not_called()

    def test_InterruptedPush_EndsTheExchange(self):
        for options in LATE, EARLY:
            with self.subTest(**options), Job(workers=1, **options) as job:
                state = job.states[0]
                state.session.push = raises_at(2, KeyboardInterrupt(), state.session.push)
                with self.assertRaises(KeyboardInterrupt):
                    hook(state, job.bucket(0))
                self.assertEqual(len(state.session.push.calls), 2)
                self.assert_ended(state, job.bucket(0), "the step was interrupted")

    def test_PushThatFailsWithinABucket_EndsTheExchange(self):
        for options in LATE, EARLY:
            with self.subTest(**options), Job(workers=1, **options) as job:
                state = job.states[0]
                state.session.push = raises_at(3, JobError("NaN", "non_finite"), state.session.push)
                with self.assertRaisesRegex(JobError, "NaN"):
                    hook(state, job.bucket(0))
                self.assert_ended(state, job.bucket(0), "NaN")

    def test_InterruptedWait_EndsTheExchange(self):
        with Job(select="none") as job:
            state = job.states[0]
            future = hook(state, job.bucket(0))  # the other rank pushes nothing
            exchange = state._exchange
            step = exchange._steps[0]
            step.finished = mock.Mock(wait=mock.Mock(side_effect=KeyboardInterrupt))
            with self.assertRaises(KeyboardInterrupt):
                exchange.await_step(step)
            with self.assertRaisesRegex(RuntimeError, "the step was interrupted"):
                future.wait()
            self.assert_ended(state, job.bucket(0), "the step was interrupted")

    def half(self, job):
        """Returns a bucket of half of the parameters of rank 0, and hands it over: the backward pass ends there."""
        names = list(reversed(SIZES))[:2]
        bucket = FakeBucket([job.parameters[0][name] for name in names], [torch.ones(SIZES[name]) for name in names], False)
        hook(job.states[0], bucket)
        return bucket

    def test_PassThatEndsWithinAStep_GivesNoState(self):
        for options in LATE, EARLY:
            with self.subTest(**options), Job(workers=1, **options) as job:
                job.step(gradients(0, workers=1))
                state = job.states[0]
                again = self.half(job)
                state.session.save = mock.Mock()
                for call in (state.state_dict, lambda: state.save("file"), lambda: state.load_state_dict({})):
                    with self.assertRaisesRegex(RuntimeError, "between two steps"):
                        call()
                state.session.save.assert_not_called()
                with self.assertRaisesRegex(RuntimeError, "ended within its step"):
                    hook(state, again)
                self.assert_ended(state, again, "ended within its step")

    def test_PassThatEndsAfterItsLastBucket_GivesNoState(self):
        """DDP gives no parameter the updates of such a pass."""
        with Job(workers=1, select="none") as job:
            state, weight = job.states[0], torch.zeros(1, requires_grad=True)

            def interrupted(gradient):
                hook(state, job.bucket(0)).wait()
                raise KeyboardInterrupt

            weight.register_hook(interrupted)
            with self.assertRaises(KeyboardInterrupt):
                weight.sum().backward()
            with self.assertRaisesRegex(RuntimeError, "between two steps"):
                state.state_dict()
            self.assert_ended(state, job.bucket(0), "ended within its step")

    def test_BucketThatIsRefusedWithinAStep_EndsTheExchange(self):
        with Job(workers=1, **EARLY) as job:
            self.half(job)
            with self.assertRaisesRegex(TypeError, "int32"):
                hook(job.states[0], FakeBucket([job.parameters[0]["first.bias"]], [torch.ones(40)], dtype=torch.int32))
            self.assert_ended(job.states[0], job.bucket(0), "int32")

    def test_FinishAfterAFailedStep_LeavesTheJobAtOnce(self):
        def refused(job):
            job.states[0].session.push = mock.Mock(side_effect=JobError("NaN", "non_finite"))
            with self.assertRaises(JobError):
                hook(job.states[0], job.bucket(0))

        for fail in refused, self.half:
            with self.subTest(fail.__name__), Job(workers=1, **EARLY) as job:
                session = job.states[0].session
                session.finish = mock.Mock()
                fail(job)
                with self.assertRaisesRegex(RuntimeError, "between two steps"):
                    job.states[0].finish()
                self.assertEqual(session.state, "closed")
                job.states[0].finish()  # has nothing left to do
                session.finish.assert_not_called()

    def test_DisabledScaler_IsAsNone(self):
        scaler = Scaler(1024.0)
        scaler.is_enabled = lambda: False
        with Job(select="none", grad_scaler=scaler) as job:
            given = gradients(0)
            results = job.step(given)  # not divided by a scale
            torch.testing.assert_close(results[0]["second.bias"], (given[0]["second.bias"] + given[1]["second.bias"]) / 2)
            given[1]["first.bias"][0] = float("nan")
            with self.assertRaises(JobError) as raised:
                job.step(given)
            self.assertEqual(raised.exception.code, "non_finite")


class FirstStep(unittest.TestCase):
    def setUp(self):
        self.library = FakeLibrary(SumsInProcess())
        self.weights = [torch.nn.Parameter(torch.zeros(6)) for _ in range(2)]
        self.state = State("tcp://a:1", job="first", rank=0, world_size=1, _library=self.library, select="none", summary_every=0)
        self.addCleanup(self.state.close)
        self.state._names = dict(zip(self.weights, "ab"))

    def push(self, *which):
        """Hands over buckets of one parameter each. Returns their futures."""
        return [hook(self.state, FakeBucket([self.weights[at]], [torch.full((6,), 1.0 + at)], last=at == 1)) for at in which]

    def assert_summed(self, futures):
        for at, future in enumerate(futures):
            self.assertEqual(future.wait().tolist(), 6 * [1.0 + at])

    def test_ConnectThatFails_IsRepeatedByTheNextPass(self):
        self.library.Session = raises_at(1, JobError("no shard answers", "unavailable"), self.library.Session)
        with self.assertRaisesRegex(JobError, "no shard answers"):
            self.push(0, 1)
        self.assert_summed(self.push(0, 1))

    def test_BucketsOfAPassThatWasGivenUp_AreNotSent(self):
        self.state._owners = mock.Mock(finds_unused=False)
        self.push(0)
        self.assert_summed(self.push(0, 1))
        self.assertEqual(self.state.session.stats().dense_bytes, 4 * 12)
        self.assertEqual(self.state._owners.look.call_count, 2)  # another wrapper may have begun the second pass


class OtherBuckets(unittest.TestCase):
    """One State under another DistributedDataParallel of its model."""

    def bucket(self, job, names, last=True):
        return FakeBucket([job.parameters[0][name] for name in names], [torch.ones(SIZES[name]) for name in names], last)

    def test_SameParameters_ContinueTheJob(self):
        with Job(workers=1, select="none") as job:
            state, names = job.states[0], list(SIZES)
            job.step(gradients(0, workers=1))
            for split in (1, 3, 3):
                futures = [hook(state, self.bucket(job, names[:split], False)), hook(state, self.bucket(job, names[split:]))]
                self.assertEqual([bool((future.wait() == 1).all()) for future in futures], [True, True])
            self.assertEqual(state.state_dict()["step"], 4)

    def test_OtherBucketsAfterAPassThatWasGivenUp_AreRefused(self):
        for options in LATE, EARLY:
            with self.subTest(**options), Job(workers=1, **options) as job:
                state, names = job.states[0], list(SIZES)
                job.step(gradients(0, workers=1))
                hook(state, self.bucket(job, names[2:], False))
                with self.assertRaisesRegex(RuntimeError, "ended within its step"):
                    hook(state, self.bucket(job, names[1:], False))

    def test_FewerParameters_AreRefused(self):
        for known in (list(SIZES)[:1], list(SIZES)[:2]):  # the buckets before, or others
            with self.subTest(known), Job(workers=1, **EARLY) as job:
                state, names = job.states[0], list(SIZES)
                hook(state, self.bucket(job, names[:1], False))
                hook(state, self.bucket(job, names[1:])).wait()
                with self.assertRaisesRegex(ValueError, "does not exchange .*second.bias.* make another State"):
                    hook(state, self.bucket(job, known))

    def test_MoreParameters_AreRefused(self):
        library, weights = FakeLibrary(SumsInProcess()), [torch.nn.Parameter(torch.zeros(6)) for _ in range(2)]
        state = State("tcp://a:1", job="more", rank=0, world_size=1, _library=library, select="none", summary_every=0)
        self.addCleanup(state.close)
        state._names = dict(zip(weights, "ab"))
        hook(state, FakeBucket(weights[:1], [torch.ones(6)])).wait()
        with self.assertRaisesRegex(ValueError, "'b' needed no gradient when the State was connected: make another State"):
            hook(state, FakeBucket(weights, 2 * [torch.ones(6)]))
        self.assertTrue(state._exchange.failed())


class Ends(unittest.TestCase):
    def test_EndOfTheProcess_LeavesInTheOrderOfCreation(self):
        """The end of a group of peers is a barrier: all ranks need one order."""
        owners, left = [mock.Mock() for _ in range(40)], []
        for at, owner in enumerate(owners):
            self.addCleanup(leaving.give_up, leaving.leave_with(owner, at))
        with mock.patch.object(leaving, "_leave", lambda pid, session, exchange: left.append(session)):
            leaving._leave_all()
        self.assertEqual(left, list(range(40)))

    def test_FinishThatFailed_MayBeRepeated(self):
        with Job(workers=1) as job:
            state = job.states[0]
            session = state.session
            session.finish = raises_at(1, JobError("an acknowledgement is missing", "timeout"), session.finish)
            with self.assertRaisesRegex(JobError, "acknowledgement"):
                state.finish()
            self.assertEqual(session.state, "running")
            state.finish()
            self.assertEqual((len(session.finish.calls), session.state), (2, "closed"))
            state.finish()  # has nothing left to do
            self.assertEqual(len(session.finish.calls), 2)

    def test_BlockWhoseFinishFails_LeavesTheJob(self):
        job = Job(workers=1)
        session = job.states[0].session
        session.finish = mock.Mock(side_effect=KeyboardInterrupt)
        with self.assertRaises(KeyboardInterrupt), job.states[0]:
            pass
        self.assertEqual(session.state, "closed")

    def test_BlockOfAReplicaWhoseFinishFails_LeavesTheJob(self):
        replica = Replica.__new__(Replica)
        replica._broken, replica._left = None, False
        replica._session = SimpleNamespace(finish=mock.Mock(side_effect=KeyboardInterrupt), close=mock.Mock())
        with self.assertRaises(KeyboardInterrupt), replica:
            pass
        replica._session.close.assert_called_once_with()

    def test_StoreJobWhoseFinishFailed_MayBeRepeated(self):
        session = SimpleNamespace(finish=mock.Mock(side_effect=[JobError("late", "timeout"), None]), close=mock.Mock())
        job = StoreJob(mock.Mock(Session=mock.Mock(return_value=session)), {}, {}, {"w": 1}, 1.0)
        with self.assertRaisesRegex(JobError, "late"):
            job.finish(1.0)
        job.session.close.assert_not_called()
        job.finish(1.0)
        job.finish(1.0)  # has nothing left to do
        self.assertEqual((job.session.finish.call_count, job.session.close.call_count), (2, 1))


class MainThreadThatEnds(unittest.TestCase):
    """A thread that trains on gets an error: the State's threads end with the main thread."""

    def said_by(self, workers, train, main):
        script = "\n".join([
            "import sys, threading",
            f"sys.argv = [sys.argv[0], {str(torch_required.PROGRAMS)!r}, {str(torch_required.PACKAGE)!r}]",
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})", "import torch_required, torch, torch_fakes",
            "from millrace.torch import State, hook",
            "weight = torch.nn.Parameter(torch.zeros(8))",
            "mill = State('tcp://a:1', job='j', rank=0, select='none', named_parameters=[('w', weight)],",
            f"             world_size={workers}, _library=torch_fakes.FakeLibrary(torch_fakes.SumsInProcess()))",
            "bucket = torch_fakes.FakeBucket([weight], [torch.ones(8)])",
            "begun = threading.Event()",
            "def train():",
            "    try:",
            *(f"        {line}" for line in train),
            "    except RuntimeError as error: print(error)",
            "threading.Thread(target=train).start()",
            main])
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_NextStep(self):
        said = self.said_by(1, ["threading.main_thread().join()", "hook(mill, bucket)"], "")
        self.assertIn("the main thread has ended", said)

    def test_StepUnderWay(self):
        said = self.said_by(2, ["hook(mill, bucket)", "begun.set()", "mill._exchange.await_step(mill._exchange._steps[0])"], "begun.wait()")
        self.assertIn("the main thread has ended", said)


if __name__ == "__main__":
    unittest.main()
