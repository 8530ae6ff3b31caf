#!/usr/bin/env python3
"""millrace.peers: groups over TCP and over threads, sums, error feedback, ends of a group.

    peers_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import json
import os
import random
import secrets
import signal
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

from in_threads import in_threads
from shards import TIMEOUT_S, in_python

import numpy as np

import millrace
from millrace import peers


def addresses_of(ranks):
    """Returns addresses on a loopback host of their own, so that no other program has the ports."""
    host = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.1"
    return [f"{host}:{7600 + rank}" for rank in range(ranks)]


def new_key(folder, name):
    """Returns the file of a new secret key."""
    path = Path(folder) / f"{name}.key"
    path.write_text(f"millrace-secret-key {secrets.token_hex(32)}\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def on_groups(groups, body):
    """Runs body(group) on a thread for each group, and closes the groups."""
    def run(at):
        with groups[at] as group:
            body(group)

    in_threads(run, len(groups))


class Refusals(unittest.TestCase):
    def refused(self, code, sentence, call, *arguments, **named):
        with self.assertRaises(millrace.JobError) as raised:
            call(*arguments, **named)
        self.assertEqual(raised.exception.code, code, raised.exception)
        self.assertIn(sentence, str(raised.exception))


class Sums(Refusals):
    def test_Algorithms_AreTheRegistrys(self):
        known = {info.name: info for info in peers.algorithms()}
        self.assertTrue(known["oktopk"].takes_k and known["oktopk"].selects)
        self.assertFalse(known["dense_ring"].takes_k)
        self.assertIn("OkTopk22", known["oktopk"].source)

    def test_Allreduce_SumsDenseAndSparse(self):
        def body(group):
            dense = peers.Allreduce(group, 100, "dense_ring")
            out = np.empty(100, np.float32)
            self.assertEqual(dense.start(np.full(100, group.rank + 1, np.float64)).wait_into(out, scale=0.5), 100)
            np.testing.assert_array_equal(out, 3)
            sparse = peers.Allreduce(group, 100, "ssar_recursive_doubling", codec="gap+raw")
            reduced = sparse.start_sparse(np.array([7, 10 + group.rank]), np.ones(2, np.float32)).wait()
            np.testing.assert_array_equal(np.asarray(reduced.total.indices), [7, 10, 11, 12])
            np.testing.assert_array_equal(np.asarray(reduced.total.values), [3, 1, 1, 1])
            top = peers.Allreduce(group, 100, "gtopk:2")
            own = np.zeros(100, np.float32)
            own[[3, 4, 5 + group.rank]] = [5, 4, 1]
            pending = top.start(own)
            reduced = pending.wait()
            np.testing.assert_array_equal(np.asarray(reduced.total.indices), [3, 4])
            np.testing.assert_array_equal(np.asarray(reduced.contributed), [3, 4])
            self.refused("invalid_argument", "", pending.wait)
            self.assertEqual(dense.chosen(), "")

        on_groups(peers.Group.in_process(3), body)

    def test_AlgorithmText_RefusesInvalidNamesAndParameters(self):
        with peers.Group.in_process(1)[0] as group:
            for text, sentence in (("oktopc:0.1", "did you mean 'oktopk'"), ("oktopk", "it needs a k"),
                                   ("dense_ring:0.1", "takes no k"), ("oktopk:2.0", "its k is one density"),
                                   ("oktopk:0.1:0.2", "its k is one density"), ("gtopk:0.1:boundaries=equal", "no parameter"),
                                   ("oktopk:0.1:boundaries=odd", "averaged, pooled or equal"),
                                   ("oktopk:0.1:thresholds_period=0", "1 or more")):
                with self.subTest(text=text):
                    self.refused("invalid_argument", sentence, peers.Allreduce, group, 10, text)
            peers.Allreduce(group, 10, "oktopk:0.1:boundaries=pooled:thresholds_period=8:boundaries_period=16")
            peers.Allreduce(group, 10, "dsar_split_allgather:quantizer=raw+qsgd4")

    def test_GradientSum_LosesNothing(self):
        """Over all ranks and steps: gradients = sums + residuals."""
        for algorithm, options in (("ssar_split_allgather", {"select": "topk:0.05"}), ("oktopk", {"select": "topk:0.05"}),
                                   ("topk_a:0.05", {}), ("gtopk:10", {}), ("gaussian_k:0.05", {}),
                                   ("redsync_allgather", {"select": "topk:0.05", "codec_up": "gap+raw"}),
                                   ("dense_rabenseifner", {}), ("auto", {"select": "topk:0.05"})):
            entered, applied, residuals = np.zeros(500), {}, np.zeros(500)
            lock = threading.Lock()

            def body(group):
                nonlocal entered, residuals
                draws = np.random.default_rng(group.rank)
                total = peers.GradientSum(group, 500, algorithm, combine="sum", **options)
                given, taken, out = np.zeros(500), np.zeros(500), np.empty(500, np.float32)
                for _ in range(4):
                    gradient = draws.integers(-64, 64, 500).astype(np.float32)
                    total.wait_into(total.push(gradient), out)
                    given += gradient
                    taken += out
                counts = total.counts()
                kept = total.take_residual()
                residual = np.zeros(500)
                residual[np.asarray(kept.indices)] = np.asarray(kept.values)
                self.assertAlmostEqual(counts.residual_norm, float(np.linalg.norm(residual)), places=3)
                with lock:
                    entered += given
                    residuals += residual
                    applied[group.rank] = taken
                total.close()

            with self.subTest(algorithm=algorithm):
                on_groups(peers.Group.in_process(3), body)
                np.testing.assert_array_equal(applied[0], applied[1])
                np.testing.assert_array_equal(entered, applied[0] + residuals)

    def test_GradientSum_ClipsAndDropsNonFinite(self):
        """Each rank's gradient, without its NaN, is scaled down to the norm times the root of the ranks: the result is a mean."""
        def body(group):
            total = peers.GradientSum(group, 4, non_finite="drop", clip=1.0)
            out, gradient = np.empty(4, np.float32), np.array([3, np.nan, 0, 4 * (group.rank - 0.5)], np.float32)
            total.wait_into(total.push(gradient), out)
            scale = np.sqrt(2) / np.sqrt(9 + 4)
            np.testing.assert_allclose(out, [3 * scale, 0, 0, 0], rtol=1e-6)
            self.assertEqual(total.counts().non_finite_dropped, 1)
            total.close()

        on_groups(peers.Group.in_process(2), body)

    def test_GradientSum_ClipsNoiseAsADenseJob(self):
        """Independent gradients: the sum or mean over the ranks has about the norm that clip_grad_norm_() would leave."""
        ranks, size, clip = 5, 40_000, 3.0
        gradients = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(ranks)]

        def body(group):
            for combine, dense in (("sum", np.sum), ("mean", np.mean), ("weighted_mean", np.mean)):
                total = peers.GradientSum(group, size, combine=combine, clip=clip)
                out = np.empty(size, np.float32)
                total.wait_into(total.push(gradients[group.rank]), out)
                expected = dense(gradients, axis=0)
                expected *= clip / np.linalg.norm(expected)
                self.assertLess(np.linalg.norm(out - expected), 0.02 * clip, combine)
                total.close()

        on_groups(peers.Group.in_process(ranks), body)

    def test_LocalClipNorm_FollowsCombineAndWorkers(self):
        for combine, norm in (("sum", 1.5), ("mean", 6.0), ("weighted_mean", 6.0)):
            self.assertEqual(peers.local_clip_norm(millrace.JobConfig(combine=combine, clip=3.0, workers=4)), norm, combine)
        self.assertEqual(peers.local_clip_norm(millrace.JobConfig(combine="mean", workers=4)), 0.0)

    def test_Push_CopiesNoGradient(self):
        """A push reads the array before it returns, and copies it only where the sum is of all entries."""
        def body(group):
            sparse, whole = (peers.GradientSum(group, 1000, select=select, combine="sum") for select in ("topk:0.1", "none"))
            draws, counted = np.random.default_rng(group.rank), []
            for total in (sparse, whole):
                gradient, out = draws.standard_normal(1000).astype(np.float32), np.empty(1000, np.float32)
                given = gradient.copy()
                barrier.wait()
                before = millrace.copies().bytes_in
                barrier.wait()
                step = total.push(gradient)
                gradient.fill(np.nan)
                barrier.wait()
                counted.append(millrace.copies().bytes_in - before)
                total.wait_into(step, out)
                residual = np.zeros(1000, np.float32)
                kept = total.take_residual()
                residual[np.asarray(kept.indices)] = np.asarray(kept.values)
                sent = given - residual
                self.assertEqual(np.count_nonzero(sent), 100 if total is sparse else 1000)
                np.testing.assert_allclose(out[sent != 0], sums_of(sent)[sent != 0], rtol=1e-6)
                total.close()
            self.assertEqual(counted, [0, 2 * 4 * 1000])  # of both ranks

        ranks, barrier, sent_by_all = 2, threading.Barrier(2, timeout=60), []

        def sums_of(sent):
            sent_by_all.append(sent)
            barrier.wait()
            total = sum(sent_by_all[-ranks:])
            barrier.wait()
            return total

        on_groups(peers.Group.in_process(ranks), body)

    def test_Halves_OfAPushAreThePush(self):
        def body(group):
            total, out = peers.GradientSum(group, 3, combine="sum"), np.empty(3, np.float32)
            self.refused("invalid_argument", "no gradient is filled in", total.start)
            total.fill(np.full(3, 9, np.float32))
            total.fill(np.array([1, 2, 2], np.float32))  # in the place of the first
            self.assertEqual(total.squared_norm(), 9)
            total.wait_into(total.start(0.5), out)
            np.testing.assert_array_equal(out, [1, 2, 2])
            total.close()

        on_groups(peers.Group.in_process(2), body)

    def test_GradientSum_RestoresResidualAndVelocity(self):
        """Taken out and put back into another sum: the same bits as without that."""
        def body(group):
            options = {"algorithm": "ssar_split_allgather", "select": "topk:0.1", "momentum": "correction:0.9"}
            kept, taken = peers.GradientSum(group, 200, **options), peers.GradientSum(group, 200, **options)
            draws = np.random.default_rng(group.rank)
            for step in range(6):
                gradient = draws.standard_normal(200).astype(np.float32)
                one, other = np.empty(200, np.float32), np.empty(200, np.float32)
                kept.wait_into(kept.push(gradient), one)
                taken.wait_into(taken.push(gradient), other)
                np.testing.assert_array_equal(one, other)
                residual, velocity = taken.take_residual(), taken.take_velocity()
                self.assertGreater(len(residual.indices), 100)
                self.assertGreater(len(velocity.indices), 100)
                self.assertEqual(len(taken.take_velocity().indices), 0)
                taken.restore(residual, velocity)
            self.refused("invalid_argument", "", taken.restore, (np.array([200]), np.ones(1, np.float32)))
            self.refused("non_finite", "", taken.restore, (np.array([1]), np.array([np.inf], np.float32)))
            plain = peers.GradientSum(group, 200, select="topk:0.1")
            self.refused("invalid_argument", "no momentum", plain.restore, velocity=velocity)
            for total in (kept, taken, plain):
                total.close()

        on_groups(peers.Group.in_process(2), body)

    def test_GradientSum_ContinuesWithTheNumbersOfAnother(self):
        """With residual and retained numbers a new sum has the same bits, for sums that reuse thresholds or round to a grid."""
        def body(group):
            for algorithm, options in (("oktopk:thresholds_period=4:boundaries_period=5", {"select": "topk:0.05"}),
                                       ("topk_a", {"select": "topk:0.05"}),
                                       ("ssar_split_allgather", {"select": "threshold_reuse:0.05:4"}),
                                       ("ssar_split_allgather", {"select": "topk:0.01:warm_up=9"}),
                                       ("ssar_split_allgather", {"select": "topk:0.1", "reproducible": True, "reselect": "topk:0.05"})):
                whole, resumed = (peers.GradientSum(group, 1000, algorithm, **options) for _ in range(2))
                draws = np.random.default_rng(group.rank)
                for step in range(12):
                    gradient = (1 + 0.05 * step) * draws.standard_normal(1000).astype(np.float32)
                    one, other = np.empty(1000, np.float32), np.empty(1000, np.float32)
                    whole.wait_into(whole.push(gradient), one)
                    resumed.wait_into(resumed.push(gradient), other)
                    np.testing.assert_array_equal(one, other, f"{algorithm} {options} step {step}")
                    later = peers.GradientSum(group, 1000, algorithm, **options)
                    later.restore(resumed.take_residual())
                    self.assertTrue(later.restore_retained(resumed.retained()))
                    self.assertEqual(later.retained(), whole.retained())
                    resumed.close()
                    resumed = later
                numbers = whole.retained()
                other = peers.GradientSum(group, 999, algorithm, **options)
                self.assertFalse(other.restore_retained(numbers))
                self.assertFalse(other.restore_retained([]))
                self.refused("invalid_argument", "damaged", resumed.restore_retained, numbers[:-1])
                self.refused("invalid_argument", "damaged", resumed.restore_retained, [*numbers, 0])
                for total in (whole, resumed, other):
                    total.close()

        on_groups(peers.Group.in_process(2), body)

    def test_RanksWithDifferentGrids_AreAllRefused(self):
        """One rank continues with the numbers of an earlier sum, and the other does not."""
        def refuse(group, options):
            first, later = (peers.GradientSum(group, 1000, "ssar_split_allgather", **options) for _ in range(2))
            gradient, out = np.random.default_rng(group.rank).standard_normal(1000).astype(np.float32), np.empty(1000, np.float32)
            first.wait_into(first.push(gradient), out)
            if group.rank == 1:
                self.assertTrue(later.restore_retained(first.retained()))
            self.refused("job_mismatch", " grid=", lambda: later.wait_into(later.push(gradient), out))
            for total in (first, later):
                total.close()

        for options in ({"select": "topk:0.1"}, {"select": "topk:0.1", "reselect": "topk:0.05"}):
            with self.subTest(options=options):
                groups = peers.Group.in_process(2)
                in_threads(lambda at: refuse(groups[at], {"reproducible": True, **options}), len(groups))
                for group in groups:
                    group.close()

    def test_Push_ReportsTheEndOfTheGroupBeforeNan(self):
        groups = peers.Group.in_process(2)
        sums = [peers.GradientSum(group, 4) for group in groups]
        sums[0].push(np.ones(4, np.float32))
        sums[0].close()  # with a step in flight: this ends the group
        until = time.monotonic() + TIMEOUT_S
        while groups[1].failure() is None and time.monotonic() < until:
            time.sleep(0.01)
        self.refused("unavailable", "rank 0 ends", sums[1].push, np.array([1, np.nan, 0, 0], np.float32))
        sums[1].close()
        for group in groups:
            group.close()

    def test_GradientSum_RefusesBadCallsAndContinues(self):
        def body(group):
            total = peers.GradientSum(group, 4)
            out = np.empty(4, np.float32)
            self.refused("non_finite", "nothing of it is sent", total.push, np.array([1, np.nan, 0, 0], np.float32))
            self.refused("invalid_argument", "has 3 elements", total.push, np.ones(3, np.float32))
            self.refused("invalid_argument", "not pushed", total.wait_into, 0, out)
            step = total.push(np.ones(4, np.float32))
            self.refused("invalid_argument", "under way", total.push, np.ones(4, np.float32))
            self.refused("invalid_argument", "under way", total.take_residual)
            self.refused("invalid_argument", "out has 3", total.wait_into, step, np.empty(3, np.float32))
            total.wait_into(step, out)
            np.testing.assert_array_equal(out, 1)
            total.close()
            self.refused("invalid_argument", "closed", total.push, np.ones(4, np.float32))

        on_groups(peers.Group.in_process(2), body)
        with peers.Group.in_process(1)[0] as group:
            self.assertRaises(TypeError, peers.GradientSum, group, 4, mode="partial")
            for algorithm, codec, sentence in (("dense_ring", "gap+qsgd8", "no rank codes a sum"), ("dsar_split_allgather", "auto", "name one"),
                                               ("ssar_split_allgather:quantizer=raw+qsgd8", "gap+qsgd8", "one of both")):
                self.refused("invalid_argument", sentence, peers.GradientSum, group, 4, algorithm, codec_down=codec)
            for algorithm, codec in (("dense_ring", "raw+raw"), ("ssar_split_allgather", "gap+qsgd4:l2"), ("gtopk:1", "gap")):
                peers.GradientSum(group, 4, algorithm, codec_down=codec).close()
            self.refused("invalid_argument", "--select topk", peers.GradientSum, group, 4, "oktopk")

    def test_Gather_HasTheBytesOfEachRank(self):
        def body(group):
            own = b"rank %d" % group.rank * group.rank  # of rank 0: none
            self.assertEqual(group.gather(own), [b"", b"rank 1", b"rank 2rank 2"])
            pending = group.start_gather(own)
            self.assertEqual(len(pending.wait()), 3)
            self.assertTrue(pending.ready())
            self.refused("invalid_argument", "handed out before", pending.wait)

        on_groups(peers.Group.in_process(3), body)

    def test_GroupThatIsClosedWithinItsBlock_AwaitsNoRank(self):
        first, other = peers.Group.in_process(2)
        self.addCleanup(other.close)
        with first:
            first.close()

    def test_TimedBarrier_IsContinued(self):
        groups = peers.Group.in_process(2)
        self.assertFalse(groups[0].try_barrier())
        self.refused("timeout", "0.01 s", groups[0].barrier, timeout=0.01)
        # Rank 0 has entered one barrier in three calls, so that rank 1's second one has no partner.
        groups[1].barrier()
        groups[0].barrier()
        self.assertFalse(groups[1].try_barrier(timeout=0.02))
        on_groups(groups, lambda group: group.barrier())

    def test_Waits_EndAtTheirTime(self):
        first, second = peers.Group.in_process(2)
        total = peers.GradientSum(first, 4)
        step = total.push(np.ones(4, np.float32))
        self.assertIsNone(total.try_wait_into(step, np.empty(4, np.float32), timeout=0.02))
        self.refused("timeout", "0.02 s", total.wait_into, step, np.empty(4, np.float32), timeout=0.02)
        total.close()
        first.close()
        second.close()


