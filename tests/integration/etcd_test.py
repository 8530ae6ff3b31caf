#!/usr/bin/env python3
"""Shards that share nothing but etcd: three members, of which the leader is killed and others stop during training. The model is, bit for
bit, that of an undisturbed run.

    etcd_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import etcd_members
from certificates import OPENSSL, end_of, exported_ends, openssl
from commands import PROGRAMS, TIMEOUT_S, millrace, run
from shards_by_hand import SHARDS, ShardsByHand

SYSTEM_AUTHORITIES = Path("/etc/ssl/certs")  # libcurl's default on Debian
# Calls of etcd's gateway: they make the user millrace with the right to write below /millrace/, then demand users.
MAKE_USERS = (
    ("/v3/auth/user/add", {"name": "root", "password": "r"}),
    ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
    ("/v3/auth/role/add", {"name": "shards"}),
    ("/v3/auth/role/grant", {"name": "shards", "perm": {"permType": "READWRITE", "key": "L21pbGxyYWNlLw==", "range_end": "L21pbGxyYWNlMA=="}}),
    ("/v3/auth/user/add", {"name": "millrace", "password": "secret"}),
    ("/v3/auth/user/grant", {"user": "millrace", "role": "shards"}),
    ("/v3/auth/enable", {}))


def write_password(path, text):
    path.write_text(text + "\n", encoding="utf-8")
    path.chmod(0o600)


@unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
class TrainingOnEtcd(ShardsByHand):
    def test_MembersOfEtcdEndAndStopAndNoStepIsLostOrDoubled(self):
        expected = self.undisturbed()
        etcd = etcd_members.Members(self.folder, 3)
        self.addCleanup(etcd.end)
        etcd.leader()
        cluster = self.cluster(etcd.table("/one"))
        model = self.folder / "disturbed"
        workers = self.workers(cluster, model, "--compute-time", "10ms")
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        cluster.wait_for_steps(5)

        leader = etcd.leader()
        etcd.kill(leader)
        cluster.wait_for_steps(20)
        # Two of three are left: the second leader stops, and etcd has no quorum. The job needs none.
        second = etcd.leader()
        etcd.stop(second)
        cluster.wait_for(lambda: any("no member has answered" in json.dumps(cluster.status(shard)) for shard in range(SHARDS)),
                         "no shard reports that etcd is away")
        for shard in range(SHARDS):
            cluster.waits_until_unready(cluster.lines[shard]["http"], "the membership table fails")
        cluster.wait_for_steps(50)
        etcd.go_on(second)
        # A member hangs; a shard that is killed starts again by the two others.
        etcd.start(leader)
        etcd.leader()
        hangs = etcd.leader()
        etcd.stop(hangs)
        cluster.kill(1)
        cluster.start(1)
        cluster.wait_for_steps(20)
        etcd.go_on(hangs)

        self.assertTrue(all(worker.poll() is None for worker in workers), "the faults came during training")
        self.assertEqual(self.model(workers, model), expected)

    def test_TheDoctorReadsTheTableAndSaysThatEtcdIsAway(self):
        etcd = etcd_members.Members(self.folder, 3)
        self.addCleanup(etcd.end)
        etcd.leader()
        self.cluster(etcd.table("/one"))

        def checks(code):
            ended = run("doctor", "--json", "--table", etcd.table("/one"))
            self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
            return {(check["check"], check["subject"]): check for check in json.loads(ended.stdout)["checks"]}

        healthy = checks(0)
        table = etcd.table("/one")
        for subject in (("table", table), ("lease", "shard 0"), ("lease", "shard 1"), ("port", "shard 1")):
            self.assertEqual(healthy[subject]["verdict"], "ok", healthy[subject])
        for _ in range(2):  # one of three is left: no quorum
            etcd.kill(etcd.leader())
        away = checks(13)["table", table]
        self.assertEqual(away["verdict"], "problem")
        self.assertRegex(away["found"], "nor did the other members answer|no member has answered")
        self.assertNotEqual(away["change"], "")

    def test_ALossOfAllDataEndsTheJobAndTheShardsWhichSayWhy(self):
        """Shards do not take the empty etcd for their table. Started again, they serve a job of the same name."""
        etcd = etcd_members.Members(self.folder, 1)
        self.addCleanup(etcd.end)
        etcd.leader()
        cluster = self.cluster(etcd.table("/lost"))
        workers = self.workers(cluster, self.folder / "lost", "--compute-time", "10ms")
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        cluster.wait_for_steps(5)
        etcd.kill(0)
        shutil.rmtree(self.folder / "etcd-0")
        etcd.start(0)
        for worker in workers:
            _, err = worker.communicate(timeout=TIMEOUT_S)
            self.assertNotEqual(worker.returncode, 0)
            self.assertIn("its data were lost", err)
        for shard in range(SHARDS):
            self.assertEqual(cluster.processes[shard].wait(timeout=TIMEOUT_S), 5)
            cluster.start(shard)
        self.assertEqual(self.model(self.workers(cluster, self.folder / "next"), self.folder / "next"), self.undisturbed())


@unittest.skipUnless(etcd_members.is_here() and OPENSSL, "etcd or openssl is not installed (deploy/setup.sh --tests)")
class EtcdWithWebTokens(ShardsByHand):
    """etcd --auth-token jwt: every change of its users makes all tokens old."""

    epochs = 1

    def add_user(self, etcd, name):
        token = etcd.ask(0, "/v3/auth/authenticate", {"name": "root", "password": "r"})["token"]
        request = urllib.request.Request(f"http://127.0.0.1:{etcd.client_ports[0]}/v3/auth/user/add",
                                         json.dumps({"name": name, "password": "x"}).encode(), {"Authorization": token})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            pass

    def test_ShardsKeepTheirTableWhenEtcdGetsAnotherUser(self):
        key, public, password = self.folder / "token.key", self.folder / "token.pem", self.folder / "password"
        openssl("genrsa", "-out", key, "2048")
        openssl("rsa", "-in", key, "-pubout", "-out", public)
        write_password(password, "secret")
        etcd = etcd_members.Members(self.folder, 1, client_flags=["--auth-token", f"jwt,pub-key={public},priv-key={key},sign-method=RS256"])
        self.addCleanup(etcd.end)
        etcd.leader()
        for path, body in MAKE_USERS:
            self.assertIsNotNone(etcd.ask(0, path, body), path)
        cluster = self.cluster(etcd.table(), "--table-user", "millrace", "--table-password-file", password)
        before, after = self.folder / "before", self.folder / "after"
        expected = self.model(self.workers(cluster, before), before)
        self.add_user(etcd, "other")
        self.assertEqual(self.model(self.workers(cluster, after), after), expected)


@unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
class SecureEtcd(unittest.TestCase):
    """TLS with certificates of both sides, and users."""

    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.kept.name)
        for name in ("ca", "other"):
            cls.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                        "-keyout", f"{name}.key", "-out", f"{name}.pem")
        cls.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", "etcd.key",
                    "-out", "etcd.csr")
        (cls.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n", encoding="utf-8")
        cls.openssl("x509", "-req", "-in", "etcd.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names",
                    "-out", "etcd.pem")
        # Once etcd has users, its gateway refuses certificates with a common name.
        for name, subject in (("client", "/O=millrace"), ("named", "/CN=millrace")):
            cls.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject, "-keyout", f"{name}.key",
                        "-out", f"{name}.csr")
            cls.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out",
                        f"{name}.pem")
        cls.etcd = etcd_members.Members(cls.folder, 1, scheme="https", client_flags=[
            "--cert-file", str(cls.folder / "etcd.pem"), "--key-file", str(cls.folder / "etcd.key"), "--client-cert-auth", "--trusted-ca-file",
            str(cls.folder / "ca.pem")])
        for path, body in MAKE_USERS:
            cls.curl(path, body)
        for name, text in (("password", "secret"), ("wrong", "wrong")):
            write_password(cls.folder / name, text)

    @classmethod
    def tearDownClass(cls):
        cls.etcd.end()
        cls.kept.cleanup()

    @classmethod
    def openssl(cls, *arguments):
        subprocess.run(["openssl", *arguments], cwd=cls.folder, check=True, capture_output=True)

    @classmethod
    def curl(cls, path, body):
        deadline = time.monotonic() + etcd_members.WAIT_S
        while True:
            said = subprocess.run(["curl", "-sf", "--cacert", "ca.pem", "--cert", "client.pem", "--key", "client.key",
                                   f"https://127.0.0.1:{cls.etcd.client_ports[0]}{path}", "-d", json.dumps(body)], cwd=cls.folder, capture_output=True, check=False)
            if said.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise AssertionError((path, said))
            time.sleep(0.1)

    def flags(self, **changed):
        flags = {"table": self.etcd.table(), "table-ca": "ca.pem", "table-cert": "client.pem", "table-key": "client.key", "table-user": "millrace",
                 "table-password-file": "password", **changed}
        return [word for name, value in flags.items() if value for word in (f"--{name}", value)]

    def test_AShardStartsWithCertificateAndPassword(self):
        process = subprocess.Popen([PROGRAMS / "millrace-server", "--listen", "127.0.0.1:0", "--json", *self.flags()], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual((process.returncode, json.loads(line)["incarnation"]), (0, 1), err)

    def streams(self):
        """Returns the number of etcd's watches."""
        said = subprocess.run(["curl", "-sf", "--cacert", "ca.pem", "--cert", "client.pem", "--key", "client.key",
                               f"https://127.0.0.1:{self.etcd.client_ports[0]}/metrics"], cwd=self.folder, capture_output=True, text=True, check=True)
        return float(re.search(r"^etcd_debugging_mvcc_watcher_total (\S+)$", said.stdout, re.MULTILINE)[1])

    def test_AShardsWatchStreamHasItsCertificateAndUser(self):
        deadline = time.monotonic() + TIMEOUT_S
        while self.streams() > 0:
            self.assertLess(time.monotonic(), deadline, "a shard of another test is still there")
            time.sleep(0.1)
        process = subprocess.Popen([PROGRAMS / "millrace-server", "--listen", "127.0.0.1:0", "--json", *self.flags(table=self.etcd.table("/millrace/watch"))],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        while self.streams() == 0:
            self.assertLess(time.monotonic(), deadline, "the shard opens no watch stream")
            time.sleep(0.1)

    def test_MetricsHaveTheEndsOfTheFilesCertificates(self):
        """Without SIGHUP: the next connection to etcd reads the file as it is then."""
        now = self.folder / "now.pem"
        shutil.copy(self.folder / "client.pem", now)
        process = subprocess.Popen([PROGRAMS / "millrace-server", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json",
                                    *self.flags(**{"table-cert": "now.pem", "table": self.etcd.table("/millrace/ends")})], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        http = json.loads(process.stdout.readline())["http"]

        def shown():
            with urllib.request.urlopen(f"http://{http}/metrics", timeout=TIMEOUT_S) as answer:
                return exported_ends(answer.read().decode())

        ca, client = end_of(self.folder / "ca.pem"), end_of(now)
        self.assertEqual(shown(), {"table-ca": ca, "table-cert": client})
        self.openssl("x509", "-req", "-in", "client.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-out", "now.pem")
        self.assertGreater(end_of(now), client)
        self.assertEqual(shown(), {"table-ca": ca, "table-cert": end_of(now)})
        for text in ("", "-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"):
            now.write_text(text, encoding="utf-8")
            self.assertEqual(shown(), {"table-ca": ca, "table-cert": 0})
        now.unlink()
        self.assertEqual(shown(), {"table-ca": ca, "table-cert": 0})

    def test_EtcdErrorsNameTheFlagToCheck(self):
        for sentence, code, changed in (("--table-user", 6, {"table-password-file": "wrong"}), ("--table-user", 6, {"table": self.etcd.table("/other")}),
                                        ("--table-ca", 6, {"table-ca": "other.pem"}), ("etcd at", 6, {"table-cert": None, "table-key": None}),
                                        ("common name", 3, {"table-cert": "named.pem", "table-key": "named.key"}),
                                        ("plain text", 2, {"table": "etcd://192.0.2.1:2379", "table-ca": None, "table-cert": None, "table-key": None}),
                                        ("no-such-file", 6, {"table-password-file": "no-such-file"})):
            with self.subTest(changed=changed):
                ended = subprocess.run([PROGRAMS / "millrace-server", "--listen", "127.0.0.1:0", *self.flags(**changed)], cwd=self.folder,
                                       capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
                self.assertEqual(ended.returncode, code, ended.stderr)
                self.assertIn(sentence, ended.stderr)
                self.assertNotIn("secret", ended.stderr)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare") and SYSTEM_AUTHORITIES.is_dir(), "needs root, unshare and a folder of authorities")
    def test_AuthoritiesOfTheSystemAreNotTrusted(self):
        """The system trusts the authority of etcd's certificate, and --table-ca does not have it."""
        system = self.folder / "system"
        system.mkdir()
        shutil.copy(self.folder / "ca.pem", system)
        self.openssl("rehash", "system")
        ended = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --bind system "$0" && exec "$@"', SYSTEM_AUTHORITIES,
                                *millrace("cluster", "status", *self.flags(**{"table-ca": "other.pem"}))], cwd=self.folder, capture_output=True,
                               text=True, timeout=TIMEOUT_S, check=False)
        self.assertIn("check --table-ca", ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
