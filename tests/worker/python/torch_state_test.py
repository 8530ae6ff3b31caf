#!/usr/bin/env python3
"""millrace.State with fake sessions and made-up buckets: the law, skipped steps, saved states, errors.

    torch_state_test.py [FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE] [unittest arguments]
"""

import copy
import os
import pickle
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

import torch

from millrace.torch import State, hook, parameters
from millrace.torch.options import PEER_KEYWORDS, http_of_rank, rank_and_world_size
from millrace.torch.peers import own_host
from millrace.torch.plan import plan_tensors
from millrace.torch.residuals import share_of
from millrace.torch.verdict import PlannedTimes
from torch_fake_job import SIZES, Job, Scaler, gradients, mean
from torch_fakes import (FUSE_BELOW, JOB_OPTIONS, WORKER_OPTIONS, FakeBucket, FakeLibrary, JobError, SumsInProcess, as_tensor,
                         wait_until)


class Sums(unittest.TestCase):
    def assertNear(self, found, expected, bound=1e-5):
        self.assertLessEqual(float((found.double() - expected.double()).abs().max()), bound)

    def test_DenseSelection_GivesTheMeanOfTheRanks(self):
        with Job(select="none") as job:
            for seed in range(3):
                given = gradients(seed)
                for result in job.step(given):
                    for name in SIZES:
                        self.assertNear(result[name], mean(given, name))

    def test_TopK_AppliedPlusResidualIsWhatEntered(self):
        with Job(select="topk:0.05", dense_below=0) as job:
            applied = {name: torch.zeros(size, dtype=torch.float64) for name, size in SIZES.items()}
            entered = {name: torch.zeros(size, dtype=torch.float64) for name, size in SIZES.items()}
            for seed in range(6):
                given = gradients(seed)
                first, second = job.step(given)
                for name in SIZES:
                    self.assertTrue(torch.equal(first[name], second[name]))
                    applied[name] += 2 * first[name].double()
                    entered[name] += 2 * mean(given, name)
            for name, size in SIZES.items():
                self.assertNear(applied[name] + job.residual_sum(name).view(size), entered[name])
            self.assertGreater(float(job.residual_sum("first.weight").norm()), 1)

    def test_SmallParameters_ArriveWhole(self):
        with Job(select="topk:0.01", dense_below=300) as job:
            given = gradients(1)
            result = job.step(given)[0]
            for name in ("first.bias", "second.weight", "second.bias"):
                self.assertNear(result[name], mean(given, name))
            self.assertLessEqual(int(result["first.weight"].count_nonzero()), 24)

    def test_PushedGradients_AreInTheBucketsOwnMemory(self):
        with Job(workers=1, select="topk:0.05", dense_below=0) as job:
            bucket, pushed = job.bucket(0), []
            session = job.states[0].session
            push = session.push
            session.push = lambda tensor, gradient, **more: pushed.append(as_tensor(gradient).data_ptr()) or push(tensor, gradient, **more)
            hook(job.states[0], bucket).wait()
            self.assertEqual(pushed, [part.data_ptr() for part in bucket.buffer().split([7, 280, 40, 1200])])

    def test_WorldOfOne_ReturnsItsOwnGradient(self):
        with Job(workers=1, select="none") as job:
            given = gradients(1, workers=1)
            self.assertNear(job.step(given)[0]["first.weight"], given[0]["first.weight"])

    def test_HalfPrecisionBuckets_KeepTheirType(self):
        with Job(workers=1, select="none") as job:
            names = list(SIZES)
            bucket = FakeBucket([job.parameters[0][name] for name in names], [torch.ones(SIZES[name]) for name in names],
                                dtype=torch.bfloat16)
            self.assertEqual(hook(job.states[0], bucket).wait().dtype, torch.bfloat16)


