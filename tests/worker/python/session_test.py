#!/usr/bin/env python3
"""Sessions of the binding against real shards: sums, waits, residuals, stores, saves, errors.

    session_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import dataclasses
import gc
import inspect
import logging
import pickle
import re
import sys
import threading
import time
import unittest

from in_threads import in_threads
from shards import ROOT, WithShards, millrace

import numpy as np

N = 1_000


def gradient_of(worker, step, count=N):
    """Whole numbers, so that sums are exact in any order."""
    return np.random.default_rng([worker, step]).integers(-50, 50, count).astype(np.float32)


class Records(unittest.TestCase):
    """The module gives tuples, so that the order of the fields is the header's."""

    def test_Statistics_HaveTheFieldsOfTheHeaderInItsOrder(self):
        header = (ROOT / "worker/include/millrace/stats.h").read_text(encoding="utf-8")
        for name in ("TensorStats", "AuditStats", "SwitchStats", "Stats", "SessionStatus"):
            body, = re.findall(rf"^struct {name} {{\n(.*?)^}};", header, re.MULTILINE | re.DOTALL)
            members = re.findall(r"^  [\w:<>, ]+ (\w+)(?: = [^;]+)?;", body, re.MULTILINE)
            self.assertEqual([field.name for field in dataclasses.fields(getattr(millrace, name))], members, name)


class Mirror(unittest.TestCase):
    """Session has the methods of the C++ header with their parameters. Each exception has its reason."""

    HEADER = (ROOT / "worker/include/millrace/session.h").read_text(encoding="utf-8")
    OTHER_NAMES = {"connect": "__init__",  # a constructor may raise
                   "await": "wait", "try_await": "try_wait"}  # "await" is a word of Python
    ELSEWHERE = {"check": "millrace.check() needs no Session",
                 "trace": "for programs with an HTTP port of their own: one of Python has option http, which serves /trace"}
    OF_PYTHON = {"wait_into": "an update without a copy, for NumPy and torch", "try_wait_into": "the same",
                 "wait_list": "one call for many tensors: the interpreter's lock is taken once",
                 "close": "the destructor of C++: Python has no fixed time of an object's end"}
    OTHER_OVERLOADS = {"push": "DeviceSpan: an array says by itself where it is", "try_push": "the same",
                       "attach_weights": "DeviceArray: weights are attached in the host's memory alone; millrace.torch writes a card's"}
    OTHER_PARAMETERS = {"options": ["at_least_step", "timeout"],  # the members of PullOptions
                        "when": ["apply"]}  # the enum is a text

    def methods_of_the_header(self):
        """Returns {name: [parameters of each overload]}."""
        body, = re.findall(r"^class MILLRACE_API Session {\n public:\n(.*?)^ private:", self.HEADER, re.MULTILINE | re.DOTALL)
        body = re.sub(r"//.*", "", body)
        found = {}
        for name, parameters in re.findall(r"[\w:>*&] (\w+)\(([^;]*?)\)(?: const)?;", body):
            parameters = re.sub(r"<(?:[^<>]|<[^<>]*>)*>", "", parameters)  # a template's arguments have commas
            parameters = [re.sub(r" = .*", "", one).split()[-1] for one in parameters.split(",")] if parameters.strip() else []
            found.setdefault(name, []).append([other for one in parameters for other in self.OTHER_PARAMETERS.get(one, [one])])
        return found

    def parameters_of(self, name):
        method = getattr(millrace.Session, name)
        return [] if isinstance(method, property) else list(inspect.signature(method).parameters)[1:]

    def test_Methods_AreThoseOfTheHeader(self):
        header = self.methods_of_the_header()
        self.assertGreater(len(header), 30)
        self.assertEqual(set(self.ELSEWHERE) - set(header), set())
        expected = {self.OTHER_NAMES.get(name, name) for name in header if name not in self.ELSEWHERE} | set(self.OF_PYTHON)
        found = {name for name in vars(millrace.Session) if not name.startswith("_")} | {"__init__"}
        self.assertEqual(found, expected)

    def test_Parameters_AreThoseOfTheHeader(self):
        for name, overloads in self.methods_of_the_header().items():
            if name in self.ELSEWHERE:
                continue
            with self.subTest(name):
                self.assertEqual(len(overloads) > 1, name in self.OTHER_OVERLOADS)
                self.assertEqual(self.parameters_of(self.OTHER_NAMES.get(name, name)), overloads[0])


