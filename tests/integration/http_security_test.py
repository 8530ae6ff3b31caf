#!/usr/bin/env python3
"""HTTP ports with TLS and a token: shards, their page, a switch, a worker and `millrace status`.

    http_security_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Skipped where openssl is not installed, which makes the certificates. The page is opened where Chromium is.
"""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import browser
from certificates import OPENSSL, certify, end_of, exported_ends
from commands import PROGRAMS, TIMEOUT_S, made_up_rows, millrace, run, start
from reserved_ports import ReservedPorts
from shards_by_hand import SHARDS, Cluster

if OPENSSL is None:
    print("http_security_test: skipped: there is no openssl (deploy/setup.sh --tests)")
    sys.exit(77)

# A command in a network of its own, where port 7700 is free.
OWN_NETWORK = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec "$0" "$@"']
TOKEN = "a-token-of-this-test-0123456789"


class Security(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        for name in ("port", "other"):
            certify(cls.folder, name)
        cls.token = cls.folder / "token"
        cls.token.write_text(TOKEN + "\n", encoding="utf-8")
        cls.token.chmod(0o640)
        cls.ca = cls.folder / "port.pem"
        cls.port_flags = ["--http-tls", f"{cls.ca},{cls.folder / 'port.key'}", "--http-token-file", str(cls.token)]
        cls.cluster = Cluster(cls.folder, str(cls.folder / "table.db"), *cls.port_flags, "--http-ca", str(cls.ca))
        cls.addClassCleanup(cls.cluster.end)
        for shard in range(SHARDS):
            cls.cluster.start(shard)
        cls.http = cls.cluster.lines[0]["http"]

    def get(self, path, token=TOKEN, ca=None, http=None):
        """Returns (status, text) of a GET over TLS."""
        request = urllib.request.Request(f"https://{http or self.http}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=ssl.create_default_context(cafile=ca or self.ca)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def test_EveryPathThatShowsNumbersAsksForTheToken(self):
        for path in ("/status", "/metrics", "/cluster", "/history", "/absent"):
            with self.subTest(path):
                for token in (None, "wrong", TOKEN + "x", TOKEN[:-1]):
                    status, text = self.get(path, token)
                    self.assertEqual(status, 401)
                    self.assertIn("asks for its token", text)
        self.assertEqual(self.get("/status")[0], 200)
        self.assertEqual(self.get("/absent")[0], 404)

    def test_ProbesAndThePageNeedNoTokenAndShowNothing(self):
        self.assertEqual(self.get("/healthz", None), (200, "ok\n"))
        status, page = self.get("/", None)
        self.assertEqual(status, 200)
        self.assertIn("<title>Millrace</title>", page)

    def test_NoSecretIsInAnAnswerOrOnACommandLine(self):
        for path in ("/status", "/metrics", "/cluster", "/history", "/"):
            self.assertNotIn(TOKEN, self.get(path)[1])
        for shard, process in enumerate(self.cluster.processes):
            self.assertNotIn(TOKEN, (self.folder / f"shard-{shard}.log").read_text(encoding="utf-8"))
            self.assertNotIn(TOKEN.encode(), Path(f"/proc/{process.pid}/cmdline").read_bytes())

    def test_TheClientsRefuseAPortOfAnotherAuthority(self):
        with self.assertRaises(urllib.error.URLError):
            self.get("/status", ca=self.folder / "other.pem")
        flags = ["--http-token-file", self.token]
        both = [line["http"] for line in self.cluster.lines]
        answer = run("status", *both, "--http-ca", self.ca, *flags)
        self.assertNotEqual(answer.stdout, "")
        self.assertIn(answer.returncode, (0, 9, 10), answer.stderr)  # a job of another test may wait
        for wrong in ([], ["--http-ca", self.folder / "other.pem"]):
            answer = run("status", self.http, *flags, *wrong, "--timeout", "2s")
            self.assertEqual(answer.returncode, 4, answer.stderr)
        answer = run("status", self.http, "--http-ca", self.ca)
        self.assertEqual(answer.returncode, 4)
        self.assertIn("--http-token-file", answer.stdout + answer.stderr)

    def test_TlsHasVersions12And13(self):
        host, port = self.http.split(":")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
                self.assertEqual(secure.version(), version.name.replace("_", "."))

    def test_PlainHttpGetsNoAnswer(self):
        host, port = self.http.split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            try:
                answer = plain.recv(100)
            except ConnectionResetError:
                answer = b""
        self.assertNotIn(b"ok", answer)

    def test_OneSecuredPageShowsAllShards(self):
        def shown():
            return [row.get("status", {}).get("shard") for row in json.loads(self.get("/cluster")[1]).get("shards", [])]

        self.wait_until(lambda: shown() == list(range(SHARDS)))

    @unittest.skipIf(browser.program() is None, "there is no chromium")
    def test_ThePageAsksForTheToken(self):
        chromium = browser.Browser("--ignore-certificate-errors")
        self.addCleanup(chromium.close)
        chromium.open(f"https://{self.http}/")
        chromium.wait_for("document.querySelector('label[for=token]') !== null")
        self.assertIn("asks for a token", chromium.value("document.querySelector('#state').textContent"))
        enter = "document.querySelector('#token').value = {}; document.querySelector('#login button').click()"
        chromium.value(enter.format(json.dumps(TOKEN + "x")))
        chromium.wait_for("document.querySelector('#state').textContent === 'asks for another token'")
        chromium.value(enter.format(json.dumps(TOKEN)))
        chromium.wait_for("document.querySelectorAll('#content table tbody tr').length >= 2")
        self.assertFalse(chromium.value("document.querySelector('#login') !== null"))
        self.assertNotIn(TOKEN, chromium.value("location.href + document.documentElement.outerHTML"))

    def refusal(self, *flags, http="127.0.0.1:0"):
        server = subprocess.run([PROGRAMS / "millrace-server", "--table", self.folder / "refused.db", "--listen", "127.0.0.1:0", "--http", http, *flags],
                                capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(server.returncode, 2, server.stderr)
        return server.stderr

    def test_OtherAddressesThanLoopbackNeedTlsAndAToken(self):
        text = self.refusal(http="0.0.0.0:0")
        for word in ("--http-tls", "--http-token-file", "--http-insecure"):
            self.assertIn(word, text)
        self.assertIn("other machines", self.refusal(*self.port_flags[:2], http="0.0.0.0:0"))
        self.assertIn("leave one of them out", self.refusal(*self.port_flags, "--http-insecure", http="0.0.0.0:0"))
        rows = self.folder / "some.svm"
        rows.write_text(made_up_rows(10, 2), encoding="utf-8")
        (self.folder / "none.json").write_text('{"jobs": []}', encoding="utf-8")
        for command in (["train", "--servers", "127.0.0.1:1", "--train", rows, "--http", "0.0.0.0:0"], ["serve", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"]):
            refused = run(*command)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn("--http-insecure", refused.stderr)
        switch = subprocess.run([PROGRAMS / "millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", self.folder / "none.json", "--http", "0.0.0.0:0"],
                                capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(switch.returncode, 2, switch.stderr)
        self.assertIn("--http-insecure", switch.stderr)

    @unittest.skipIf(subprocess.run(OWN_NETWORK + ["true"], capture_output=True, check=False).returncode != 0, "no network of its own")
    def test_ServeIsOnLoopbackUnlessItsPortsAreProtected(self):
        for flags, host in (([], "127.0.0.1"), (self.port_flags, "192.0.2.1"), (["--http-insecure"], "192.0.2.1")):
            with self.subTest(flags=flags):
                command = OWN_NETWORK + millrace("serve", "--shards", 1, "--listen", "192.0.2.1:0", "--insecure", "--json", *flags)
                serve = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                self.addCleanup(serve.communicate)
                self.addCleanup(serve.kill)
                self.assertEqual(json.loads(serve.stdout.readline())["shards"][0]["http"], f"{host}:7700")
                serve.send_signal(signal.SIGTERM)
                self.assertEqual(serve.wait(timeout=TIMEOUT_S), 0)

    @unittest.skipIf(shutil.which("prometheus") is None, "there is no prometheus")
    def test_PrometheusScrapesWithTheToken(self):
        monitoring = Path(__file__).resolve().parents[2] / "monitoring"
        config = self.folder / "prometheus.yml"
        targets = json.dumps([line["http"] for line in self.cluster.lines])
        config.write_text(f"""
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [{monitoring / "rules/alerts.yml"}]
scrape_configs:
  - job_name: millrace-shards
    scheme: https
    tls_config: {{ca_file: {self.ca}}}
    authorization: {{credentials_file: {self.token}}}
    static_configs: [{{targets: {targets}}}]
""", encoding="utf-8")
        ports = ReservedPorts(1)
        self.addCleanup(ports.close)
        port = ports.numbers[0]
        prometheus = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder / 'tsdb'}",
                                       f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(prometheus.wait)
        self.addCleanup(prometheus.kill)

        def query(expression):
            words = urllib.parse.urlencode({"query": expression})
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}", timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]["result"]

        self.wait_until(lambda: [one["value"][1] for one in query("up")] == ["1"] * SHARDS)
        # The certificates end within two days: the panel shows it, and the alert fires.
        panels = json.loads((monitoring / "dashboards/cluster.json").read_text(encoding="utf-8"))["panels"]
        panel = next(one for one in panels if "certificate" in one["title"])
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*")
            self.wait_until(lambda: len(query(expression)) == SHARDS)
        shown = sorted((line["http"], flag, "critical") for line in self.cluster.lines for flag in ("http-tls", "http-ca"))
        alert = 'ALERTS{alertname="MillraceCertificateExpires", alertstate="firing"}'

        def fired():
            return sorted(tuple(one["metric"][label] for label in ("instance", "certificate", "severity")) for one in query(alert))

        self.wait_until(lambda: fired() == shown)

    def test_FilesThatAllMayReadAreRefused(self):
        for name in ("token", "port.key"):
            copy = self.folder / f"open-{name}"
            copy.write_bytes((self.folder / name).read_bytes())
            copy.chmod(0o644)
        self.assertIn("all users may read", self.refusal("--http-token-file", self.folder / "open-token"))
        self.assertIn("all users may read", self.refusal("--http-tls", f"{self.ca},{self.folder / 'open-port.key'}"))
        self.assertIn("CERT,KEY", self.refusal("--http-tls", self.ca))
        self.assertIn("not the key of the certificate", self.refusal("--http-tls", f"{self.ca},{self.folder / 'other.key'}"))
        short = self.folder / "short"
        short.write_text("short\n", encoding="utf-8")
        short.chmod(0o600)
        text = self.refusal("--http-token-file", short)
        self.assertIn("16 to 512", text)

    def start_server(self, folder):
        """Starts a shard with the folder's now.pem, now.key, token and ca.pem. Returns it and its HTTP address."""
        stderr = open(folder / "log", "w", encoding="utf-8")
        self.addCleanup(stderr.close)
        server = subprocess.Popen([PROGRAMS / "millrace-server", "--table", folder / "table.db", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json",
                                   "--http-tls", f"{folder / 'now.pem'},{folder / 'now.key'}", "--http-token-file", folder / "token",
                                   "--http-ca", folder / "ca.pem"], stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        return server, json.loads(server.stdout.readline())["http"]

    def test_MetricsHaveTheEndsOfTheCertificatesThatAShardUses(self):
        folder = self.folder / "ends"
        folder.mkdir()
        certify(folder, "day", 1)
        certify(folder, "week", 7)
        certify(folder, "ages", 2_912_000)
        day, week, ages = (end_of(folder / f"{name}.pem") for name in ("day", "week", "ages"))
        self.assertLess(abs(day - time.time() - 86_400), TIMEOUT_S)
        self.assertGreater(ages, 253_370_000_000)  # in the year 9999

        def use(port, ca):
            for suffix in ("pem", "key"):
                shutil.copy(folder / f"{port}.{suffix}", folder / f"now.{suffix}")
            (folder / "ca.pem").write_text("".join((folder / f"{one}.pem").read_text(encoding="utf-8") for one in ca), encoding="utf-8")

        shutil.copy(self.token, folder / "token")
        use("day", ["ages", "day", "week"])
        server, http = self.start_server(folder)

        def shown(trusted):
            return exported_ends(self.get("/metrics", TOKEN, folder / trusted, http)[1])

        self.assertEqual(shown("day.pem"), {"http-tls": day, "http-ca": day})
        use("week", ["ages"])
        self.assertEqual(shown("day.pem"), {"http-tls": day, "http-ca": day})
        server.send_signal(signal.SIGHUP)
        self.wait_until(lambda: shown("week.pem") == {"http-tls": week, "http-ca": ages})
        use("day", [])  # ca.pem is empty: both stay as they are in use
        server.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "ca.pem: it has no certificate" in (folder / "log").read_text(encoding="utf-8"))
        self.assertEqual(shown("week.pem"), {"http-tls": week, "http-ca": ages})

    def test_SighupReadsTokenAndCertificateAgain(self):
        folder = self.folder / "reload"
        folder.mkdir()
        for suffix in ("pem", "key"):
            shutil.copy(self.folder / f"port.{suffix}", folder / f"now.{suffix}")
        token, ca, log = folder / "token", folder / "ca.pem", folder / "log"
        shutil.copy(self.token, token)
        shutil.copy(self.ca, ca)
        server, http = self.start_server(folder)
        self.assertEqual(self.get("/status", http=http)[0], 200)
        for suffix in ("pem", "key"):
            shutil.copy(self.folder / f"other.{suffix}", folder / f"now.{suffix}")
        token.write_text("x" * 20 + "\n", encoding="utf-8")
        server.send_signal(signal.SIGHUP)
        self.wait_until(lambda: self.get("/status", "x" * 20, self.folder / "other.pem", http)[0] == 200)
        self.assertEqual(self.get("/status", TOKEN, self.folder / "other.pem", http)[0], 401)
        token.write_text("bad\n", encoding="utf-8")  # refused: the last one stays
        server.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "16 to 512" in log.read_text(encoding="utf-8"))
        ca.write_text("no certificate\n", encoding="utf-8")  # refused with a good token beside it
        token.write_text("y" * 20 + "\n", encoding="utf-8")
        server.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "ca.pem: it has no certificate" in log.read_text(encoding="utf-8"))
        self.assertEqual(self.get("/status", "y" * 20, self.folder / "other.pem", http)[0], 401)
        self.assertEqual(self.get("/status", "x" * 20, self.folder / "other.pem", http)[0], 200)

    def wait_until(self, condition):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if condition():
                    return
            except urllib.error.URLError:
                pass
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

    def test_AWorkerAndASwitchProtectTheirPorts(self):
        rows = self.folder / "rows.svm"
        rows.write_text(made_up_rows(100, 5), encoding="utf-8")
        worker = start("train", "--servers", self.cluster.servers(), "--job", "guarded", "--worker", 0, "--workers", 1, "--train", rows, "--epochs", 1_000_000,
                       "--http", "127.0.0.1:0", *self.port_flags)
        self.addCleanup(worker.communicate)
        self.addCleanup(worker.kill)
        port = next(line.split("status: port ")[1].strip() for line in worker.stdout if "status: port " in line)
        (self.folder / "jobs.json").write_text('{"jobs": []}', encoding="utf-8")
        switch = subprocess.Popen([PROGRAMS / "millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", self.folder / "jobs.json", "--http", "127.0.0.1:0",
                                   "--json", *self.port_flags], stdout=subprocess.PIPE, text=True)
        self.addCleanup(switch.communicate)
        self.addCleanup(switch.kill)
        for http in (f"127.0.0.1:{port}", json.loads(switch.stdout.readline())["http"]):
            self.assertEqual(self.get("/status", None, http=http)[0], 401)
            self.assertEqual(self.get("/status", http=http)[0], 200)


if __name__ == "__main__":
    unittest.main()
