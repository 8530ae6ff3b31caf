#!/usr/bin/env python3
"""Time limits that several waits share, with fake sessions and a clock of the test's; errors name the missing ranks.

    torch_deadline_test.py [FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE] [unittest arguments]
"""

import os
import socket
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

import torch

from millrace.torch.deadline import Deadline
from millrace.torch.bucket import Bucket, Layout, Place
from millrace.torch.exchange import Exchange
from millrace.torch.peers import PeerLibrary, exchange_through, rendezvous_store
from millrace.torch.replica import Replica
from millrace.torch.residuals import Residuals
from millrace.torch.store_job import StoreJob
from millrace.torch.wait_list import WaitList
from torch_fake_job import Job, gradients
from torch_fakes import JobError

LIMIT_S = 10.0


class Clock:
    """Takes the place of the module time in the files under test."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class SlowSession:
    """Each call takes `seconds` of the clock, or ends in an error after its timeout. `timeouts` has those that were given."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.timeouts = clock, seconds, []
        self._left = {}  # of an update that is awaited in pieces

    def _take(self, timeout):
        self.timeouts.append(timeout)
        self.clock.now += min(self.seconds, timeout)
        if timeout < self.seconds:
            raise JobError("blocked on worker 1", "timeout")

    def push(self, place, gradient, timeout):
        self._take(timeout)
        return 0

    def wait(self, place, step, timeout):
        self._take(timeout)
        return SimpleNamespace(replaced=False, pieces=[])

    def wait_into(self, place, step, out, timeout):
        self._take(timeout)

    def try_wait_into(self, place, step, out, timeout):
        left = self._left.get(place, self.seconds)
        self._left[place] = left - min(left, timeout)
        self.clock.now += min(left, timeout)
        return True if left <= timeout else None

    def wait_list(self):
        return WaitList(self)

    def pull(self, place, out, timeout):
        self._take(timeout)

    def pull_rows(self, place, width, rows, out, timeout):
        self._take(timeout)

    def steps_applied(self, place):
        return 1

    def close(self):
        """Leaves the job."""