class Sums(WithShards):
    def test_DenseSteps_GiveTheSumOfAllWorkers(self):
        sessions = self.connect([millrace.Tensor("w", N)], workers=2, select="none")

        def train(worker):
            for step in range(4):
                gradient = gradient_of(worker, step)
                self.assertEqual(sessions[worker].push("w", gradient), step)
                filled = sessions[worker].wait_into("w", step, gradient)
                self.assertEqual((filled.step, filled.contributors), (step, 2))
                np.testing.assert_array_equal(gradient, gradient_of(0, step) + gradient_of(1, step))
            sessions[worker].finish()

        in_threads(train, 2)

    def test_Pieces_CoverTheTensorAndHaveTheSum(self):
        sessions = self.connect([millrace.Tensor("w", N)], workers=2, select="topk:0.2", combine="mean", parts_per_shard=2)

        def train(worker):
            gradient = gradient_of(worker, 0)
            update = sessions[worker].wait(0, sessions[worker].push(0, gradient))
            total = np.zeros(N, np.float32)
            at = 0
            for piece in update.pieces:
                self.assertEqual(piece.begin, at)
                at += piece.dimension
                self.assertEqual(piece.denominator, 2)
                places = slice(0, piece.dimension) if piece.dense else np.asarray(piece.indices)
                total[piece.begin:piece.begin + piece.dimension][places] = np.asarray(piece.values)
            self.assertEqual(at, N)
            results[worker] = total

        results = {}
        in_threads(train, 2)
        np.testing.assert_array_equal(results[0], results[1])
        residuals = [session.take_residual("w") for session in sessions]
        for entries in residuals:
            results[0][np.asarray(entries.indices)] += np.asarray(entries.values)
        np.testing.assert_array_equal(results[0], gradient_of(0, 0) + gradient_of(1, 0))

    def test_WaitInto_WritesZeroWhereTheUpdateHasNoEntry(self):
        session, = self.connect([millrace.Tensor("w", N)], select="topk:10")
        out = np.full(N, 7, np.float32)
        filled = session.wait_into("w", session.push("w", np.arange(N, dtype=np.float32)), out, scale=0.5)
        self.assertEqual(filled.entries, 10)
        wanted = np.zeros(N, np.float32)
        wanted[-10:] = np.arange(N - 10, N) / 2
        np.testing.assert_array_equal(out, wanted)

    def test_WaitList_WritesAnUpdateWhileOthersArePushed(self):
        session, = self.connect([millrace.Tensor("w", N), millrace.Tensor("v", 3)], select="none", fuse_below=0)
        waits, w, v, written = session.wait_list(), np.ones(N, np.float32), np.array([1, 2, 3], np.float16), []
        other = np.zeros(3, np.float32)
        writer = threading.Thread(target=lambda: written.append(waits.write(timeout=60)))
        writer.start()
        waits.add("v", session.push("v", v), other)
        began = time.monotonic()
        while not other.all() and time.monotonic() < began + 60:
            time.sleep(0.01)
        np.testing.assert_array_equal(other, [1, 2, 3], "the list has not ended")
        waits.push([("w", w), ("v", v)])
        w_pushed_again = session.push("w", np.full(N, 4, np.float32))
        self.assertEqual(written, [])
        waits.add("w", w_pushed_again, w)
        waits.end()
        writer.join(60)
        self.assertEqual(written, [None])
        np.testing.assert_array_equal(w, np.full(N, 4))
        np.testing.assert_array_equal(v, [1, 2, 3])

    def test_WaitList_EndsInTime(self):
        first, second = self.connect([millrace.Tensor("w", N), millrace.Tensor("v", 3)], workers=2, select="none", fuse_below=0)
        w, v = np.ones(N, np.float32), np.ones(3, np.float32)
        waits = first.wait_list()
        self.assertFalse(waits.try_write(), "the list has not ended")
        waits.push([("w", w), ("v", v)])
        waits.end()
        second.push("w", np.ones(N, np.float32))
        began = time.monotonic()
        while w[0] != 2 and time.monotonic() < began + 60:
            self.assertFalse(waits.try_write(timeout=0.05), "worker 1 has not pushed v")
        np.testing.assert_array_equal(w, np.full(N, 2))
        self.refused("timeout", "not all updates of a list are there within 0.05 s", waits.write, timeout=0.05)
        second.push("v", np.ones(3, np.float32))
        waits.write(timeout=60)
        np.testing.assert_array_equal(v, np.full(3, 2))
        self.assertFalse(waits.try_write(), "the next part has not ended")

    def test_WaitList_HasOnePartAfterTheOther(self):
        session, = self.connect([millrace.Tensor("w", N), millrace.Tensor("v", 3)], select="none", fuse_below=0)
        w, v = np.ones(N, np.float32), np.array([1, 2, 3], np.float32)
        waits = session.wait_list()
        waits.end()  # of a part without updates
        waits.push([("w", w)])
        waits.end()
        waits.push([("v", v)])
        waits.write(timeout=60)
        kept = sys.getrefcount(w)
        waits.write(timeout=60)
        self.assertEqual(sys.getrefcount(w), kept - 1, "a part that is written lets its arrays go")
        self.assertFalse(waits.try_write(timeout=0.01), "the third part has not ended")
        waits.end()
        self.assertTrue(waits.try_write(timeout=60))
        np.testing.assert_array_equal(v, [1, 2, 3])

    def test_WaitListThatEndsWithinAPush_HasThePushedUpdates(self):
        first, second = self.connect([millrace.Tensor("w", N), millrace.Tensor("v", 3)], workers=2, select="none", fuse_below=0)
        w, v = np.ones(N, np.float32), np.ones(3, np.float32)
        waits = first.wait_list()
        waits.push([("w", w)])
        end = threading.Timer(0.1, waits.end)  # within the push that follows, except on a busy machine
        end.start()
        self.refused("timeout", "the next step could not be pushed", waits.push, [("v", v), ("w", np.ones(N, np.float32))], timeout=1)
        end.join()
        second.push("w", np.ones(N, np.float32))
        second.push("v", np.ones(3, np.float32))
        waits.write(timeout=60)
        np.testing.assert_array_equal(w, np.full(N, 2))

    def test_WaitList_KeepsTheUpdatesBeforeAnError(self):
        session, = self.connect([millrace.Tensor("w", N), millrace.Tensor("v", 3)], select="none", fuse_below=0)
        w, infinite = np.ones(N, np.float32), np.array([1, np.inf, 3], np.float32)
        waits = session.wait_list()
        for gradients, error in (([("w", w), ("v", np.zeros(2, np.float32))], "gradient has 2 elements"), ([("w", w), ("u", w)], "'u'")):
            self.refused("invalid_argument", error, waits.push, gradients)
        for gradients in ([("w", w), 7], [("w", w), ("v", "text")], [(1.5, w)]):
            with self.assertRaises(TypeError):
                waits.push(gradients)
        frozen = w.copy()
        frozen.flags.writeable = False
        with self.assertRaises(ValueError):
            waits.push([("w", frozen)])
        self.refused("non_finite", "", waits.push, [("w", w), ("v", infinite)])
        self.refused("invalid_argument", "out has 3", waits.add, "w", 1, np.zeros(3, np.float32))
        waits.push([("v", np.array([1, 2, 3], np.float32))])
        waits.end()
        waits.write(timeout=60)
        np.testing.assert_array_equal(w, np.ones(N))
        self.assertEqual(session.push("w", w), 1, "it was pushed once")
        waits.add("w", 0, w)
        self.refused("invalid_argument", "handed out", waits.write)

    def test_SparsePush_TakesIndicesOfEveryType(self):
        session, = self.connect([millrace.Tensor("w", N)], select="none")
        for kind in (np.uint32, np.int32, np.uint64, np.int64):
            step = session.push_sparse("w", np.array([7, 3, 7], kind), np.array([1, 2, 4], np.float32))
            out = np.empty(N, np.float32)
            session.wait_into("w", step, out)
            self.assertEqual((out[3], out[7], np.count_nonzero(out)), (2, 5, 2))
        self.refused("invalid_argument", "0 or more", session.push_sparse, "w", np.array([-1]), np.ones(1, np.float32))

    def test_ResidualOfOneWorker_PushedByAnotherIsNotLost(self):
        first, second = self.connect([millrace.Tensor("w", N)], workers=2, select="topk:5", fuse_below=0)
        for session in (first, second):
            session.push("w", np.arange(N, dtype=np.float32))
        for session in (first, second):
            session.wait("w", 0)
        moved = first.take_residual("w")
        self.assertEqual(len(moved.indices), N - 5 - 1)  # the entry 0 is no entry
        first.push("w", np.zeros(N, np.float32))
        second.push_sparse("w", moved.indices, moved.values)
        for session in (first, second):
            session.wait("w", 1)
        total = np.zeros(N)
        for entries in (first.take_residual("w"), second.take_residual("w")):
            np.add.at(total, np.asarray(entries.indices), np.asarray(entries.values))
        self.assertEqual(total.sum(), 2 * np.arange(N - 5).sum() - 2 * np.arange(N - 10, N - 5).sum())

    def test_ResidualAndVelocity_AreTakenAndRestored(self):
        options = {"select": "topk:100", "momentum": "correction:0.5"}
        session, other = (self.connect([millrace.Tensor("w", N)], name=name, **options)[0] for name in ("one", "other"))
        updates = []
        for step in range(4):
            for one in (session, other):
                update = np.empty(N, np.float32)
                one.wait_into("w", one.push("w", gradient_of(0, step)), update)
                updates.append(update)
            residual, velocity = other.take_residual("w"), other.take_velocity("w")
            self.assertGreater(len(velocity.indices), 0)
            self.assertEqual(len(other.take_velocity("w").indices), 0)
            other.restore("w", residual, velocity)
            np.testing.assert_array_equal(*updates[-2:])

    def test_EntriesToRestore_AreChecked(self):
        session, = self.connect([millrace.Tensor("w", N)], select="topk:5")
        indices = np.array([3, 3], np.uint32)
        session.restore("w", (indices, np.array([1, 2], np.float32)))
        entries = session.take_residual("w")
        self.assertEqual((np.asarray(entries.indices).tolist(), np.asarray(entries.values).tolist()), ([3], [3]))
        self.refused("non_finite", "restore", session.restore, "w", (indices[:1], np.array([np.nan], np.float32)))
        self.refused("invalid_argument", "1000", session.restore, "w", (np.array([N]), np.ones(1, np.float32)))
        self.refused("invalid_argument", "no momentum", session.restore, "w", velocity=(indices, np.ones(2, np.float32)))

    def test_RetainedNumbers_AreRestoredOrRefused(self):
        options = {"select": "threshold_reuse:0.1:8"}
        session, later, other = (self.connect([millrace.Tensor("w", N)], name=name, **options | more)[0]
                                 for name, more in (("one", {}), ("later", {}), ("other", {"seed": 2})))
        first = session.push("w", gradient_of(0, 0))
        session.wait("w", first)
        numbers = session.retained("w")
        self.assertNotEqual(later.retained("w"), numbers)
        self.assertTrue(later.restore_retained("w", numbers))
        self.assertEqual(later.retained("w"), numbers)
        self.assertFalse(other.restore_retained("w", numbers))
        self.assertFalse(later.restore_retained("w", []))
        for damaged in (numbers[:-1], [*numbers, 0], [*numbers[:1], 2**64 - 1, *numbers[2:]]):
            self.refused("invalid_argument", "damaged", later.restore_retained, "w", damaged)
        self.assertEqual(later.retained("w"), numbers)
        with self.assertRaises(TypeError):
            later.restore_retained("w", [-1])

    def test_AttachedWeights_FollowTheUpdates(self):
        weights = np.zeros(N, np.float32)
        session, = self.connect([millrace.Tensor("w", N, weights=weights, scale=-0.5)], select="none")
        update = session.wait("w", session.push("w", np.ones(N, np.float32)))
        self.assertTrue(update.applied)
        np.testing.assert_array_equal(weights, np.full(N, -0.5, np.float32))
        self.assertEqual(session.steps_applied("w"), 1)

    def test_Schedule_GivesTheScaleOfEachStep(self):
        weights = np.zeros(N, np.float32)
        tensor = millrace.Tensor("w", N, weights=weights, schedule=lambda step: -1.0 / (step + 1))
        session, = self.connect([tensor], select="none")
        for _ in range(2):
            session.wait("w", session.push("w", np.ones(N, np.float32)))
        np.testing.assert_array_equal(weights, np.full(N, -1.5, np.float32))

    def test_Update_LivesLongerThanItsSession(self):
        session, = self.connect([millrace.Tensor("w", N)], select="none")
        update = session.wait("w", session.push("w", np.ones(N, np.float32)))
        values = [np.asarray(piece.values) for piece in update.pieces]
        session.close()
        del session, update
        gc.collect()
        self.assertEqual(sum(array.sum() for array in values), N)
        self.assertFalse(values[0].flags.writeable)

    def test_Store_IsPulledWholeInRangesAndByIndex(self):
        session, = self.connect([millrace.Tensor("w", N)], select="none", store="sgd:0.5")
        session.wait("w", session.push("w", np.arange(N, dtype=np.float32)))
        whole, part, rows = np.empty(N, np.float32), np.empty(10), np.empty(2, np.float16)
        self.assertEqual(session.pull("w", whole, at_least_step=1).least, 1)
        session.pull_range("w", 20, part, at_least_step=1)
        session.pull_indices("w", np.array([4, 8]), rows, at_least_step=1)
        np.testing.assert_array_equal(whole, np.arange(N) / -2)
        np.testing.assert_array_equal(part, np.arange(20, 30) / -2)
        np.testing.assert_array_equal(rows, [-2, -4])

    def test_CallsThatTry_SayWhetherTheTimeHasPassed(self):
        first, second = self.connect([millrace.Tensor("w", N)], workers=2, select="none", store="sgd:1", store_begin="worker")
        out, ones = np.empty(N, np.float32), np.ones(N, np.float32)
        self.assertFalse(second.try_place_weights([ones]))  # those of the worker with the lowest number count
        first.place_weights([ones])
        self.assertTrue(second.try_place_weights([ones], timeout=60))
        for name, given in (("pull", [out]), ("pull_range", [5, out[:3]]), ("pull_indices", [np.array([4]), out[:1]]),
                            ("pull_rows", [4, np.array([1]), out[:4]])):
            with self.subTest(name):
                self.assertIsNone(getattr(first, f"try_{name}")("w", *given, at_least_step=9))
                self.assertEqual(getattr(first, f"try_{name}")("w", *given, timeout=60).least, 0)
                self.assertEqual(given[-1][0], 1)
                self.refused("timeout", "the weights were not there within 0.01 s", getattr(first, name), "w", *given, at_least_step=9, timeout=0.01)
        first.push("w", ones)
        self.assertFalse(first.try_finish())
        second.push("w", ones)
        self.assertEqual(in_threads(lambda worker: (first, second)[worker].try_finish(timeout=60), 2), [True, True])

    def test_Rows_ArePushedAndPulledAsTheirEntries(self):
        session, = self.connect([millrace.Tensor("w", N)], select="none", store="sgd:1")
        rows, values = np.array([3, 0, 3]), np.arange(12, dtype=np.float32).reshape(3, 4)
        session.wait("w", session.push_rows("w", 4, rows, values))
        pulled = np.empty((3, 4), np.float32)
        session.pull_rows("w", 4, np.array([0, 2, 3], np.uint32), pulled, at_least_step=1)
        np.testing.assert_array_equal(pulled, -np.array([values[1], np.zeros(4), values[0] + values[2]]))
        self.refused("invalid_argument", "increase strictly", session.pull_rows, "w", 4, rows, pulled)
        self.refused("invalid_argument", "row 250 of a tensor", session.push_rows, "w", 4, np.array([250]), values[:1])
        for call in (session.push_rows, session.pull_rows):
            with self.assertRaisesRegex(ValueError, "rows of 3 entries, where width is 4"):
                call("w", 4, np.array([0, 2, 3], np.uint32), np.zeros((4, 3), np.float32))

    def test_SavedState_HasTheResidual(self):
        session, = self.connect([millrace.Tensor("w", N)], select="topk:5")
        session.wait("w", session.push("w", np.ones(N, np.float32)))
        session.save(self.path("state"))
        session.finish()
        again, deadline = None, time.monotonic() + 60
        while again is None:  # the shards may hear the end of the first session after the Hello of this one
            try:
                again = millrace.Session(self.job(select="topk:5"), self.me(load_path=str(self.path("state"))), [millrace.Tensor("w", N)])
            except millrace.JobError as refused:
                self.assertEqual(refused.code, "identity_in_use", refused)
                self.assertLess(time.monotonic(), deadline, "the shards keep the number of the ended session")
        with again:
            entries = again.take_residual("w")
        self.assertEqual(np.asarray(entries.values).sum(), N - 5)