class SkippedSteps(unittest.TestCase):
    """Under a GradScaler gradients arrive scaled, and a step with an infinite gradient is skipped by all ranks."""

    SCALE = 1024.0

    def train(self, job, steps):
        """Steps are (gradients, scale, rank and name of an infinite gradient or None). Returns the true gradients that
        were applied, by step; None: skipped."""
        applied = []
        for given, scale, bad in steps:
            job.scaler.scale = scale
            scaled = [{name: values * scale for name, values in part.items()} for part in given]
            if bad:
                scaled[bad[0]][bad[1]].view(-1)[3] = float("inf")
            results = job.step(scaled)
            finite = [all(bool(torch.isfinite(values).all()) for values in result.values()) for result in results]
            self.assertEqual(len(set(finite)), 1, "the ranks disagree on the step")
            for name in SIZES:
                self.assertTrue(torch.equal(results[0][name], results[1][name]))
            applied.append({name: values.double() / scale for name, values in results[0].items()} if finite[0] else None)
            if not finite[0]:
                for values in results[0].values():
                    self.assertTrue(bool(torch.isinf(values).all()))
        return applied

    def job(self, **options):
        scaler = Scaler(self.SCALE)
        job = Job(grad_scaler=scaler, **options)
        job.scaler = scaler
        return job

    def test_LosslessJob_AppliesTheKeptGradients(self):
        with self.job(select="none") as job:
            given = [gradients(seed) for seed in range(5)]
            applied = self.train(job, [(given[0], 1024.0, None), (given[1], 1024.0, (1, "second.weight")),
                                       (given[2], 512.0, (0, "first.bias")), (given[3], 256.0, None), (given[4], 256.0, None)])
            self.assertEqual([step is None for step in applied], [False, True, True, False, False])
            for at in (0, 3, 4):
                for name in SIZES:
                    error = (applied[at][name] - mean(given[at], name)).abs().max()
                    self.assertLessEqual(float(error), 1e-5, f"step {at}, {name}")
            self.assertEqual(job.states[0].stats().steps_skipped, 2)

    def test_TopKJob_LosesNothing(self):
        with self.job(select="topk:0.1", dense_below=50) as job:
            given = [gradients(seed) for seed in range(6)]
            bad = [None, (1, "first.weight"), None, (0, "second.weight"), (1, "second.weight"), None]
            scales = [1024.0, 1024.0, 512.0, 512.0, 256.0, 128.0]
            applied = self.train(job, list(zip(given, scales, bad)))
            for name, size in SIZES.items():
                total = sum(2 * step[name] for step in applied if step is not None)
                kept = sum(2 * mean(given[at], name) for at in (0, 2, 5))
                error = (total + job.residual_sum(name).view(size).double() - kept).abs().max()
                self.assertLessEqual(float(error), 1e-4, name)

    def test_StateBetweenASkippedStepAndTheNext_IsWhole(self):
        with self.job(select="topk:0.1", dense_below=0) as job, self.job(select="topk:0.1", dense_below=0) as later:
            given = [gradients(seed) for seed in range(3)]
            steps = [(given[0], 512.0, None), (given[1], 512.0, (1, "first.weight"))]
            applied = self.train(job, steps)[0]
            saved = [state.state_dict() for state in job.states]
            for state, old in zip(later.states, saved):
                state.load_state_dict(old)
            applied_later = self.train(later, [(given[2], 256.0, None)])[0]
            for name, size in SIZES.items():
                total = 2 * applied[name] + 2 * applied_later[name] + later.residual_sum(name).view(size).double()
                kept = 2 * mean(given[0], name) + 2 * mean(given[2], name)
                self.assertLessEqual(float((total - kept).abs().max()), 1e-4, name)

    def test_SaveAfterASkippedStep_IsRefusedUntilAStepCounts(self):
        with self.job(select="none") as job:
            for state in job.states:
                state.session.save = mock.Mock()
            self.train(job, [(gradients(0), 512.0, None), (gradients(1), 512.0, (1, "first.weight"))])
            for state in job.states:
                with self.assertRaisesRegex(RuntimeError, "the step before was skipped"):
                    state.save("file")
            self.train(job, [(gradients(2), 512.0, None)])
            for state in job.states:
                state.save("file")
                state.session.save.assert_called_once_with("file")

    def test_RestOfTheFlag_IsTakenWhereThereIsOne(self):
        """A session refuses to take it while its worker returns to the job."""
        for options, calls in (({}, 0), ({"momentum": "correction:0.9"}, 4)):
            with self.subTest(options=options), self.job(select="none", **options) as job:
                taken = []
                for state in job.states:
                    state.session.take_residual = state.session.take_velocity = taken.append
                applied = self.train(job, [(gradients(0), 512.0, None), (gradients(1), 512.0, (1, "first.weight"))])
                self.assertEqual([step is None for step in applied], [False, True])
                self.assertEqual(len(taken), calls)

    def test_DroppedInfinities_AreRefusedWithAScaler(self):
        with self.assertRaisesRegex(ValueError, "non_finite"):
            self.job(non_finite="drop")


