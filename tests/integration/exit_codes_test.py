#!/usr/bin/env python3
"""Exit codes of the programs, by files and addresses that are wrong in one way each: a restart script acts on them.

    exit_codes_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import gzip
import os
import signal
import socket
import sqlite3
import subprocess
import tempfile
import unittest
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S

ROWS = b"+1 1:1 2:0.5\n-1 3:1\n+1 1:0.8 4:1\n-1 3:0.5 5:1\n"
USAGE, BAD_DATA, UNREACHABLE, REFUSED, IO = 2, 3, 4, 5, 6


class ExitCodes(unittest.TestCase):
    """One temporary folder, one port without a listener, one with a listener."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.taken = socket.create_server(("127.0.0.1", 0))
        cls.silent = socket.socket()  # has the port, and does not listen
        cls.silent.bind(("127.0.0.1", 0))
        cls.dead = f"127.0.0.1:{cls.silent.getsockname()[1]}"
        cls.file("rows.svm", ROWS)

    @classmethod
    def tearDownClass(cls):
        cls.taken.close()
        cls.silent.close()
        cls.folder.cleanup()

    @classmethod
    def file(cls, name, content, mode=0o644):
        path = Path(cls.folder.name) / name
        path.write_bytes(content)
        path.chmod(mode)
        return str(path)

    @classmethod
    def at(cls, name):
        return str(Path(cls.folder.name) / name)

    def ends(self, program, cases):
        """Each case, of its arguments, the code and words of the one line on stderr."""
        for name, (arguments, code, words) in cases.items():
            with self.subTest(name):
                ended = subprocess.run([str(PROGRAMS / program), *map(str, arguments)], capture_output=True, text=True,
                                       timeout=TIMEOUT_S, check=False)
                self.assertEqual(ended.returncode, code, ended.stderr)
                self.assertIn(words, ended.stderr)

    def train(self, *more, rows=None):
        return ["train", "--train", rows or self.at("rows.svm"), "--servers", self.dead, "--connect-timeout", "200ms", *more]

    def test_TrainByItsFiles(self):
        truncated = gzip.compress(ROWS * 200)[:-40]
        state = [  # begins a session before a server is asked
            ("empty", b"", BAD_DATA, "not a saved Millrace worker state"),
            ("of another kind", b"x" * 1000, BAD_DATA, "not a saved Millrace worker state"),
            ("of another version", b"MLRSAVE9" + b"\0" * 100, BAD_DATA, "another version"),
            ("cut off", b"MLRSAVE3" + b"\0" * 7, BAD_DATA, "not a saved"),
            ("damaged", b"MLRSAVE3" + (84).to_bytes(8, "little") + b"\1" * 84 + b"\0" * 8, BAD_DATA, "checksum"),
        ]
        cases = {f"state {name}": (self.train("--state", self.file(f"state {name}", content)), code, words)
                 for name, content, code, words in state}
        self.ends("millrace", cases | {
            "state is a folder": (self.train("--state", self.folder.name), IO, "it is a folder"),
            "state in no folder": (self.train("--state", "/no/such/folder/state"), IO, "No such file"),
            "rows missing": (self.train(rows="/no/such/rows"), IO, "No such file"),
            "rows empty": (self.train(rows=self.file("empty.svm", b"")), BAD_DATA, "no rows"),
            "rows malformed": (self.train(rows=self.file("bad.svm", b"+1 a:b\n")), BAD_DATA, "bad.svm:1:"),
            "rows truncated": (self.train(rows=self.file("cut.svm.gz", truncated)), BAD_DATA, "truncated"),
            "test rows missing": (self.train("--test", "/no/such/rows"), IO, "No such file"),
            "model in no folder": (self.train("-o", "/no/such/folder/m"), IO, "No such file"),
            "model is a folder": (self.train("-o", self.folder.name), IO, "it is a folder"),
        })

    def test_TrainByItsAddresses(self):
        key = self.file("good.key", b"ab" * 32 + b"\n", 0o600)
        path = ["--path", "switch", "--switch-address", f"{self.dead}", "--switch-job", 1]
        self.ends("millrace", {
            "no server": (self.train(), UNREACHABLE, "could not be joined"),
            "no server, path switch": (self.train(*path, "--switch-key", key), UNREACHABLE, "could not be joined"),
            "no key": (self.train(*path, "--switch-key", "/no/such/key"), IO, "cannot open"),
            "empty key": (self.train(*path, "--switch-key", self.file("empty.key", b"", 0o600)), USAGE, "64 hexadecimal"),
            "key that all users can read": (self.train(*path, "--switch-key", self.file("open.key", b"ab" * 32 + b"\n")), USAGE, "chmod"),
            "port taken": (self.train("--http", f"127.0.0.1:{self.taken.getsockname()[1]}"), IO, "cannot listen"),
            "servers no addresses": (["train", "--train", self.at("rows.svm"), "--servers", "x"], USAGE, "is not an address"),
            "no such flag": (self.train("--no-such-flag"), USAGE, "no-such-flag"),
            "status without a shard": (["status", self.dead], UNREACHABLE, self.dead),
        })

    def test_EvalByItsFiles(self):
        def of(model, data=None):
            return ["eval", "--model-file", model, "--test", data or self.at("rows.svm")]
        self.ends("millrace", {
            "missing": (of("/no/such/model"), IO, "No such file"),
            "empty": (of(self.file("empty.model", b"")), BAD_DATA, "not a model"),
            "of another kind": (of(self.at("rows.svm")), BAD_DATA, "not a model"),
            "cut off": (of(self.file("cut.model", b"MRLINEAR" + b"\1\0\0\0")), BAD_DATA, "too early"),
            "of a later version": (of(self.file("later.model", b"MRLINEAR" + b"\xff\0\0\0" + b"\0" * 60)), BAD_DATA, "version"),
            "a folder": (of(self.folder.name), IO, "directory"),
        })

    def test_DataByItsOutput(self):
        def of(path):
            return ["data", "synthetic", "--like", "url", "--rows", 10, "-o", path]
        self.ends("millrace", {
            "in no folder": (of("/no/such/folder/rows.svm"), IO, "No such file"),
            "a folder": (of(self.folder.name), IO, "it is a folder"),
        })

    def test_BenchByItsTrace(self):
        def of(path):
            return ["codec", "--trace", path, "--density", 0.01]
        self.ends("millrace-bench", {
            "missing": (of("/no/such/trace.npz"), IO, "cannot be opened"),
            "empty": (of(self.file("empty.npz", b"")), BAD_DATA, "empty.npz"),
            "damaged": (of(self.file("bad.npz", b"PK\3\4" + b"x" * 300)), BAD_DATA, "bad.npz"),
        })

    def table(self, name, statements=()):
        path = self.at(name)
        database = sqlite3.connect(path)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()
        return path

    def test_ServersByTheirTable(self):
        foreign = self.table("foreign.db", ["CREATE TABLE t (a)"])
        notes = self.file("notes.txt", b"x" * 5000)
        whole = self.table("whole.db", ["CREATE TABLE t (a)"])
        damaged = self.file("damaged.db", Path(whole).read_bytes()[:100] + os.urandom(4096))
        other = self.table("other.db", ["CREATE TABLE t (a)", "PRAGMA application_id = 1296847427", "PRAGMA user_version = 99"])
        cases = {
            "no database": (notes, BAD_DATA, "not a database"),
            "damaged": (damaged, BAD_DATA, "name another file"),
            "of another program": (foreign, USAGE, "another program"),
            "of another version": (other, REFUSED, "another version"),
            "in no folder": ("/no/such/folder/t.db", IO, "unable to open"),
        }
        server = ["--listen", "tcp://127.0.0.1:0", "--table"]
        self.ends("millrace-server", {name: ([*server, table], code, words) for name, (table, code, words) in cases.items()})
        serve = ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--table"]
        self.ends("millrace", {name: ([*serve, table], code, words) for name, (table, code, words) in cases.items()})

    def test_ServersByTheirPort(self):
        port = self.taken.getsockname()[1]
        self.ends("millrace-server", {
            "taken": (["--listen", f"tcp://127.0.0.1:{port}", "--table", self.at("p.db")], IO, "is in use"),
            "taken for HTTP": (["--listen", "tcp://127.0.0.1:0", "--http", f"127.0.0.1:{port}", "--table", self.at("p.db")], IO,
                               "cannot listen"),
            "no store folder": (["--listen", "tcp://127.0.0.1:0", "--store-dir", "/no/such/folder", "--table", self.at("p.db")], IO,
                                "/no/such/folder"),
        })
        self.ends("millrace", {"taken": (["serve", "--shards", 1, "--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0"], IO, "is in use")})

    def test_ServeByAShardThatDoesNotEnd(self):
        """It is killed, but where its last save has a folder."""
        running = []
        Path(self.at("saves")).mkdir()
        for saves in ([], ["--store-dir", self.at("saves")]):
            serve = subprocess.Popen([PROGRAMS / "millrace", "serve", "--shards", "1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                                      "--drain", "0s", "--json", *saves], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(serve.kill)
            self.assertIn("listening", serve.stdout.readline())
            shard, = Path(f"/proc/{serve.pid}/task/{serve.pid}/children").read_text(encoding="utf-8").split()
            os.kill(int(shard), signal.SIGSTOP)
            serve.send_signal(signal.SIGTERM)
            running.append(serve)
        without, with_saves = running
        _, err = without.communicate(timeout=120)
        self.assertEqual(without.returncode, 8, err)
        self.assertIn("shard 0 did not end within --drain and 25 s, and was killed", err)
        self.assertTrue(any("still save weights" in line for line in with_saves.stderr))
        self.assertIsNone(with_saves.poll())
        with_saves.send_signal(signal.SIGINT)
        _, err = with_saves.communicate(timeout=120)
        self.assertEqual(with_saves.returncode, 130, err)

    def test_SwitchByItsJobs(self):
        def of(path, listen="127.0.0.1:0"):
            return ["run", "--listen", listen, "--jobs", path]
        good = self.file("good2.key", b"ab" * 32 + b"\n", 0o600)
        job = '{"jobs": [{"name": "a", "job": 1, "key_file": "%s", "workers": 1, "window_indices": 1024, "slots": 4}]}'
        self.ends("millrace-switch", {
            "missing": (of("/no/such/jobs.json"), IO, "No such file"),
            "empty": (of(self.file("empty.json", b"")), USAGE, "empty.json"),
            "malformed": (of(self.file("bad.json", b"{")), USAGE, "bad.json"),
            "key missing": (of(self.file("nokey.json", (job % "/no/such/key").encode())), IO, "/no/such/key"),
            "address taken": (of(self.file("ok.json", (job % good).encode()), self.udp_taken()), IO, "127.0.0.1"),
        })

    def udp_taken(self):
        taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        taken.bind(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        return f"127.0.0.1:{taken.getsockname()[1]}"

    @unittest.skipUnless((PROGRAMS / "millrace-peer").exists(), "millrace-peer is not built")
    def test_PeersByTheirFiles(self):
        probe = subprocess.run([str(PROGRAMS / "millrace-peer"), "train", "--train", "/no/such/rows"], capture_output=True,
                               text=True, timeout=TIMEOUT_S, check=False)
        if "has no MPI" in probe.stderr:
            self.skipTest("this build has no MPI")

        def of(path, *more):
            return ["train", "--train", path, "--epochs", 1, *more]
        rows = self.at("rows.svm")
        self.ends("millrace-peer", {
            "missing": (of("/no/such/rows"), IO, "No such file"),
            "empty": (of(self.file("empty2.svm", b"")), BAD_DATA, "no rows"),
            "malformed": (of(self.file("bad2.svm", b"+1 a:b\n")), BAD_DATA, "bad2.svm:1:"),
            "compressed": (of(self.file("rows.gz", gzip.compress(ROWS))), BAD_DATA, "gzip"),
            "model in no folder": (of(rows, "-o", "/no/such/folder/m"), IO, "No such file"),
            "no server": (of(rows, "--path", "server", "--servers", self.dead, "--connect-timeout", "200ms"), UNREACHABLE,
                          "could not be joined"),
        })


if __name__ == "__main__":
    unittest.main()