class Waits(WithShards):
    def test_Timeout_NamesTheMissingWorker(self):
        first, _ = self.connect([millrace.Tensor("w", N)], workers=2, select="none")
        step = first.push("w", np.ones(N, np.float32))
        self.assertIsNone(first.try_wait("w", step))
        self.assertFalse(first.ready("w", step))
        raised = self.refused("timeout", "no update of step 0 within 0.3 s", first.wait, "w", step, timeout=0.3)
        self.assertEqual(raised.origin, "job")
        self.assertIsNone(first.try_push("w", np.ones(N, np.float32)))
        self.refused("timeout", "no update of step 0: ", first.wait, "w", step, timeout=0)
        self.refused("timeout", "could not be pushed", first.push, "w", np.ones(N, np.float32), timeout=0.05)
        self.refused("timeout", "within 0.05 s", first.wait_into, "w", step, np.empty(N, np.float32), timeout=0.05)

    def test_WaitForOneOfTwoFusedTensors_NamesTheOther(self):
        session, = self.connect([millrace.Tensor("w", N), millrace.Tensor("b", 10)], select="none")
        step = session.push("w", np.ones(N, np.float32))
        self.refused("timeout", "tensor 'w' travels with 'b' (fuse_below), which has not been pushed for step 0",
                     session.wait, "w", step, timeout=0.5)
        session.push("b", np.ones(10, np.float32))
        session.wait("w", step)

    def test_OtherThreads_RunDuringAWait(self):
        first, _ = self.connect([millrace.Tensor("w", N)], workers=2, select="none")
        step = first.push("w", np.ones(N, np.float32))
        counted = []
        thread = threading.Thread(target=lambda: counted.extend(range(100_000)))

        def wait():
            try:
                first.wait("w", step, timeout=60)
            except millrace.JobError as error:
                ended.append(error.code)

        ended = []
        waiting = threading.Thread(target=wait)
        waiting.start()
        thread.start()
        thread.join(30)
        self.assertEqual(len(counted), 100_000)
        self.assertTrue(waiting.is_alive())
        first.close()
        waiting.join(30)
        self.assertEqual((waiting.is_alive(), ended), (False, ["invalid_argument"]))

    def test_StartTimeout_EndsConnect(self):
        me = self.me(start_timeout=0.3)
        self.refused("timeout", "has not started within 300 ms", millrace.Session, self.job(2), me, [millrace.Tensor("w", N)])

    def test_UnreachableShard_IsNamed(self):
        me = millrace.WorkerConfig(worker=0, shards="tcp://127.0.0.1:9", connect_timeout=0.3)
        self.refused("unavailable", "127.0.0.1:9", millrace.Session, self.job(), me, [millrace.Tensor("w", N)])

    def test_ShardAddresses_NeedNoTcp(self):
        addresses = [address[len("tcp://"):] for address in self.addresses]
        me = millrace.WorkerConfig(worker=0, servers=",".join(addresses))
        millrace.Session(self.job(), me, [millrace.Tensor("w", N)]).finish()
        for wrong, sentence in (("127.0.0.1", "the port is missing"), (f"{addresses[0]},{self.addresses[0]}", "given twice")):
            me = millrace.WorkerConfig(worker=0, servers=wrong)
            self.refused("invalid_argument", sentence, millrace.check, self.job(), me, [millrace.Tensor("w", N)])

    def test_ClosedSession_RefusesEveryCall(self):
        session, = self.connect([millrace.Tensor("w", N)])
        session.close()
        session.close()
        self.refused("invalid_argument", "closed", session.push, "w", np.ones(N, np.float32))
        self.refused("invalid_argument", "closed", session.stats)

    def test_Block_FinishesOrLeaves(self):
        session, = self.connect([millrace.Tensor("w", N)], select="none")
        with session:
            step = session.push("w", np.ones(N, np.float32))
            session.wait("w", step)
        self.refused("invalid_argument", "closed", session.finish)
        with self.connect([millrace.Tensor("w", N)], name="closed", select="none")[0] as session:
            session.close()
        with self.connect([millrace.Tensor("w", N)], name="finished", select="none")[0] as session:
            session.finish()
        with self.assertRaises(KeyError):
            with self.connect([millrace.Tensor("w", N)], name="left", select="none")[0] as session:
                session.push("w", np.ones(N, np.float32))
                raise KeyError("of the block")
        self.refused("invalid_argument", "closed", session.status)


