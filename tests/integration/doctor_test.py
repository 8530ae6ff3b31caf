#!/usr/bin/env python3
"""`millrace doctor` finds the faults that a test makes, and no problem in a healthy cluster with keys.

    doctor_test.py FOLDER_OF_PROGRAMS [unittest arguments]

The cluster with TLS needs openssl, which makes the certificates.
"""

import http.server
import json
import resource
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

from certificates import OPENSSL, certify
from commands import TIMEOUT_S, WithServers, millrace, run


def make_fake_shard(status):
    """Returns a handler that answers /status with a shard's status, and nothing else."""

    class FakeShard(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(status).encode()
            self.send_response(200 if self.path == "/status" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return FakeShard


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))


class KeyedCluster(WithServers):
    """Two shards that let in the key `worker`, and not the key `stranger`."""

    @classmethod
    def setUpClass(cls):
        cls.key_folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.key_folder.cleanup)
        cls.keys = Path(cls.key_folder.name) / "keys"
        cls.other_keys = Path(cls.key_folder.name) / "other"
        for folder, names in ((cls.keys, ("cluster", "worker")), (cls.other_keys, ("stranger",))):
            made = run("keys", "new", *names, "--folder", folder)
            assert made.returncode == 0, made.stderr
        cls.serve_flags = ("--key", cls.keys / "cluster.key", "--allowed-keys", cls.keys, *cls.more_flags())
        super().setUpClass()
        cls.http = [shard["http"] for shard in cls.cluster["shards"]]

    @classmethod
    def more_flags(cls):
        return ()

    def with_key(self, secret, server_key=None):
        return ["--key", secret, "--server-key", server_key or self.keys / "cluster.pub"]

    def checks(self, *arguments, code, preexec_fn=None):
        """Returns the checks by name and subject; the exit code must be `code`."""
        ended = subprocess.run(millrace("doctor", "--json", *arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                               preexec_fn=preexec_fn)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        self.assertEqual("the report says what to change" in ended.stderr, code == 13, ended.stderr)
        return {(check["check"], check["subject"]): check for check in json.loads(ended.stdout)["checks"]}

    def paths(self, *arguments):
        """Returns the paths between shards that a run has measured, by receiver and sender."""
        ended = run("doctor", "--json", *arguments)
        paths = {(path["receiver"], path["sender"]): path for path in json.loads(ended.stdout)["pairs"]}
        for path in paths.values():
            # On a busy machine a transfer may be late.
            self.assertTrue(path.get("mbit_per_s", 0) > 0 or "has not arrived" in path.get("problem", ""), path)
        return paths

    def assert_problem(self, check, change=""):
        self.assertEqual(check["verdict"], "problem", check)
        self.assertNotEqual(check["change"], "", check)
        self.assertIn(change, check["change"])


class Doctor(KeyedCluster):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with urllib.request.urlopen(f"http://{cls.http[0]}/status", timeout=TIMEOUT_S) as status:
            cls.status = json.load(status)

    def test_AHealthyClusterHasNoProblem(self):
        checks = self.checks("--table", self.status["table"], *self.with_key(self.keys / "worker.key"), "--allowed-keys", self.keys,
                             "--listen", "127.0.0.1:0", code=0)
        for shard in ("shard 0", "shard 1"):
            for name in ("lease", "port", "keys", "http", "version", "memory", "other shards", "clock skew"):
                self.assertEqual(checks[name, shard]["verdict"], "ok", checks[name, shard])
            for name, unit in (("latency", "ms"), ("bandwidth", "Mbit/s")):
                self.assertIn(checks[name, shard]["verdict"], ("ok", "not checked", "warning"))
                self.assertEqual(checks[name, shard].get("unit", unit), unit)
        self.assertEqual(checks["listen", "127.0.0.1:0"]["verdict"], "ok")

    def test_EachShardMeasuresItsPathFromTheOther(self):
        self.assertEqual(sorted(self.paths(*self.http)), [(0, 1), (1, 0)])
        self.assertRegex(run("doctor", *self.http).stdout, r"(?m)^to shard +from 0 +from 1$")

    def test_OneAddressLeadsToAllShardsAndTheirKeysAreNotChecked(self):
        ended = run("doctor", self.http[1])
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        for shard in (0, 1):
            self.assertRegex(ended.stdout, rf"(?m)^not checked +keys +shard {shard}: it wants a key")
        self.assertRegex(ended.stdout, r"(?m)^ +-> give --key and --server-key")
        self.assertRegex(ended.stdout, r"\d+ checks: problems 0, warnings \d+, not checked \d+\n$")

    def test_AStrangersKeyIsAProblem(self):
        checks = self.checks("--servers", self.servers.split(",")[0], *self.with_key(self.other_keys / "stranger.key"), code=13)
        self.assert_problem(checks["keys", self.servers.split(",")[0]])

    def test_AMissingTableIsAProblemAndIsNotMade(self):
        path = self.path("missing.table")
        self.assert_problem(self.checks("--table", path, code=13)["table", str(path)])
        self.assertFalse(path.exists())

    def test_AClosedPortAndAnotherProgramAreProblems(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # and does not listen
            address = f"127.0.0.1:{closed.getsockname()[1]}"
            self.assert_problem(self.checks("--servers", address, code=13)["port", address])
        self.assert_problem(self.checks("--servers", self.http[0], "--timeout", "200ms", code=13)["keys", self.http[0]])
        self.assert_problem(self.checks("--listen", self.http[0], code=13)["listen", self.http[0]])

    def test_ANameThatIsNotKnownIsAProblem(self):
        address = "no-such-host.invalid:7600"
        self.assert_problem(self.checks("--servers", address, code=13)["name", address])

    def test_FewDescriptorsAreAProblem(self):
        self.assert_problem(self.checks(code=13, preexec_fn=few_files)["descriptors", "this host"])

    def test_AnotherVersionIsAProblem(self):
        fake = make_fake_shard(self.status | {"software": "millrace 9.9.9", "other_shards": []})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), fake) as server:
            serving = threading.Thread(target=server.serve_forever)
            serving.start()
            try:
                checks = self.checks(f"127.0.0.1:{server.server_address[1]}", code=13)
            finally:
                server.shutdown()
                serving.join()
        self.assert_problem(checks["version", "shard 0"])
        self.assertEqual(checks["port", "shard 0"]["verdict"], "ok")  # the fake one gives the true one's address
        for name in ("clock skew", "bandwidth"):
            self.assertEqual(checks[name, "shard 0"]["verdict"], "not checked", checks)

    def test_KeyFilesAreJudged(self):
        loose = self.path("loose.key", (self.keys / "worker.key").read_text(encoding="utf-8"))
        loose.chmod(0o644)
        folder = self.path("jobs")
        folder.mkdir()
        for name, mode in (("1.key", 0o644), ("2.key", 0o600)):
            (folder / name).write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
            (folder / name).chmod(mode)
        checks = self.checks("--key", loose, "--server-key", self.keys / "cluster.pub", "--job-keys", folder, code=13)
        self.assert_problem(checks["keys", str(loose)])
        self.assert_problem(checks["keys", str(folder / "1.key")])
        self.assertEqual(checks["keys", str(folder / "2.key")]["verdict"], "ok")

    def test_AWrongFlagIsUsage(self):
        self.refused(2, "--listen", "doctor", "--listen", "nowhere")
        self.refused(2, "'nowhere' is not an address", "doctor", "nowhere")
        self.refused(2, "go together", "doctor", "--key", self.keys / "worker.key")
        self.refused(2, "--table-ca", "doctor", "--table-ca", "ca.pem")