class SavedStates(unittest.TestCase):
    OPTIONS = {"select": "topk:0.05", "dense_below": 0}

    def test_SaveAndLoad_ContinuesToTheSameBits(self):
        for dtype in (torch.float32, torch.float64):
            # Thirds have digits that f32 lacks.
            given = [[{name: values.double() / 3 for name, values in part.items()} for part in gradients(seed)] for seed in range(6)]
            with Job(**self.OPTIONS) as whole, Job(**self.OPTIONS) as before, Job(**self.OPTIONS) as after:
                for step in range(3):
                    whole.step(given[step], dtype)
                    before.step(given[step], dtype)
                for old, new in zip(before.states, after.states):
                    new.load_state_dict(old.state_dict())
                for step in range(3, 6):
                    expected, found = whole.step(given[step], dtype)[0], after.step(given[step], dtype)[0]
                    for name in SIZES:
                        self.assertTrue(torch.equal(expected[name], found[name]), f"{dtype}, step {step}, {name}")
                self.assertEqual(after.states[0].state_dict()["step"], 6)

    def test_SavingTwice_ChangesNothing(self):
        with Job(**self.OPTIONS) as saved, Job(**self.OPTIONS) as other:
            saved.step(gradients(0))
            other.step(gradients(0))
            first, second = saved.states[0].state_dict(), saved.states[0].state_dict()
            for name in SIZES:
                self.assertTrue(torch.equal(first["residual"]["0"][name], second["residual"]["0"][name]))
            saved.states[1].state_dict()
            expected, found = other.step(gradients(1))[0], saved.step(gradients(1))[0]
            for name in SIZES:
                self.assertTrue(torch.equal(expected[name], found[name]))

    def test_SaveBeforeAResidualReturns_HasIt(self):
        """An unused parameter keeps its residual, and may have no gradient in any later step."""
        with Job(workers=1, fuse_below=0, **self.OPTIONS) as job:
            state = job.states[0]
            state._owners = SimpleNamespace(look=lambda *bucket: None, finds_unused=True)
            state.session.save = mock.Mock()
            job.step(gradients(0, workers=1))
            taken = state.state_dict()
            unused = gradients(1, workers=1)
            unused[0]["first.weight"].zero_()
            job.step(unused)
            for prepare in (lambda: None, lambda: state.load_state_dict(taken)):
                prepare()
                state.save("file")
                self.assertTrue(torch.equal(state.session.residual("first.weight"), taken["residual"]["0"]["first.weight"]))
            self.assertEqual(state.session.save.call_count, 2)

    def test_StateOfADenseJob_AddsNothingToTheNextStep(self):
        with Job(workers=1, select="none") as job:
            job.step(gradients(0, workers=1))
            residual = job.states[0].state_dict()["residual"]["0"]
            self.assertEqual({name: values.numel() for name, values in residual.items()},
                             {name: parameter.numel() for name, parameter in job.parameters[0].items()})
            self.assertEqual(job.states[0]._residuals.names(), [])

    def test_OtherNumberOfWorkers_KeepsTheMeanOfTheResiduals(self):
        for workers in (1, 2, 4):
            with Job(workers=3, **self.OPTIONS) as old, Job(workers=workers, select="none") as new:
                for seed in range(3):
                    old.step(gradients(seed, workers=3))
                kept = {name: old.residual_sum(name) / 3 for name in SIZES}
                states = [state.state_dict() for state in old.states]
                for state in new.states:
                    state.load_state_dict(states)
                nothing = [{name: torch.zeros(size) for name, size in SIZES.items()} for _ in range(workers)]
                applied = new.step(nothing)[0]
                for name, size in SIZES.items():
                    self.assertGreater(float(kept[name].norm()), 0)
                    self.assertLessEqual(float((applied[name] - kept[name].view(size)).abs().max()), 1e-6)

    def test_StateOfFormat1_IsRead(self):
        with Job(**self.OPTIONS) as old, Job(**self.OPTIONS) as new:
            old.step(gradients(0))
            for before, after in zip(old.states, new.states):
                state = before.state_dict()
                self.assertEqual(state["format"], 2)
                after.load_state_dict({**state, "format": 1})
                self.assertRaisesRegex(ValueError, "format 1 or 2", after.load_state_dict, {**state, "format": 3})
            expected, found = old.step(gradients(1))[0], new.step(gradients(1))[0]
            for name in SIZES:
                self.assertTrue(torch.equal(expected[name], found[name]))

    def test_MissingWorkers_AreNamed(self):
        with Job(workers=2, **self.OPTIONS) as old, Job(workers=1, **self.OPTIONS) as new:
            old.step(gradients(0))
            with self.assertRaisesRegex(ValueError, r"workers \[1\] of 2 are missing"):
                new.states[0].load_state_dict(old.states[0].state_dict())

    def test_AnotherModel_IsRefused(self):
        with Job(**self.OPTIONS) as old, Job(**self.OPTIONS) as new:
            old.step(gradients(0))
            state = old.states[0].state_dict()
            state["residual"]["0"]["third.bias"] = state["residual"]["0"].pop("first.bias")
            with self.assertRaisesRegex(ValueError, "another model.*first.bias, third.bias"):
                new.states[0].load_state_dict(state)

    def test_StateWithoutVelocity_IsRefusedByAJobWithMomentum(self):
        with Job(**self.OPTIONS) as job, Job(momentum="correction:0.9", **self.OPTIONS) as other:
            job.step(gradients(0))
            with self.assertRaisesRegex(ValueError, "no velocity, and this job has option momentum correction:0.9"):
                other.states[0].load_state_dict(job.states[0].state_dict())

    def test_VelocitiesOfOtherWorkers_AreSharedOut(self):
        states = [{"format": 1, "step": 2, "workers": 2, "combine": "mean", "deferred": {},
                   "residual": {str(rank): {"w": torch.tensor([1.0 + rank])}},
                   "velocity": {str(rank): {"w": torch.tensor([4.0 * rank])}}} for rank in (0, 1)]
        self.assertEqual(share_of(states, 0, 3), (2, {"w": torch.tensor([1.5])}, {}, {"w": torch.tensor([2.0])}, {}))
        self.assertEqual(share_of(states, 1, 2)[3], {"w": torch.tensor([4.0])})


