"""Hostile peers of a shard, for hostile_rate.py. Each kind is a process at SCHED_IDLE and nice 19 that attacks until it is ended.

The peers speak ZMTP over sockets of the system, so they can break the protocol where ZeroMQ's own clients keep it. Their
Hello is a real worker's, which `record_hello` takes. `record` takes a real worker's encrypted bytes from a relay in front
of the shard.
"""

import ctypes
import multiprocessing
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import Callable, Optional

from curve_client import METADATA, CurveClient, frame

NICE = 19
GREETING_BYTES = 64
COMMAND, LONG, MORE = 4, 2, 1  # flags of a ZMTP frame
TALKERS = 32  # connections of every kind but `silent`
CHUNK_BYTES = 1 << 16
NULL_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
UNFINISHED_FRAME_BYTES = 100
RECEIVE_BUFFER_BYTES = 4096  # of a peer that reads nothing
ADDRESSES = 64  # of the attacker: a shard bounds the connections of one address
DESCRIPTORS_KEPT = 256  # of the attacker, beside its connections
SILENT_MAX = 10_000
OPENED_A_TURN = 64
RECORD_WITHIN_S = 120
BEGIN_WITHIN_S = 60


def frames(data):
    """Yields (flags, begin, end) of each whole ZMTP frame behind the greeting."""
    at = GREETING_BYTES
    while at + 2 <= len(data):
        head = 9 if data[at] & LONG else 2
        if len(data) < at + head:
            return
        end = at + head + int.from_bytes(data[at + 1:at + head], "big")
        if end > len(data):
            return
        yield data[at], at, end
        at = end


def bodies(data):
    """Yields (flags, body) of each whole ZMTP frame behind the greeting."""
    for flags, begin, end in frames(data):
        yield flags, data[begin + (9 if flags & LONG else 2):end]


@dataclass
class Recording:
    """A worker's bytes on a new connection: the parts of its handshake, each sent once the shard has answered, and its Hello."""

    handshake: list
    hello: bytes

    @staticmethod
    def of(data):
        """Returns the recording in these bytes; None while they lack the end of the Hello."""
        handshake, begin = [], 0
        for flags, at, end in frames(data):
            if flags & COMMAND:
                handshake.append(data[begin:end])
                begin = end
            elif not flags & MORE:
                return Recording(handshake, data[begin:end])
        return None


def record_hello(start):
    """Returns the Hello of a worker without keys as (flags, body) of its frames. `start` starts the worker with two ports:
    of a listener that ends the handshake and never answers, and of one that is mute.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as mute:
        worker = start(listener.getsockname()[1], mute.getsockname()[1])
        listener.settimeout(RECORD_WITHIN_S)
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(RECORD_WITHIN_S)
                connection.sendall(NULL_GREETING + frame(COMMAND, b"\x05READY" + METADATA.replace(b"DEALER", b"ROUTER")))
                data = b""
                while not (whole := Recording.of(data)):
                    received = connection.recv(CHUNK_BYTES)
                    if not received:
                        raise ConnectionError("the worker ends the connection before its Hello")
                    data += received
        finally:
            worker.kill()
            worker.wait()
    return [(flags & MORE, body) for flags, body in bodies(bytes(GREETING_BYTES) + whole.hello)]


def record(shard, start):
    """Relays connections to the shard until one has sent a Hello. `start` starts the worker with the relay's port, and the
    port of a second shard that never answers.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as mute:
        worker = start(listener.getsockname()[1], mute.getsockname()[1])
        other, sent = {}, {}  # socket -> its other side; socket of the worker -> its bytes
        until = time.monotonic() + RECORD_WITHIN_S
        try:
            while time.monotonic() < until:
                for one in select.select([listener, *other], [], [], 1)[0]:
                    if one is listener:
                        near, far = listener.accept()[0], socket.create_connection(shard)
                        other.update({near: far, far: near})
                        sent[near] = b""
                    elif one in other and not relay(one, other, sent):
                        continue
                    elif one in sent and (whole := Recording.of(sent[one])):
                        return whole
            raise TimeoutError(f"no Hello to record within {RECORD_WITHIN_S} s")
        finally:
            worker.kill()
            worker.wait()
            for one in other:
                one.close()