@unittest.skipUnless(OPENSSL, "there is no openssl (deploy/setup.sh --tests)")
class DoctorOverTls(KeyedCluster):
    """Keys at the ports for workers, TLS and a token at the HTTP ports."""

    @classmethod
    def more_flags(cls):
        cls.secrets = Path(cls.key_folder.name)
        for name in ("port", "stranger"):
            certify(cls.secrets, name)
        for name in ("token", "wrong-token"):
            (cls.secrets / name).write_text(f"the-{name}-of-this-test-0123456789\n", encoding="utf-8")
            (cls.secrets / name).chmod(0o640)
        cls.ca = cls.secrets / "port.pem"
        return ("--http-tls", f"{cls.ca},{cls.secrets / 'port.key'}", "--http-token-file", cls.secrets / "token", "--http-ca", cls.ca)

    def over_tls(self, ca="port.pem", token="token"):
        return ["--http-ca", self.secrets / ca, "--http-token-file", self.secrets / token]

    def test_RightKeysCertificateAndTokenPass(self):
        checks = self.checks(*self.http, *self.over_tls(), *self.with_key(self.keys / "worker.key"), code=0)
        for shard in ("shard 0", "shard 1"):
            for name in ("port", "keys", "http", "version", "other shards"):
                self.assertEqual(checks[name, shard]["verdict"], "ok", checks[name, shard])

    def test_ShardsMeasureTheirPathsOverTls(self):
        self.assertEqual(sorted(self.paths(*self.http, *self.over_tls())), [(0, 1), (1, 0)])

    def test_WrongKeysAreNamedByTheFlagToChange(self):
        wrong_keys = {"--allowed-keys": self.with_key(self.other_keys / "stranger.key"),
                      "--server-key": self.with_key(self.keys / "worker.key", self.other_keys / "stranger.pub")}
        for flag, keys in wrong_keys.items():
            with self.subTest(flag):
                checks = self.checks(*self.http, *self.over_tls(), *keys, code=13)
                for shard in ("shard 0", "shard 1"):
                    self.assert_problem(checks["keys", shard], flag)
                    self.assertEqual(checks["http", shard]["verdict"], "ok", checks)

    def test_AWrongTokenIsNamed(self):
        checks = self.checks(self.http[0], *self.over_tls(token="wrong-token"), *self.with_key(self.keys / "worker.key"), code=13)
        self.assert_problem(checks["http", self.http[0]], "--http-token-file")

    def test_AnotherAuthorityIsNamed(self):
        for security in (self.over_tls(ca="stranger.pem"), []):
            with self.subTest(security):
                ended = subprocess.run(millrace("doctor", "--json", self.http[0], *security), capture_output=True, text=True,
                                       timeout=TIMEOUT_S, check=False)
                check = {(one["check"], one["subject"]): one for one in json.loads(ended.stdout)["checks"]}["http", self.http[0]]
                self.assertNotEqual(check["verdict"], "ok", check)
                self.assertIn("--http-ca", check["change"])


if __name__ == "__main__":
    unittest.main()