class Errors(unittest.TestCase):
    def test_InfiniteGradientWithoutAScaler_RaisesInTheHook(self):
        with Job(select="none") as job:
            given = gradients(0)
            given[0]["second.bias"][0] = float("nan")
            with self.assertRaises(JobError) as raised:
                job.step(given)
            self.assertEqual(raised.exception.code, "non_finite")

    def test_EndOfTheSession_EndsFuturesAndLaterHooks(self):
        job = Job(select="none")
        state, bucket = job.states[0], job.bucket(0)
        future = hook(state, bucket)  # the other rank pushes nothing
        self.assertFalse(future.done())
        state.session.close()
        self.assertTrue(wait_until(future.done), "the future waits on")
        with self.assertRaisesRegex(RuntimeError, "the session is closed"):
            future.wait()
        with self.assertRaisesRegex(JobError, "the session is closed"):
            hook(state, bucket)
        for each in job.states:
            each.close()

    def test_TimeoutOfAStep_IsAnError(self):
        with Job(select="none", timeout=0.4) as job:
            future = hook(job.states[0], job.bucket(0))
            with self.assertRaisesRegex(RuntimeError, "not within 0.4 s: blocked on another worker"):
                future.wait()

    def test_ParameterThatDdpLacks_IsNamedInTheFirstStep(self):
        with Job(select="none", workers=1) as job:
            bucket = FakeBucket([job.parameters[0]["second.bias"]], [torch.ones(7)])
            with self.assertRaisesRegex(ValueError, "does not exchange.*first.weight"):
                hook(job.states[0], bucket)

    def test_UnknownOption_NamesTheNearest(self):
        with self.assertRaisesRegex(TypeError, "no option 'momentun'; did you mean 'momentum'"):
            Job(momentun="correction:0.9")

    def test_UnknownParameter_IsRefused(self):
        with Job(workers=1) as job:
            with self.assertRaisesRegex(LookupError, r"shape \[3\]"):
                hook(job.states[0], FakeBucket([torch.nn.Parameter(torch.zeros(3))], [torch.ones(3)]))

    def test_BucketWithoutDdp_AsksForNames(self):
        state = State("tcp://a:1", job="j", rank=0, world_size=1, _library=FakeLibrary(SumsInProcess()))
        with self.assertRaisesRegex(LookupError, "named_parameters="):
            hook(state, FakeBucket([torch.nn.Parameter(torch.zeros(3))], [torch.ones(3)]))

    def test_MeshOfAModelThatIsNotSharded_IsRefused(self):
        mesh = SimpleNamespace(ndim=2, get_local_rank=lambda dimension: 0, size=lambda dimension: 1)
        with self.assertRaisesRegex((RuntimeError, ValueError), "has no FSDPModule.set_all_reduce_hook|wrap the model itself"):
            State("tcp://a:1", job="j", mesh=mesh, model=torch.nn.Linear(2, 2), _library=FakeLibrary(SumsInProcess()))

    def test_SparseBucket_IsRefused(self):
        with Job(workers=1) as job:
            bucket = FakeBucket([job.parameters[0]["second.bias"]], [torch.ones(7)])
            bucket._buffer = bucket._buffer.to_sparse()
            with self.assertRaisesRegex(TypeError, "dense gradients of float32"):
                hook(job.states[0], bucket)


