"""Hostile peers of a shard, for hostile_rate.py. Each kind is a process at SCHED_IDLE and nice 19 that attacks until it is ended.

The peers speak ZMTP over sockets of the system, so they can break the protocol where ZeroMQ's own clients keep it. Their
handshake and their Hello are bytes of a real worker, which `record` takes from a relay in front of the shard.
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

NICE = 19
GREETING_BYTES = 64
COMMAND, LONG, MORE = 4, 2, 1  # flags of a ZMTP frame
TALKERS = 32  # connections of every kind but `silent`
CHUNK_BYTES = 1 << 16
UNFINISHED_FRAME_BYTES = 100
RECEIVE_BUFFER_BYTES = 4096  # of a peer that reads nothing
ADDRESSES = 64  # of the attacker: a shard bounds the connections of one address
DESCRIPTORS_KEPT = 256  # of the attacker, beside its connections
SILENT_MAX = 10_000
OPENED_A_TURN = 64
RECORD_WITHIN_S = 120


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


@dataclass
class Plan:
    """The course of each connection of an attack: the parts of its handshake in turn, then its chunk, `again` and again."""

    connections: int = TALKERS
    handshake: tuple = ()
    chunk: bytes = b""
    messages: int = 0  # of a chunk
    again: bool = True
    reads: bool = True


def repeated(message):
    """Returns a chunk of this message, and how many it has."""
    count = max(1, CHUNK_BYTES // len(message))
    return {"chunk": message * count, "messages": count}


def silent(_recording):
    return Plan(connections=min(SILENT_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_KEPT))


def unfinished(recording):
    frame = bytes([MORE, UNFINISHED_FRAME_BYTES]) + b"x" * UNFINISHED_FRAME_BYTES
    return Plan(handshake=recording.handshake, **repeated(frame))


def slow_reader(recording):
    return Plan(handshake=recording.handshake, reads=False, **repeated(recording.hello))


def hello_flood(recording):
    return Plan(handshake=recording.handshake, **repeated(recording.hello))


def replay(recording):
    *first, last = recording.handshake
    return Plan(handshake=first, chunk=last + recording.hello, messages=1, again=False)


PLANS = {plan.__name__: plan for plan in (silent, unfinished, slow_reader, hello_flood, replay)}


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
        self.parts = [*plan.handshake, plan.chunk]
        self.sent = 0  # parts that have begun
        self.pending = memoryview(self.parts[0])
        self.heard = b""

    def talks(self):
        return self.sent == len(self.plan.handshake)

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
            if sum(1 for _ in frames(self.heard)) > self.sent and not self.pending:
                self.sent += 1
                self.pending = memoryview(self.parts[self.sent])
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
        if self.plan.again:
            self.pending = memoryview(self.plan.chunk)
        return self.plan.messages

    def interest(self):
        """Returns the events to wait for; the end of the connection always."""
        return (select.EPOLLRDHUP | (select.EPOLLOUT if self.pending or not self.connected else 0)
                | (select.EPOLLIN if self.plan.handshake and (self.plan.reads or not self.talks()) else 0))


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


def wrong_key(address, server_key, counts):
    """Begins handshakes with a key that the shard does not allow; each ends with the shard's refusal. Needs pyzmq."""
    import zmq  # pylint: disable=import-outside-toplevel
    from zmq.utils import z85  # pylint: disable=import-outside-toplevel
    (public, secret), theirs = zmq.curve_keypair(), z85.encode(bytes.fromhex(server_key))
    context = zmq.Context()
    poller, sockets = zmq.Poller(), {}
    ended = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
    while True:
        while len(sockets) < TALKERS:
            one = context.socket(zmq.DEALER)
            one.linger, one.curve_publickey, one.curve_secretkey, one.curve_serverkey = 0, public, secret, theirs
            monitor = one.get_monitor_socket(ended)
            one.connect(address)
            sockets[monitor] = one
            poller.register(monitor, zmq.POLLIN)
            counts.connections += 1
        counts.held_max = TALKERS
        for monitor, _ in poller.poll():
            poller.unregister(monitor)
            one = sockets.pop(monitor)
            one.disable_monitor()
            monitor.close()
            one.close()
            counts.messages += 1


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


def attacker(kind, shard, recording, server_key):
    """Starts the attack of this kind at the shard, a pair of host and port."""
    if kind == "wrong_key":
        return Attacker(wrong_key, f"tcp://{shard[0]}:{shard[1]}", server_key)
    return Attacker(lambda counts: Connections(PLANS[kind](recording), shard, counts).run())