class Ports(unittest.TestCase):
    def test_TheTimeline_HasThePhasesOfEverySum(self):
        def body(group):
            sums = [peers.GradientSum(group, 1000, "ssar_split_allgather", select="topk:0.1") for _ in range(2)]
            port = peers.Port(group, sums, "t", millrace.WorkerConfig(worker=group.rank, http="127.0.0.1:0"))

            def trace(query):
                with urllib.request.urlopen(f"http://127.0.0.1:{port.port}/trace{query}", timeout=TIMEOUT_S) as answer:
                    return json.loads(answer.read())

            trace("?seconds=60")
            out = np.empty(1000, np.float32)
            for one in sums:
                one.wait_into(one.push(np.arange(1000, dtype=np.float32)), out)
            spans = trace("")["spans"]  # [thread, name, begin, end, step, unit kind, unit, worker, job]
            self.assertEqual({(name, unit, number) for _, name, _, _, _, unit, number, _, _ in spans},
                             {(name, "tensor", number) for name in ("select", "encode", "exchange", "apply") for number in range(2)})
            port.close()
            for one in sums:
                one.close()

        on_groups(peers.Group.in_process(2), body)


class OverTcp(Refusals):
    def test_Ranks_MeetByAList(self):
        addresses = addresses_of(3)
        groups = [None] * 3

        def meet(rank):
            groups[rank] = peers.Group(rank, addresses, name="list")

        in_threads(meet, 3)

        def body(group):
            out = np.empty(1000, np.float32)
            sums = peers.Allreduce(group, 1000)
            for step in range(3):
                sums.start(np.full(1000, group.rank + step, np.float32)).wait_into(out)
                np.testing.assert_array_equal(out, 3 + 3 * step)
            self.assertIsNone(group.failure())
            self.assertGreater(group.traffic().bytes_received, 0)

        on_groups(groups, body)

    def test_Ranks_MeetByAnExchange(self):
        told, all_told = {}, threading.Barrier(2)

        def exchange(rank, own):
            told[rank] = own
            all_told.wait(TIMEOUT_S)
            return [told[0], told[1]]

        def meet(rank):
            with peers.Group(rank, listen="127.0.0.1:0", exchange=lambda own: exchange(rank, own)) as group:
                self.assertEqual((group.rank, group.size), (rank, 2))

        in_threads(meet, 2)
        self.assertNotEqual(told[0], told[1])

    def test_Ranks_WithOneKeyMeetBesideStrangersWithAnother(self):
        with tempfile.TemporaryDirectory() as folder:
            key, other = new_key(folder, "job"), new_key(folder, "other")
            addresses, told = addresses_of(2), []

            def exchange(own):
                told.append(own)
                return addresses

            groups = [None, None]

            def meet(rank):
                groups[rank] = peers.Group(rank, listen=addresses[rank], exchange=exchange, key_file=key)

            first = threading.Thread(target=meet, args=(0,))
            first.start()
            self.refused("unauthenticated", "rank 1 has none: give it key_file", peers.Group, 1, addresses)
            self.refused("unauthenticated", "all ranks of the group the same key_file", peers.Group, 1, addresses, key_file=other)
            self.refused("job_mismatch", "another group", peers.Group, 1, addresses, key_file=key, name="another")
            meet(1)
            first.join()
            self.assertEqual(sorted(told), addresses)  # no part of the key

        def body(group):
            out = np.empty(100_000, np.float32)
            peers.Allreduce(group, 100_000, "dense_ring").start(np.ones(100_000, np.float32)).wait_into(out)
            np.testing.assert_array_equal(out, 2)

        on_groups(groups, body)

    def test_AddressesOfOtherMachines_NeedAKeyOrInsecure(self):
        self.refused("invalid_argument", "say insecure", peers.Group, 0, ["192.0.2.1:7600", "192.0.2.2:7600"])
        self.refused("invalid_argument", "leave one of them out", peers.Group, 0, addresses_of(2), key_file="job.key", insecure=True)
        self.refused("io", "key_file: ", peers.Group, 0, addresses_of(2), key_file="/nowhere/job.key")

    def test_Exchange_ItsExceptionsArrive(self):
        def exchange(own):
            raise LookupError(own)

        with self.assertRaisesRegex(LookupError, "127.0.0.1:"):
            peers.Group(0, listen="127.0.0.1:0", exchange=exchange)
        with self.assertRaisesRegex(TypeError, "list of addresses"):
            peers.Group(0, listen="127.0.0.1:0", exchange=lambda own: 5)

    def test_MissingRank_IsNamed(self):
        self.refused("timeout", "rank 1 has not connected", peers.Group, 0, addresses_of(2), connect_timeout=0.1)
        self.refused("invalid_argument", "rank 2 of 2", peers.Group, 2, addresses_of(2))
        self.refused("invalid_argument", "'nowhere' is not an address", peers.Group, 0, ["127.0.0.1:7600", "nowhere"])

    def test_KilledRank_IsNamedByTheOthers(self):
        addresses = addresses_of(2)
        killed = in_python("import sys, time, millrace.peers as p; group = p.Group(1, sys.argv[1:]); print(1, flush=True); time.sleep(60)",
                           *addresses)
        group = peers.Group(0, addresses)
        killed.stdout.readline()
        pending = peers.Allreduce(group, 10, "dense_ring").start(np.ones(10, np.float32))
        total, out = peers.GradientSum(group, 10), np.empty(10, np.float32)
        step = total.push(np.ones(10, np.float32))
        killed.send_signal(signal.SIGKILL)
        for _ in range(2):  # a later wait has the same error
            self.refused("unavailable", "rank 1 is gone", pending.wait)
            self.refused("unavailable", "rank 1 is gone", total.wait_into, step, out)
        self.refused("unavailable", "rank 1 is gone", total.take_residual)
        killed.communicate()
        total.close()
        group.close()

    def test_ControlC_EndsAMeeting(self):
        waiting = in_python("import sys, millrace.peers as p; print(1, flush=True); p.Group(0, sys.argv[1:])", *addresses_of(2))
        waiting.stdout.readline()
        waiting.send_signal(signal.SIGINT)
        self.assertIn("KeyboardInterrupt", waiting.communicate(timeout=TIMEOUT_S)[1])

    def test_ControlC_EndsEveryWait(self):
        """The other rank of the group does nothing."""
        program = """
import sys, numpy as np, millrace.peers as p
group, other = p.Group.in_process(2)
ones = np.ones(4, np.float32)
total, dense = p.GradientSum(group, 4), p.Allreduce(group, 4, "dense_ring")
print(1, flush=True)
exec(sys.argv[1])
"""
        for call in ("total.wait_into(total.push(ones), ones, timeout=None)", "dense.start(ones).wait(timeout=None)",
                     "group.barrier(timeout=None)", "group.gather(b'', timeout=None)"):
            with self.subTest(call=call):
                waiting = in_python(program, call)
                self.assertEqual(waiting.stdout.readline(), "1\n")
                time.sleep(0.3)
                waiting.send_signal(signal.SIGINT)
                self.assertIn("KeyboardInterrupt", waiting.communicate(timeout=TIMEOUT_S)[1])

    def test_ForkedChild_CanNeitherUseNorEndTheGroup(self):
        groups = peers.Group.in_process(2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                groups[0].barrier()
            except millrace.JobError as error:
                code = 0 if "forked" in str(error) else 2
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        on_groups(groups, lambda group: group.barrier())


if __name__ == "__main__":
    unittest.main()