class Plans(unittest.TestCase):
    SIZES = {"a.weight": 50_000, "a.bias": 100, "b.weight": 20_000, "b.bias": 10, "empty": 0}

    def test_SmallParameters_AreNeighboursBehindTheOthers(self):
        plan = plan_tensors(self.SIZES, {"select": "topk:0.01", "codec_up": "gap+qsgd4"}, FUSE_BELOW)
        self.assertEqual([tensor.name for tensor in plan.tensors], ["b.weight", "a.weight", "b.bias", "a.bias"])
        self.assertEqual([tensor.late for tensor in plan.tensors], [False, False, True, True])
        self.assertEqual(plan.tensors[0].options, {"select": "topk:0.01", "codec_up": "gap+qsgd4"})
        self.assertEqual(plan.tensors[2].options, {})
        self.assertEqual(plan.job, {"select": "none"})

    def test_NoSmallParameters_LeaveTheOptionsToTheJob(self):
        plan = plan_tensors(self.SIZES, {"select": "topk:0.01"}, FUSE_BELOW, dense_below=0)
        self.assertEqual(plan.job, {"select": "topk:0.01"})
        self.assertTrue(all(not tensor.options for tensor in plan.tensors))

    def test_FirstRuleThatMatches_Counts(self):
        rules = {"b.*": {"codec_up": "gap+qsgd8"}, "*.weight": {"select": "topk:0.1"}}
        plan = plan_tensors(self.SIZES, {"select": "topk:0.01"}, FUSE_BELOW, rules=rules)
        options = {tensor.name: tensor.options for tensor in plan.tensors}
        self.assertEqual(options["b.weight"], {"select": "topk:0.01", "codec_up": "gap+qsgd8"})
        self.assertEqual(options["a.weight"], {"select": "topk:0.1"})
        self.assertEqual(options["b.bias"], {"select": "topk:0.01", "codec_up": "gap+qsgd8"})
        self.assertEqual(options["a.bias"], {})

    def test_DenseParameters_AreNamedWithTheReason(self):
        layers = {f"layer{number}.bias": 100 for number in range(7)}
        plan = plan_tensors({**self.SIZES, **layers}, {"select": "topk:0.01"}, FUSE_BELOW, rules={"b.w*": {"select": "none"}})
        self.assertEqual(plan.dense_text(), "1 of them with 20000 entries travel dense, by a rule: b.weight; "
                         "9 of them with 810 entries travel dense, smaller than dense_below=4096: "
                         "layer6.bias, layer5.bias, layer4.bias, layer3.bias, layer2.bias and 4 more")
        self.assertEqual(plan_tensors(self.SIZES, {"select": "topk:0.01"}, FUSE_BELOW, dense_below=0).dense_text(), "none travels dense")
        self.assertEqual(plan_tensors({"w": 5}, {"select": "none"}, FUSE_BELOW).dense_text(),
                         '1 of them with 5 entries travel dense, by select="none": w')

    def times(self, link_rate=1e9, shards=2, select="topk:0.01", refuses=False):
        """Returns the plan's text with times of a model, and the questions (size, density, select, codec) to the model."""
        asked = []

        def advise(dimension, density, *, workers, shards, link_rate, select, codec):
            self.assertEqual((workers, link_rate), (4, 1e9))
            asked.append((dimension, density, select, codec))
            if refuses:
                raise JobError("no such codec", "invalid_argument")
            rows = (("servers", False, 1e-9), ("servers_dense", True, 1e-9), ("gtopk", False, 7e-6), ("oktopk", False, 5e-6),
                    ("dense_ring", True, 9e-6))
            return SimpleNamespace(servers=SimpleNamespace(seconds=dimension * 1e-7), servers_dense=SimpleNamespace(seconds=dimension * 1e-6),
                                   ranking=[SimpleNamespace(algorithm=name, dense=dense, seconds=seconds) for name, dense, seconds in rows])

        times = PlannedTimes(advise, 4, shards, link_rate, select, "gap")
        sizes = {"a.weight": 50_000, "a.bias": 100, "b.bias": 10, "c.bias": 100}
        return plan_tensors(sizes, {"select": select}, FUSE_BELOW, times_of=times.of).dense_text(), asked

    def test_LinkRate_PutsThePlannersTimesIntoTheReason(self):
        text, asked = self.times()
        self.assertEqual(asked, [(100, 0.01, "topk", "gap"), (10, 0.01, "topk", "gap")], "one question a size")
        self.assertEqual(text, "2 of them with 200 entries travel dense, smaller than dense_below=4096 (100 entries: 100 us dense and 10 us "
                         "selected at 1 Gbit/s, by the cost model): c.bias, a.bias; 1 of them with 10 entries travel dense, smaller than "
                         "dense_below=4096 (10 entries: 10 us dense and 1 us selected at 1 Gbit/s, by the cost model): b.bias")
        self.assertIn("(10 entries: 9 us dense and 5 us selected at 1 Gbit/s", self.times(shards=None)[0], "the fastest allreduces")

    def test_TimesOfACount_AreThoseOfItsDensity(self):
        self.assertEqual([density for _, density, *_ in self.times(select="topk:50:signs")[1]], [0.5, 1.0])

    def test_NoTimes_LeaveTheReasonAsItIs(self):
        plain = "3 of them with 210 entries travel dense, smaller than dense_below=4096: c.bias, b.bias, a.bias"
        for options in ({"link_rate": 0}, {"select": "threshold:0.1"}, {"refuses": True}):
            self.assertEqual(self.times(**options)[0], plain)

    def test_Log_NamesTheDenseParameters(self):
        with self.assertLogs("millrace.torch", "INFO") as logs, Job(select="topk:0.05", dense_below=300):
            pass
        lines = [line for line in logs.output if "4 parameters with 1527 entries; 3 of them with 327 entries travel dense, smaller "
                 "than dense_below=300: second.bias, second.weight, first.bias" in line]
        self.assertEqual(len(lines), 2, logs.output)  # one a rank

    def test_NoneInARule_IsAsIfItWereNotThere(self):
        plan = plan_tensors(self.SIZES, {"select": "topk:0.01"}, FUSE_BELOW, rules={"a.*": {"select": None}})
        self.assertEqual({tensor.options["select"] for tensor in plan.tensors if tensor.options}, {"topk:0.01"})

    def test_WrongRules_AreRefused(self):
        with self.assertRaisesRegex(ValueError, "no parameter matches 'c.*'"):
            plan_tensors(self.SIZES, {"select": "none"}, FUSE_BELOW, rules={"c.*": {"select": "none"}})
        with self.assertRaisesRegex(TypeError, "'selekt'"):
            plan_tensors(self.SIZES, {"select": "none"}, FUSE_BELOW, rules={"a.*": {"selekt": "none"}})


