#!/usr/bin/env python3
"""The memory of a server with keys while peers that have an allowed key send messages that never end.

    hostile_memory_keys_test.py FOLDER_OF_PROGRAMS [unittest arguments]

The strangers of tests/server/process/hostile_memory_test.cc have no keys. Needs libsodium.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from commands import PROGRAMS, TIMEOUT_S, made_up_rows, run, start  # pylint: disable=wrong-import-position
from curve_client import CurveClient  # pylint: disable=wrong-import-position

MIB = 1 << 20
PEERS = 48  # fewer than one address may have
SHARD_MEMORY = 64 * MIB
SENT_EACH = 4 * MIB  # 192 MiB of all: three times the shard's memory
SENT_IN_TURN = 64 << 10
# A fourth of the shard's memory, and 128 KiB for each (server/process/port_guard.cc).
HELD_MAX = SHARD_MEMORY // 4 + PEERS * (128 << 10)
BESIDE = 24 * MIB  # the connections themselves, pieces of memory between those in use, the rest of the process


class HostileMemoryKeys(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="hostile")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.keys = self.folder / "keys"
        self.assertEqual(run("keys", "new", "cluster", "worker", "attacker", "--folder", self.keys).returncode, 0)
        command = [PROGRAMS / "millrace-server", "--table", self.folder / "t.db", "--listen", "127.0.0.1:0", "--json", "--quiet", "--key", self.keys / "cluster.key",
                   "--allowed-keys", self.keys, "--message-bytes-max", "1MiB", "--job-memory-bytes-max", "16MiB", "--shard-memory-bytes-max", str(SHARD_MEMORY)]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.end)
        self.address = json.loads(self.server.stdout.readline())["address"].removeprefix("tcp://")
        (self.folder / "rows.svm").write_text(made_up_rows(100, 3), encoding="utf-8")

    def end(self):
        self.server.terminate()
        self.server.communicate(timeout=TIMEOUT_S)

    def key(self, name):
        return bytes.fromhex((self.keys / name).read_text(encoding="utf-8").split()[1])

    def peak_bytes(self):
        """Returns the peak of the server's resident memory."""
        status = Path(f"/proc/{self.server.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))

    def peer(self):
        """Returns a connection behind its handshake, and its client."""
        host, port = self.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.addCleanup(connection.close)
        client = CurveClient(self.key("attacker.key"), self.key("cluster.pub"), os.urandom)

        def read(count):
            data = b""
            while len(data) < count:
                received = connection.recv(count - len(data))
                self.assertTrue(received, "the handshake ends early")
                data += received
            return data

        connection.sendall(client.hello())
        welcome = read(64 + 2 + 168)  # with the greeting, and the head of its frame
        connection.sendall(client.initiate(welcome[66:]))
        self.assertTrue(read(1), "READY")
        return connection, client

    def trains(self, job):
        """Returns the exit code and the errors of a worker with another key."""
        worker = start("train", "--servers", self.address, "--job", job, "--worker", 0, "--workers", 1, "--train", self.folder / "rows.svm", "--epochs", 1,
                       "--key", self.keys / "worker.key", "--server-key", self.keys / "cluster.pub")
        _, errors = worker.communicate(timeout=TIMEOUT_S)
        return worker.returncode, errors

    def test_UnfinishedMessagesOfAllowedKeysAreBounded(self):
        self.assertEqual(self.trains("before")[0], 0)
        before = self.peak_bytes()
        for size in (0, 30, 100, 5_000, 100_000):
            with self.subTest(size):
                peers = [self.peer() for _ in range(PEERS)]
                for _ in range(SENT_EACH // SENT_IN_TURN):
                    peers = [(connection, client) for connection, client in peers if self.sends(connection, client, size)]
                self.assertEqual(self.trains(f"beside-{size}")[0], 0)
                self.assertLess(self.peak_bytes() - before, HELD_MAX + BESIDE)
                for connection, _ in peers:
                    connection.close()

    @staticmethod
    def sends(connection, client, size):
        """Sends unfinished frames. False: the server has ended the connection."""
        frame = client.message(1, bytes(size))
        try:
            connection.sendall(frame + b"".join(client.message(1, bytes(size)) for _ in range(SENT_IN_TURN // len(frame))))
        except OSError:
            return False
        return True


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