def relay(one, other, sent):
    """Passes on the bytes that have arrived. False: the connection has ended."""
    try:
        data = one.recv(CHUNK_BYTES)
    except ConnectionError:
        data = b""
    if data:
        other[one].sendall(data)
        if one in sent:
            sent[one] += data
        return True
    far = other.pop(one)
    del other[far]
    one.close()
    far.close()
    return False


class Keyed:
    """The bytes of a client of CURVE that repeats a message. Without frames it ends its handshake alone."""

    parts = 2

    def __init__(self, secret, server, message):
        self.client = CurveClient(secret, server, os.urandom)
        self.message = message
        self.messages = max(1, CHUNK_BYTES // sum(len(body) for _, body in message)) if message else 0

    def part(self, number, answer):
        return self.client.initiate(answer) if number else self.client.hello()

    def chunk(self):
        return b"".join(self.client.message(flags, body) for _ in range(self.messages) for flags, body in self.message)


class Replayed:
    """The bytes of a recording, once."""

    messages = 1

    def __init__(self, recording):
        *self.handshake, last = recording.handshake
        self.parts, self.last = len(self.handshake), last + recording.hello

    def part(self, number, _answer):
        return self.handshake[number]

    def chunk(self):
        chunk, self.last = self.last, b""
        return chunk


@dataclass
class Plan:
    """The course of each connection of an attack: the parts of its handshake in turn, then chunks until one is empty."""

    connections: int = TALKERS
    speech: Optional[Callable] = None  # of a new connection
    reads: bool = True


@dataclass
class Material:
    """What attackers have: keys, a worker's Hello, and a recording of its encrypted bytes."""

    server: bytes = b""
    allowed: bytes = b""
    hello: tuple = ()
    recording: Optional[Recording] = None


def silent(_material):
    return Plan(connections=min(SILENT_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT))


def unfinished(material):
    return Plan(speech=lambda: Keyed(material.allowed, material.server, [(MORE, b"x" * UNFINISHED_FRAME_BYTES)]))


def slow_reader(material):
    return Plan(speech=lambda: Keyed(material.allowed, material.server, material.hello), reads=False)


def hello_flood(material):
    return Plan(speech=lambda: Keyed(material.allowed, material.server, material.hello))


def wrong_key(material):
    return Plan(speech=lambda: Keyed(os.urandom(32), material.server, ()))


def replay(material):
    return Plan(speech=lambda: Replayed(material.recording))


PLANS = {plan.__name__: plan for plan in (silent, unfinished, slow_reader, hello_flood, wrong_key, replay)}


class Peer:
    """One connection of a plan."""

    def __init__(self, plan, shard, number):
        self.plan = plan
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if not plan.reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.socket.bind((f"127.0.1.{1 + number % ADDRESSES}", 0))
        self.socket.connect_ex(shard)
        self.connected = False
        self.speech = plan.speech() if plan.speech else None
        self.sent = 0  # parts that have begun, but the first
        self.pending = memoryview(self.speech.part(0, b"") if self.speech else b"")
        self.heard = b""

    def talks(self):
        return self.speech is None or self.sent == self.speech.parts

    def receive(self):
        """Reads the bytes that have arrived. An answer of the shard lets the next part begin. False: the connection has ended."""
        try:
            data = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not self.talks():
            self.heard += data
            answers = [body for _, body in bodies(self.heard)]
            if len(answers) > self.sent and not self.pending:
                answer = answers[self.sent]
                self.sent += 1
                self.pending = memoryview(self.speech.chunk() if self.talks() else self.speech.part(self.sent, answer))
        return bool(data)

    def send(self):
        """Sends as much as the connection takes. Returns the messages completed; None: the connection has ended."""
        try:
            self.pending = self.pending[self.socket.send(self.pending):]
        except BlockingIOError:
            return 0
        except OSError:
            return None
        if self.pending or not self.talks():
            return 0
        self.pending = memoryview(self.speech.chunk())
        return self.speech.messages

    def interest(self):
        """Returns the events to wait for; the end of the connection always."""
        return (select.EPOLLRDHUP | (select.EPOLLOUT if self.pending or not self.connected else 0)
                | (select.EPOLLIN if self.speech and (self.plan.reads or not self.talks()) else 0))


class Connections:
    """Keeps as many connections as the plan has, and opens another one for each that the shard has ended."""

    def __init__(self, plan, shard, counts):
        self.plan, self.shard, self.counts = plan, shard, counts
        self.epoll = select.epoll()
        self.peers, self.opened, self.held = {}, 0, 0

    def run(self):
        while True:
            for _ in range(min(OPENED_A_TURN, self.plan.connections - len(self.peers))):
                self.open()
            for descriptor, events in self.epoll.poll(0.02):
                self.turn(self.peers[descriptor], events)

    def open(self):
        peer = Peer(self.plan, self.shard, self.opened)
        self.opened += 1
        self.peers[peer.socket.fileno()] = peer
        self.epoll.register(peer.socket, peer.interest())

    def turn(self, peer, events):
        if events & (select.EPOLLHUP | select.EPOLLERR):
            return self.close(peer)
        before = peer.interest()
        if events & select.EPOLLOUT:
            if not peer.connected:
                self.count(peer)
            completed = peer.send() if peer.pending else 0
            if completed is None:
                return self.close(peer)
            self.counts.messages += completed
        if (events & select.EPOLLIN and not peer.receive()) or events & select.EPOLLRDHUP:
            return self.close(peer)
        if peer.interest() != before:
            self.epoll.modify(peer.socket, peer.interest())
        return None

    def count(self, peer):
        peer.connected = True
        self.held += 1
        self.counts.connections += 1
        self.counts.held_max = max(self.counts.held_max, self.held)

    def close(self, peer):
        self.held -= 1 if peer.connected else 0
        del self.peers[peer.socket.fileno()]
        peer.socket.close()


class Counts(ctypes.Structure):
    """Counts of one attacker, whose process writes them."""

    _fields_ = [("connections", ctypes.c_uint64), ("held_max", ctypes.c_uint64), ("messages", ctypes.c_uint64)]


class Attacker:
    """A process that attacks from its begin until it is ended."""

    def __init__(self, attack, *arguments):
        self.counts = multiprocessing.RawValue(Counts)
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=(attack, *arguments), daemon=True)
        self.process.start()

    def run(self, attack, *arguments):
        for number in (signal.SIGINT, signal.SIGTERM):  # the bench ends it
            signal.signal(number, signal.SIG_IGN)
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # a thread of the job or of a shard that wakes preempts it
        attack(*arguments, self.counts)

    def wait_until_begun(self, is_talking):
        """Returns once it has a connection, or has sent a message. SCHED_IDLE may keep it waiting on a busy machine."""
        until = time.monotonic() + BEGIN_WITHIN_S
        while (self.counts.messages if is_talking else self.counts.connections) == 0 and self.process.is_alive():
            if time.monotonic() > until:
                raise Ended(f"the attacker did not begin within {BEGIN_WITHIN_S} s")
            time.sleep(0.05)

    def end(self):
        """Returns the counts. Raises Ended where the attack has ended by itself."""
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        if code is not None:
            raise Ended(f"the attacker ended by itself with {code}")
        return {name: getattr(self.counts, name) for name, _ in Counts._fields_}


class Ended(Exception):
    """An attacker has ended before its time."""


def attacker(kind, shard, material):
    """Starts the attack of this kind at the shard, a pair of host and port."""
    return Attacker(lambda counts: Connections(PLANS[kind](material), shard, counts).run())