class OwnersOfBuckets(unittest.TestCase):
    def test_BucketsWithoutAnAddress_EndTheLooks(self):
        parameter, owner, buffers = torch.ones(4), mock.Mock(find_unused_parameters=False), [torch.zeros(4) for _ in range(20)]
        with mock.patch.object(parameters, "find_owners", return_value=[owner]) as looks:
            owners, found = parameters.Owners(), []
            for buffer in 3 * buffers:
                owners.look(buffer, [parameter])
                found.append(owners.finds_unused)
        self.assertLess(looks.call_count, 10)
        self.assertEqual(found, looks.call_count * [False] + (60 - looks.call_count) * [True])


class CopiesOfAModel(unittest.TestCase):
    """From torch 2 on a DistributedDataParallel lists its hooks with their states, and is copied and saved with that list."""

    def test_Copy_HasTheState(self):
        with Job(workers=1) as job:
            hooks = [(hook, job.states[0])]
            self.assertIs(copy.deepcopy(hooks)[0][1], job.states[0])

    def test_SavedModel_HasAStateThatRefusesItsUse(self):
        with Job(workers=1) as job:
            function, state = pickle.loads(pickle.dumps([(hook, job.states[0])]))[0]
            for use in (lambda: function(state, job.bucket(0)), lambda: state.state_dict()):
                with self.assertRaisesRegex(RuntimeError, "make another one"):
                    use()
            copy.deepcopy(pickle.loads(pickle.dumps(state)))


