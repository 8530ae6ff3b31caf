"""Keys on the command line: `millrace keys`, training with them, and refusals that say what to do."""

import json
import os
import signal
import stat
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from commands import TIMEOUT_S, WithServers, made_up_rows, millrace, run, start


class Keys(WithServers):
    @classmethod
    def setUpClass(cls):
        super_folder = cls.make_keys()
        cls.serve_flags = ("--key", super_folder / "cluster.key", "--allowed-keys", super_folder, "--audit-log", cls.keys.parent / "audit.log")
        super().setUpClass()

    @classmethod
    def make_keys(cls):
        cls.key_folder = tempfile.TemporaryDirectory()
        cls.keys = Path(cls.key_folder.name) / "keys"
        made = run("keys", "new", "cluster", "alice", "bob", "--folder", cls.keys, "--json")
        assert made.returncode == 0, made.stderr
        cls.made = json.loads(made.stdout)
        outside = Path(cls.key_folder.name) / "outside"
        assert run("keys", "new", "mallory", "--folder", outside).returncode == 0
        cls.outside = outside
        return cls.keys

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.key_folder.cleanup()

    def setUp(self):
        self.rows = self.path("rows.svm", made_up_rows(60, seed=3))

    def with_key(self, secret, server=None):
        return ["--key", secret, "--server-key", server or self.keys / "cluster.pub"]

    def one_worker(self, *arguments):
        return run("train", *self.flags(), "--train", self.rows, "--epochs", 1, "--connect-timeout", "5s", "--json", *arguments)

    def test_WorkersWithKeysTrain(self):
        workers = [start("train", *self.flags(worker, 2), "--train", self.rows, "--epochs", 2, "--json", *self.with_key(self.keys / f"{name}.key"))
                   for worker, name in enumerate(("alice", "bob"))]
        for worker in workers:
            out, err = worker.communicate(timeout=TIMEOUT_S)
            self.assertEqual(worker.returncode, 0, err)
            self.assertIn("epochs", json.loads(out.strip().split("\n")[-1]))
        lines = [json.loads(line) for line in (self.keys.parent / "audit.log").read_text(encoding="utf-8").splitlines()]
        joins = {(line["shard"], line["worker"], line["key"]) for line in lines if line["event"] == "join" and line["job"].endswith("Train")}
        self.assertEqual(joins, {(shard, worker, name) for shard in (0, 1) for worker, name in enumerate(("alice", "bob"))})

    def test_OthersAreRefusedWithASentence(self):
        for sentence, arguments in (("does not accept this process's key", self.with_key(self.outside / "mallory.key")),
                                    ("another server's", self.with_key(self.keys / "alice.key", self.outside / "mallory.pub")),
                                    ("wants a key", ())):
            with self.subTest(sentence):
                ended = self.one_worker(*arguments)
                self.assertIn(ended.returncode, (5,) if arguments else (4, 5), ended.stderr)
                self.assertIn(sentence, ended.stderr)

    def test_FilesThatDoNotFitAreRefusedBeforeAnyServerIsAsked(self):
        loose = self.path("loose.key", (self.keys / "alice.key").read_text(encoding="utf-8"))
        loose.chmod(0o644)
        for code, sentence, arguments in ((2, "all users may read", self.with_key(loose)), (2, "go together", ["--key", self.keys / "alice.key"]),
                                          (2, "it has a secret key", self.with_key(self.keys / "alice.key", self.keys / "cluster.key")),
                                          (6, "cannot open", self.with_key(self.path("missing.key")))):
            with self.subTest(sentence):
                ended = self.one_worker(*arguments)
                self.assertEqual(ended.returncode, code, ended.stderr)
                self.assertIn(sentence, ended.stderr)
        loose.chmod(0o640)
        self.assertEqual(self.one_worker(*self.with_key(loose)).returncode, 0)

    def test_NewKeysAreFilesAndNothingIsReplaced(self):
        rows = {row["name"]: row for row in self.made["keys"]}
        self.assertEqual(list(rows), ["cluster", "alice", "bob"])
        self.assertEqual(stat.S_IMODE(os.stat(rows["alice"]["secret"]).st_mode), 0o600)
        shown = run("keys", "public", rows["alice"]["secret"])
        self.assertEqual(shown.stdout, Path(rows["alice"]["public"]).read_text(encoding="utf-8"))
        self.assertIn(rows["alice"]["key"], shown.stdout)
        again = run("keys", "new", "alice", "--folder", self.keys)
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("exists", again.stderr)
        self.assertEqual(run("keys", "new", "../x", "--folder", self.keys).returncode, 2)

    def test_NewKeysHaveTheirEndInThePublicFile(self):
        folder = self.keys.parent / "ends"
        made = run("keys", "new", "guest", "--until", "2999-12-31", "--folder", folder, "--json")
        self.assertEqual(made.returncode, 0, made.stderr)
        row, = json.loads(made.stdout)["keys"]
        self.assertEqual(row["until"], "2999-12-31")
        self.assertEqual(Path(row["public"]).read_text(encoding="utf-8"), f"millrace-public-key {row['key']} until 2999-12-31\n")
        for day, words in (("2020-01-01", "not after the present day"), ("2999-02-30", "is no day"), ("soon", "is no day")):
            refused = run("keys", "new", "other", "--until", day, "--folder", folder)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(words, refused.stderr)
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["guest.key", "guest.pub"])

    def test_KeysOfJobsFitTheDoctorAndReplaceNothing(self):
        folder = self.keys.parent / "jobs"
        made = run("keys", "job", 7, 8, "--folder", folder, "--json")
        self.assertEqual(made.returncode, 0, made.stderr)
        rows = json.loads(made.stdout)["keys"]
        self.assertEqual(rows, [{"job": job, "secret": str(folder / f"{job}.key")} for job in (7, 8)])
        texts = [Path(row["secret"]).read_text(encoding="utf-8") for row in rows]
        self.assertNotEqual(*texts)
        self.assertRegex(texts[0], r"\A[0-9a-f]{64}\n\Z")
        checks = json.loads(run("doctor", "--job-keys", folder, "--json").stdout)["checks"]
        self.assertEqual({check["verdict"] for check in checks if check["subject"].startswith(str(folder))}, {"ok"})
        again = run("keys", "job", 7, "--folder", folder)
        self.assertNotEqual(again.returncode, 0)
        self.assertIn("exists", again.stderr)
        self.assertEqual(Path(rows[0]["secret"]).read_text(encoding="utf-8"), texts[0])
        self.assertEqual(run("keys", "job", "seven", "--folder", folder).returncode, 2)

    def test_ASecretIsOnNoCommandLineAndInNoReport(self):
        secrets = [(self.keys / f"{name}.key").read_text(encoding="utf-8").split()[1] for name in ("cluster", "alice")]
        commands = "".join(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
                           for pid in subprocess.run(["pgrep", "-P", str(self.serve.pid)], capture_output=True, text=True, check=True).stdout.split())
        self.assertIn("--key", commands)
        status = run("status", self.cluster["shards"][0]["http"], "--json").stdout
        self.assertIn("shards", status)
        self.log.flush()
        log = Path(self.log.name).read_text(encoding="utf-8")
        audit = (self.keys.parent / "audit.log").read_text(encoding="utf-8")
        for secret in secrets:
            for text in (commands, status, log, audit):
                self.assertNotIn(secret, text)

    def test_ServeHasAPolicyAndPassesAReloadOn(self):
        policy = self.path("policy.json", '{"rules": [{"keys": ["bob"], "jobs": ["*"], "may": ["create"]}]}')
        self.refused(2, "--policy", "serve", "--policy", policy, "--listen", "127.0.0.1:0")
        audit = self.path("policy.log")
        serve = subprocess.Popen(millrace("serve", "--shards", 1, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--key", self.keys / "cluster.key",
                                          "--allowed-keys", self.keys, "--policy", policy, "--audit-log", audit), stdout=subprocess.PIPE, text=True)
        try:
            servers = json.loads(serve.stdout.readline())["servers"]
            train = ("train", "--servers", servers, "--job", "by-policy", "--train", self.rows, "--epochs", 1, *self.with_key(self.keys / "alice.key"))
            ended = run(*train)
            self.assertEqual(ended.returncode, 5, ended.stderr)
            self.assertIn("key 'alice' lacks the right", ended.stderr)
            self.path("policy.json", '{"rules": [{"keys": ["*"], "jobs": ["*"], "may": ["create"]}]}')
            serve.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + TIMEOUT_S
            while audit.read_text(encoding="utf-8").count('"reload"') < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            ended = run(*train)
            self.assertEqual(ended.returncode, 0, ended.stderr)
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait(timeout=240)
            serve.stdout.close()

    def test_ServeWithAnAuditLogAlonePassesItsRotationOn(self):
        audit = Path(self.path("rotated.log"))
        serve = subprocess.Popen(millrace("serve", "--shards", 1, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--audit-log", audit),
                                 stdout=subprocess.PIPE, text=True)
        try:
            self.assertIn("servers", json.loads(serve.stdout.readline()))
            audit.rename(f"{audit}.1")
            serve.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + TIMEOUT_S
            while not audit.exists() and serve.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertIsNone(serve.poll())
            self.assertTrue(audit.exists())
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait(timeout=240)
            serve.stdout.close()
        self.assertEqual(serve.returncode, 0)
        self.assertIn('"stop"', audit.read_text(encoding="utf-8"))

    def test_BenchmarkMeasuresRowsWithKeysBesideRowsWithout(self):
        ended = run("bench", "serve", "--dimension", 1000, "--workers", 2, "--shards", 1, "--rounds", 4, "--warmup", 1, "--only", "lossless", "--secure", "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        rows = {row["algorithm"]: row for row in json.loads(ended.stdout.strip().split("\n")[-1])["rows"] if "codec" in row}
        self.assertEqual({name: (row["keys"], row["agrees_with_oracle"], "ratio_to_without_keys" in row) for name, row in rows.items()},
                         {"lossless": (False, True, False), "lossless+keys": (True, True, True)})
        self.assertAlmostEqual(rows["lossless+keys"]["ratio_to_without_keys"], rows["lossless+keys"]["round_ms"] / rows["lossless"]["round_ms"])

    def test_OtherAddressesThanLoopbackNeedKeysOrAWord(self):
        self.refused(2, "--insecure", "serve", "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0")
        self.refused(2, "go together", "serve", "--key", self.keys / "cluster.key", "--listen", "127.0.0.1:0")
        serve = subprocess.Popen(millrace("serve", "--shards", 1, "--listen", "localhost:0", "--http", "127.0.0.1:0", "--json"),
                                 stdout=subprocess.PIPE, text=True)
        self.assertIn("servers", json.loads(serve.stdout.readline()))
        serve.send_signal(signal.SIGTERM)
        serve.wait(timeout=240)
        serve.stdout.close()


if __name__ == "__main__":
    unittest.main()