class Steps(unittest.TestCase):
    """The waits of a step share its limit, and the next step has a whole one."""

    def setUp(self):
        self.clock = Clock()
        for name in ("deadline", "exchange", "replica"):
            patch = mock.patch(f"millrace.torch.{name}.time", self.clock)
            patch.start()
            self.addCleanup(patch.stop)

    def test_OfAReplica(self):
        replica = Replica.__new__(Replica)
        replica._session = session = SlowSession(self.clock, 2.0)
        replica._parameters = [(name, torch.nn.Parameter(torch.ones(3))) for name in "ab"]
        replica._timeout, replica._broken = LIMIT_S, None
        replica._report = SimpleNamespace(count=lambda *seconds: None, tell=lambda: None)
        for _ in range(2):
            replica.step()
        self.assertEqual(session.timeouts, 2 * [10.0, 8.0, 6.0, 4.0])
        session.seconds = 3.0
        with self.assertRaisesRegex(JobError, "^not within 10 s: blocked on worker 1"):
            replica.step()
        self.assertEqual(self.clock.now, 16.0 + LIMIT_S)

    def test_OfDdp(self):
        session = SlowSession(self.clock, 2.0)
        report = SimpleNamespace(count=lambda *seconds: None, tell=lambda: None)
        exchange = Exchange(session, {name: Place(at, 3, False) for at, name in enumerate("ab")}, Residuals(), None, report, LIMIT_S,
                            clock=self.clock.monotonic)
        self.addCleanup(exchange.close)

        def step():
            futures = [torch.futures.Future(), torch.futures.Future()]
            for name, future in zip("ab", futures):
                began = exchange.send(Bucket(torch.ones(3), Layout([torch.zeros(3)], [name]), name == "b", future))
            exchange.await_step(began)

        for _ in range(2):
            session._left = {}
            step()
        session.seconds, session._left = 0.0, {0: 6.0, 1: 6.0}  # the first update leaves 4 s for the second
        session.wait_into = mock.Mock(side_effect=JobError("blocked on worker 1", "timeout"))
        with self.assertRaisesRegex(JobError, "^not within 10 s: blocked on worker 1"):
            step()
        self.assertLessEqual(session._left[1], 6.0 - 4.0 + 1e-9)
        self.assertGreater(session._left[1], 0.0)

    def ddp(self, late, push_seconds, wait_seconds):
        """Returns an Exchange of parameters a and b, and a call that sends one of them in a bucket of its own or both in one."""
        session = SlowSession(self.clock, 0.0)

        def push(place, gradient, timeout):
            self.clock.now += push_seconds[place]
            return 0

        session.push, session._left = push, dict(enumerate(wait_seconds))
        session.wait_into = mock.Mock(side_effect=JobError("blocked on worker 1", "timeout"))
        report = SimpleNamespace(count=lambda *seconds: None, tell=lambda: None)
        exchange = Exchange(session, {"a": Place(0, 3, False), "b": Place(1, 3, late)}, Residuals(), None, report, LIMIT_S,
                            clock=self.clock.monotonic)
        self.addCleanup(exchange.close)
        return exchange, lambda names, last: exchange.send(
            Bucket(torch.ones(3 * len(names)), Layout([torch.zeros(3) for _ in names], list(names)), last))

    def test_OfDdp_ALatePushIsNoWait(self):
        exchange, send = self.ddp(late=True, push_seconds=(0.0, 8.0), wait_seconds=(0.0, 3.0))
        exchange.await_step(send("ab", last=True))

    def test_OfDdp_NoTimeLeftIsNoErrorBeforeTheNextPush(self):
        exchange, send = self.ddp(late=False, push_seconds=(0.0, 0.0), wait_seconds=(LIMIT_S, 0.0))
        send("a", last=False)
        while exchange._wait_seconds < LIMIT_S:
            time.sleep(0.001)
        time.sleep(0.1)  # the waiter looks for the next bucket
        exchange.await_step(send("b", last=True))

    def test_OfDdp_NoTimeAtAllIsNoErrorBeforeAPush(self):
        exchange = Exchange(SlowSession(self.clock, 0.0), {}, Residuals(), None, None, 0.0, clock=self.clock.monotonic)
        self.addCleanup(exchange.close)
        time.sleep(0.1)  # the waiter looks for a bucket
        exchange.raise_error()

    def test_WaitListWhosePartHasNotEnded_DoesNotWaitForEver(self):
        waits = WaitList(SlowSession(self.clock, 0.0))
        with self.assertRaisesRegex(TimeoutError, "has not ended"):
            waits.write(timeout=0)

    def test_OfDdpsPushes(self):
        session = SlowSession(self.clock, 6.0)
        exchange = Exchange(session, {"a": Place(0, 3, False)}, Residuals(), None, None, LIMIT_S, clock=self.clock.monotonic)
        self.addCleanup(exchange.close)
        exchange._push_in_time(Place(0, 3, False), torch.ones(3), False)
        with self.assertRaisesRegex(JobError, "^not within 10 s: blocked on worker 1"):
            exchange._push_in_time(Place(0, 3, False), torch.ones(3), False)
        self.assertEqual(session.timeouts, [10.0, 4.0])

    def test_OfAStore(self):
        session = SlowSession(self.clock, 2.0)
        library = SimpleNamespace(JobConfig=dict, WorkerConfig=dict, Tensor=lambda *given: given, Session=lambda *given: session)
        job = StoreJob(library, {}, {}, {"w": 3}, LIMIT_S)
        for _ in range(2):
            job.begin_step(Deadline(LIMIT_S))
            job.push("w", torch.ones(3))
            update = job.wait("w")
            job.pull_into("w", torch.ones(3), None)
            job.pull_into("w", torch.ones(3), update)
        self.assertEqual(session.timeouts, 2 * [10.0, 8.0, 6.0])
        session.seconds = 6.0
        job.begin_step(Deadline(LIMIT_S))
        job.push("w", torch.ones(3))
        with self.assertRaisesRegex(JobError, "^not within 10 s: blocked on worker 1"):
            job.wait("w")
        session.timeouts.clear()
        job.pull_rows("w", torch.arange(2), 1)  # of a forward pass, long after the step before
        self.assertEqual(session.timeouts, [LIMIT_S])

    def test_OfTheRanksMeeting(self):
        seconds = []

        def gather(own, timeout):
            seconds.append(timeout)
            return [own]

        def meet(rank, *, exchange, connect_timeout, **options):
            seconds.append(connect_timeout)
            self.assertEqual(exchange("127.0.0.1:1"), ["127.0.0.1:1"])
            self.clock.now += 3.0
            return SimpleNamespace(rank=rank, gather=gather)

        def store(limit, error):
            seconds.append(limit.left())
            self.clock.now += 4.0
            return torch.distributed.HashStore()

        library = PeerLibrary.__new__(PeerLibrary)
        library._library, library._peers = SimpleNamespace(JobError=JobError), SimpleNamespace(Group=meet, local_clip_norm=lambda job: 0.0)
        library._addresses, library._listen, library._name, library._insecure = None, "127.0.0.1:0", "g", False
        library._silence, library._timeout = 1.0, LIMIT_S
        job = SimpleNamespace(workers=1, clip=0.0, changed=dict)
        with mock.patch("millrace.torch.peers.rendezvous_store", store):
            library.Session(job, SimpleNamespace(worker=0, key_file="", http=""), [])
        self.assertEqual(seconds, [10.0, 6.0, 3.0])


class NoLimit(unittest.TestCase):
    def test_None_IsNoLimit(self):
        limit = Deadline(None, used=5.0)
        self.assertEqual((limit.seconds, limit.left() > 9e8), (1e9, True))
        self.assertGreater(limit.call(lambda timeout: timeout), 9e8)

    def test_TimeoutNone_OfAState(self):
        with Job(workers=1, timeout=None) as job:
            job.step(gradients(0, workers=1))
            job.states[0].finish(timeout=None)
        self.assertEqual(job.states[0].session.state, "closed")


class Missing(unittest.TestCase):
    """A JobError with code timeout names the ranks that are missing."""

    def test_RanksWithoutAnAddress(self):
        store = torch.distributed.HashStore()
        with self.assertRaisesRegex(JobError, "no address of rank 1, 2 is in torch's store after 0.3 s") as raised:
            exchange_through(store, "h", 0, 3, limit=Deadline(0.3), error=JobError)("127.0.0.1:1")
        self.assertEqual(raised.exception.code, "timeout")

    def test_ProcessThatServesTorchsStore(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))  # nothing listens there
            port = free.getsockname()[1]
            with mock.patch.dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)):
                with self.assertRaisesRegex(JobError, f"rank 0 is missing: no process serves torch's store at 127.0.0.1:{port} after 0.3 s") as raised:
                    rendezvous_store(Deadline(0.3), JobError)
                self.assertEqual(raised.exception.code, "timeout")
                free.listen()
                for limit, code in ((600.0, "unavailable"), (0.0, "timeout")):
                    with mock.patch("torch.distributed.TCPStore", side_effect=RuntimeError("torch's sentence")):
                        with self.assertRaisesRegex(JobError, f"rank 0 is missing: the process at 127.0.0.1:{port} .*: torch's sentence") as raised:
                            rendezvous_store(Deadline(limit), JobError)
                        self.assertEqual(raised.exception.code, code)


if __name__ == "__main__":
    unittest.main()