class OptionsOfAState(unittest.TestCase):
    def test_HttpPort_IsThatOfTheRank(self):
        self.assertEqual(http_of_rank("127.0.0.1:9200", 3), "127.0.0.1:9203")
        self.assertEqual(http_of_rank(9200, 1), "127.0.0.1:9201")
        self.assertEqual(http_of_rank("0.0.0.0:0", 3), "0.0.0.0:0")
        self.assertEqual(http_of_rank(None, 3), "")
        with self.assertRaisesRegex(ValueError, "no port"):
            http_of_rank("localhost", 0)

    def test_None_IsAsIfTheOptionWereNotGiven(self):
        def configured(**options):
            state = State("tcp://a:1", job="j", rank=0, world_size=1, _library=FakeLibrary(SumsInProcess()), **options)
            return state._job, state._compression, state._worker, state._has_momentum()

        wanted = configured()
        for name in ("path", "select", "codec", "http", *JOB_OPTIONS, *WORKER_OPTIONS, *PEER_KEYWORDS):
            with self.subTest(name):
                self.assertEqual(configured(**{name: None}), wanted)
        configured(non_finite=None, grad_scaler=Scaler(2.0))
        with self.assertRaisesRegex(TypeError, "no option 'momentun'"):
            configured(momentun=None)

    @unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
    def test_WrongTexts_AreRefusedBeforeTheParametersAreKnown(self):
        for option in ({"select": "no such thing"}, {"codec": "nonsense"}, {"reselect": "nonsense"}):
            with self.subTest(option), self.assertRaisesRegex(RuntimeError, "no such thing|nonsense"):
                State("tcp://a:1", job="j", rank=0, world_size=1, **option)

    def test_SavePath_IsRefused(self):
        with self.assertRaisesRegex(ValueError, r"save_path= would.*call save\(\) or state_dict\(\)"):
            Job(save_path="file")

    def test_RankAndWorldSize_ComeFromTheEnvironment(self):
        os.environ.update(RANK="2", WORLD_SIZE="4")
        try:
            self.assertEqual(rank_and_world_size(None, None), (2, 4))
            self.assertEqual(rank_and_world_size(0, 2), (0, 2))
        finally:
            del os.environ["RANK"], os.environ["WORLD_SIZE"]
        with self.assertRaisesRegex(ValueError, "torchrun"):
            rank_and_world_size(None, None)

    def test_PeersOfOneTorchrun_ListenOnLoopback(self):
        """Elsewhere a rank listens at the address that reaches MASTER_ADDR."""
        for local, world, host in (("4", "4", "127.0.0.1"), ("2", "4", "towards master"), (None, "4", "towards master")):
            environment = {"MASTER_ADDR": "master", "WORLD_SIZE": world, **({"LOCAL_WORLD_SIZE": local} if local else {})}
            with self.subTest(environment), mock.patch.dict(os.environ, environment), \
                    mock.patch("millrace.torch.peers.host_towards", "towards {}".format):
                self.assertEqual(own_host(), host)