class Reports(WithShards):
    def test_Stats_HaveTheNamesOfTheLibrary(self):
        session, = self.connect([millrace.Tensor("w", N)], select="topk:5")
        session.wait("w", session.push("w", np.ones(N, np.float32)))
        stats = session.stats()
        self.assertEqual((stats.rounds, stats.tensors[0].name, stats.tensors[0].entries_sent_last), (1, "w", 5))
        self.assertGreater(stats.bytes_up, 0)
        self.assertEqual(stats.as_dict()["tensors"][0]["steps_pushed"], 1)
        self.assertFalse(stats.audit.audits or stats.by_switch.used)
        self.assertEqual(session.status().workers_missing, 0)
        self.assertEqual(session.http_port, 0)

    def test_Errors_HaveCodesAndArePickled(self):
        session, = self.connect([millrace.Tensor("w", N)])
        raised = self.refused("invalid_argument", "no tensor 'v'", session.push, "v", np.ones(N, np.float32))
        self.assertIsInstance(raised, RuntimeError)
        self.assertEqual(raised.origin, "worker")
        copied = pickle.loads(pickle.dumps(raised))
        self.assertEqual((str(copied), copied.code, copied.origin), (str(raised), raised.code, raised.origin))
        self.refused("invalid_argument", "tensor 3 of a job", session.wait, 3, 0)
        self.refused("invalid_argument", "", session.wait, "w", 0)

    def test_ScheduleThatRaises_EndsTheSessionAndIsLogged(self):
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append((record.levelno, record.getMessage(), threading.current_thread().name))
        logger = logging.getLogger("millrace")
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        self.addCleanup(logger.removeHandler, handler)
        raised = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: raised.append(unraisable.exc_type)
        self.addCleanup(setattr, sys, "unraisablehook", hook)
        tensor = millrace.Tensor("w", N, weights=np.zeros(N, np.float32), schedule=lambda step: {}[step])
        session = millrace.Session(self.job(select="none"), self.me(save_path=str(self.path("end"))), [tensor])
        self.addCleanup(session.close)
        step = session.push("w", np.ones(N, np.float32))
        self.refused("non_finite", "schedule", session.wait, "w", step)
        self.assertEqual(raised, [KeyError])
        deadline = time.monotonic() + 60
        while not lines and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertTrue(lines)
        self.assertEqual({name for _, _, name in lines}, {"millrace-log"})


if __name__ == "__main__":
    unittest.main()