class EndOfTheProcess(unittest.TestCase):
    """A program that ends without finish() must end, and say how it left the job."""

    def run_script(self, ending):
        script = "\n".join([
            "import sys", f"sys.argv = [sys.argv[0], {str(torch_required.PROGRAMS)!r}, {str(torch_required.PACKAGE)!r}]",
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})", "import torch_required, torch, torch_fakes",
            "from millrace.torch import State, hook",
            "class Told(torch_fakes.Session):",
            "    done = False",
            "    def finish(self, timeout=0): self.done = True; print('finished')",
            "    def close(self): self.done or print('left')",
            "torch_fakes.Session = Told",
            "library = torch_fakes.FakeLibrary(torch_fakes.SumsInProcess())",
            "weight = torch.nn.Parameter(torch.zeros(8))",
            "def state(workers):",
            "    return State('tcp://a:1', job='j', rank=0, world_size=workers, _library=library,",
            "                 named_parameters=[('w', weight)], select='none')",
            ending])
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)

    def test_EndOfTheScript_FinishesTheJob(self):
        done = self.run_script("mill = state(1)\nhook(mill, torch_fakes.FakeBucket([weight], [torch.ones(8)])).wait()")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "finished\n", ""))

    def test_StepUnderWay_DoesNotKeepTheProcess(self):
        done = self.run_script("mill = state(2)\nhook(mill, torch_fakes.FakeBucket([weight], [torch.ones(8)]))")
        self.assertEqual((done.returncode, done.stdout), (0, "left\n"))

    def test_PushThatOutlivesTheMainThread_EndsWithAnError(self):
        done = self.run_script("\n".join([
            "import threading, time",
            "entered, push = threading.Event(), Told.push",
            "def slow(*arguments, **more):",
            "    entered.set()",
            "    threading.main_thread().join()",
            "    time.sleep(1)  # the waiter looks meanwhile",
            "    return push(*arguments, **more)",
            "Told.push = slow",
            "mill = State('tcp://a:1', job='j', rank=0, world_size=2, _library=library, named_parameters=[('w', weight)],",
            "             select='topk:0.5', dense_below=0)",
            "def train():",
            "    try: hook(mill, torch_fakes.FakeBucket([weight], [torch.ones(8)])).wait()",
            "    except RuntimeError as error: print(error)",
            "threading.Thread(target=train).start()",
            "entered.wait()"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the main thread has ended", done.stdout)

    def test_ExceptionOfTheProgram_LeavesTheJobAsFailed(self):
        done = self.run_script("mill = state(1)\nraise ValueError('own fault')")
        self.assertEqual((done.returncode, done.stdout), (1, "left\n"))

    def test_ExitWithACode_FailsTheJobWithinABlockAlone(self):
        for ending, left in (("mill = state(1)\nsys.exit(3)", "finished\n"), ("with state(1): sys.exit(3)", "left\n")):
            with self.subTest(ending):
                done = self.run_script(ending)
                self.assertEqual((done.returncode, done.stdout), (3, left))


if __name__ == "__main__":
    unittest.main()
