#!/usr/bin/env python3
"""The policy with real shards and jobs: the jobs that a named token sees and may end, and the quotas of a key.

    rights_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import re
import signal
import socket
import sys
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import browser
from commands import TIMEOUT_S, run, start
from shards_by_hand import SHARDS, ShardsByHand

TOKENS = {name: f"a-token-of-{name or 'the port'}-0123456789".replace(" ", "-") for name in ("", "eye", "ops")}
RULES = [{"keys": ["worker"], "jobs": ["*"], "may": ["create"]}, {"keys": ["eye"], "jobs": ["ads"], "may": ["observe"]},
         {"keys": ["ops"], "jobs": ["ads", "a/b *"], "may": ["observe", "end"]}]


class Rights(ShardsByHand):
    def setUp(self):
        super().setUp()
        self.keys = self.folder / "keys"
        made = run("keys", "new", "cluster", "worker", "greedy", "--folder", self.keys)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.write_rules(RULES)
        self.write("tokens", "".join(f"{name} {token}".strip() + "\n" for name, token in TOKENS.items()))
        for name, token in TOKENS.items():
            self.write(f"token-{name}", token + "\n")
        self.shards = self.cluster(self.folder / "table.db", "--key", self.keys / "cluster.key", "--allowed-keys", self.keys, "--policy", self.folder / "policy",
                                   "--http-token-file", self.folder / "tokens", "--audit-log", self.folder / "audit", "--abandon-after", "10s")
        self.jobs = {job: self.train(job) for job in ("ads", "news")}
        self.steps_follow("ads")
        self.steps_follow("news")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o640)

    def write_rules(self, rules):
        self.write("policy", json.dumps({"rules": rules}))

    def reload(self, shard=0):
        self.shards.processes[shard].send_signal(signal.SIGHUP)

    def train(self, job, *flags, key="worker"):
        worker = start("train", "--servers", self.shards.servers(), "--job", job, "--worker", 0, "--workers", 1, "--train", self.folder / "rows.svm", "--batch", 2,
                       "--epochs", 1_000_000, "--compute-time", "5ms", "--key", self.keys / f"{key}.key", "--server-key", self.keys / "cluster.pub", *flags)

        def end():
            worker.kill()
            worker.communicate(timeout=TIMEOUT_S)

        self.addCleanup(end)
        return worker

    def ask(self, path, token, method="GET", body=None, shard=0):
        """Returns (status, text) of a request with the token of that name; None: without one."""
        headers = {} if token is None else {"Authorization": f"Bearer {TOKENS[token]}"}
        request = urllib.request.Request(f"http://{self.shards.lines[shard]['http']}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def end_job(self, job, token, body=None):
        return self.ask(f"/jobs/{urllib.parse.quote(job, safe='')}/end", token, "POST", body)

    def reports(self, token, shard=0):
        """Returns the reports of jobs in /status by their names."""
        status, text = self.ask("/status", token, shard=shard)
        self.assertEqual(status, 200, text)
        return {job["name"]: job for job in json.loads(text)["jobs"]}

    def steps_follow(self, job):
        """Waits until the shards decide further steps of the job."""
        for shard in range(SHARDS):
            begin = self.reports("", shard).get(job, {"steps_decided": 0})["steps_decided"]
            self.shards.wait_for(lambda: self.reports("", shard).get(job, {"steps_decided": 0})["steps_decided"] > begin + 2, f"job {job} does not move")

    def audit(self, event):
        lines = [json.loads(line) for line in (self.folder / "audit").read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["event"] == event]

    def test_AnObserverSeesTheJobsOfItsRule(self):
        for shard in range(SHARDS):
            self.assertEqual(set(self.reports("", shard)), {"ads", "news"})
            self.assertEqual(set(self.reports("eye", shard)), {"ads"})
        for token, jobs in (("", {"ads", "news"}), ("eye", {"ads"})):
            def shown():
                rows = json.loads(self.ask("/cluster", token)[1]).get("shards", [{}])
                return {job["name"] for job in rows[0].get("status", {}).get("jobs", [])}  # without TLS it has no answer of shard 1

            self.shards.wait_for(lambda: shown() == jobs, f"/cluster has other jobs for '{token}'")
        numbers = {name: job["job"] for name, job in self.reports("").items()}
        self.shards.wait_for(lambda: len(json.loads(self.ask("/history", "")[1])["jobs"]) == 2, "/history has no samples")
        self.assertEqual([job["job"] for job in json.loads(self.ask("/history", "eye")[1])["jobs"]], [numbers["ads"]])
        for path in ("/status", "/cluster", "/history"):
            self.assertNotIn("news", self.ask(path, "eye")[1], path)
            self.assertEqual(self.ask(path, None)[0], 401)
            self.assertEqual(self.ask(path, "eye", "POST", b"")[0], 405)
        for path in ("/metrics", "/trace"):
            self.assertEqual(self.ask(path, "")[0], 200)
            status, text = self.ask(path, "eye")
            self.assertEqual(status, 403)
            self.assertIn("token 'eye' lacks the right to observe the whole cluster", text)
        self.assertEqual(self.ask("/path?shard=1", "eye")[0], 403)
        self.assertEqual(self.ask("/absent", "eye")[0], 404)
        seen = run("status", *[line["http"] for line in self.shards.lines], "--http-token-file", self.folder / "token-eye", "--json")
        self.assertEqual([job["name"] for job in json.loads(seen.stdout)["jobs"]], ["ads"], seen.stderr)
        # A reload gives and takes: the rules, and then the token itself.
        self.write_rules([*RULES[:1], {"keys": ["eye"], "jobs": ["news"], "may": ["observe"]}])
        self.reload()
        self.shards.wait_for(lambda: set(self.reports("eye")) == {"news"}, "the policy is not read again")
        self.write("tokens", f"{TOKENS['']}\neye short\n")
        self.reload()
        log = self.folder / "shard-0.log"
        self.shards.wait_for(lambda: "line 2 is not NAME TOKEN" in log.read_text(encoding="utf-8"), "no line about the tokens")
        self.assertEqual(set(self.reports("eye")), {"news"})
        self.write("tokens", f"{TOKENS['']}\n")
        self.reload()
        self.shards.wait_for(lambda: self.ask("/status", "eye")[0] == 401, "the tokens are not read again")
        for name, token in TOKENS.items():
            self.assertNotIn(token, log.read_text(encoding="utf-8"), name)

    @unittest.skipIf(browser.program() is None, "there is no chromium")
    def test_ThePageShowsAReaderItsJobs(self):
        chromium = browser.Browser()
        self.addCleanup(chromium.close)
        chromium.open(f"http://{self.shards.lines[0]['http']}/")
        chromium.wait_for("document.querySelector('label[for=token]') !== null")
        chromium.value(f"document.querySelector('#token').value = {json.dumps(TOKENS['eye'])}; document.querySelector('#login button').click()")
        chromium.wait_for("document.querySelector('a[href=\"#job=ads\"]') !== null")
        self.assertNotIn("news", chromium.value("document.querySelector('#content').textContent"))

    def refused(self, status, sentence, answer):
        self.assertEqual(answer[0], status, answer[1])
        self.assertIn(sentence, answer[1])

    def test_OnlyATokenWithTheRightEndsAJob(self):
        self.refused(403, "token 'eye' lacks the right to end job 'ads'", self.end_job("ads", "eye"))
        self.refused(403, "token 'ops' lacks the right to end job 'news'", self.end_job("news", "ops"))
        self.refused(403, "only a named token has the right to end a job", self.end_job("ads", ""))
        self.refused(401, "asks for its token", self.end_job("ads", None))
        command = ["cluster", "end", "ads", "--http", self.shards.lines[0]["http"], "--reason", "wrong data", "--http-token-file"]
        self.assertEqual(run(*command, self.folder / "token-eye").returncode, 5)
        self.assertEqual(run(*command[:-1]).returncode, 5)
        self.assertEqual(run(*command, self.folder / "token-ops", "--table", self.folder / "table.db").returncode, 2)
        self.steps_follow("ads")
        # Hostile requests of a token that has the right.
        self.refused(404, "no job 'a/b *' is open", self.end_job("a/b *", "ops", b"why"))
        self.refused(405, "only POST", self.ask("/jobs/ads/end", "ops"))
        self.refused(405, "only POST", self.ask("/jobs/ads/end", "ops", "DELETE"))
        for path in ("/jobs/", "/jobs/ads", "/jobs/ads/end/", "/jobs/ads%/end", "/jobs/%61ds%00/end", f"/jobs/{'a' * 300}/end", "/jobs/../ads/end"):
            self.refused(404, "no such page", self.ask(path, "ops", "POST", b""))
        self.assertEqual(self.ask(f"/jobs/{'a' * 9000}/end", "ops", "POST", b"")[0], 414)
        for body in (b'{"reason": ', b"{}", b'{"reason": 7}', b'{"reason": "a", "job": "news"}', b'{"reason": "\xff"}'):
            self.refused(400, "JSON of the form", self.end_job("ads", "ops", body))
        self.refused(413, "more than 4096 bytes", self.raw("Content-Length: 1000000000000"))
        self.assertEqual(self.raw("Transfer-Encoding: chunked")[0], 411)
        self.assertEqual(self.raw("Content-Length: -1")[0], 400)
        self.steps_follow("ads")
        ended = run(*command, self.folder / "token-ops", "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(json.loads(ended.stdout), {"ended": "ads"})
        _, errors = self.jobs["ads"].communicate(timeout=TIMEOUT_S)
        self.assertEqual(self.jobs["ads"].returncode, 8, errors)
        self.assertIn("token 'ops' ended the job: wrong data", errors)
        self.assertEqual(run(*command, self.folder / "token-ops").returncode, 2)
        self.steps_follow("news")
        self.assertIsNone(self.jobs["news"].poll())
        self.shards.wait_for(lambda: self.audit("order"), "the audit log has no order")
        order, = self.audit("order")
        self.assertEqual([order[name] for name in ("key", "address", "job", "sentence")],
                         ["ops", "127.0.0.1", "ads", "token 'ops' ended the job: wrong data"])
        self.shards.wait_for(lambda: len(self.audit("end")) == SHARDS, "a shard has no line about the end")
        self.assertTrue(all("token 'ops' ended the job" in line["sentence"] for line in self.audit("end")))
        self.assertEqual({(line["key"], line["job"]) for line in self.audit("refuse") if line["key"] in TOKENS}, {("eye", "ads"), ("ops", "news")})

    def test_AReloadTakesTheRightToEndAway(self):
        self.write_rules([*RULES[:1], {"keys": ["ops"], "jobs": ["ads"], "may": ["observe"]}])
        self.reload()
        self.shards.wait_for(lambda: re.search("reload: the policy has 2 rules", (self.folder / "shard-0.log").read_text(encoding="utf-8")), "no reload")
        self.refused(403, "lacks the right to end", self.end_job("ads", "ops", b"too late"))
        self.steps_follow("ads")
        self.write_rules([*RULES[:1], {"keys": ["ops"], "jobs": ["news"], "may": ["end"]}])
        self.reload()
        self.shards.wait_for(lambda: self.end_job("news", "ops", b' {"reason": "night"} ')[0] == 200, "the new right does not hold")
        _, errors = self.jobs["news"].communicate(timeout=TIMEOUT_S)
        self.assertIn("token 'ops' ended the job: night", errors)
        self.assertEqual(self.reports("ops"), {}, "it may end a job, and observe none")

    def test_QuotasHoldForTheNextJobOfAKey(self):
        """The key has two open jobs, which go on."""
        for at, (quota, sentence) in enumerate((({"jobs_max": 2}, "key 'worker' has 2 jobs open at this shard: its quota is 2"),
                                                ({"entries_max": 1}, "entries, over the quota of key 'worker': 1"))):
            self.write_rules([RULES[0] | quota])
            for shard in range(SHARDS):
                self.reload(shard)
                log = self.folder / f"shard-{shard}.log"
                self.shards.wait_for(lambda log=log, at=at: log.read_text(encoding="utf-8").count("the policy has 1 rules") == at + 1, "no reload")
            refused = self.train(f"third{at}")  # the audit log has equal refusals once
            _, errors = refused.communicate(timeout=TIMEOUT_S)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(sentence, errors)
            self.shards.wait_for(lambda sentence=sentence: any(sentence in line["sentence"] for line in self.audit("refuse")), "no line in the audit log")
        for job in self.jobs:
            self.steps_follow(job)

    def read_greedy(self, quota):
        """Lets all shards read a policy in which key `greedy` has this quota."""
        logs = [self.folder / f"shard-{shard}.log" for shard in range(SHARDS)]
        before = [log.read_text(encoding="utf-8").count("the policy has 2 rules") for log in logs]
        self.write_rules([RULES[0], {"keys": ["greedy"], "jobs": ["*"], "may": ["create"]} | quota])
        for shard, log in enumerate(logs):
            self.reload(shard)
            self.shards.wait_for(lambda log=log, count=before[shard]: log.read_text(encoding="utf-8").count("the policy has 2 rules") > count, "no reload")

    def contribution_bytes(self, job):
        return self.reports("")[job]["members"][0]["contribution_bytes"]

    def logs(self):
        return [(self.folder / f"shard-{shard}.log").read_text(encoding="utf-8") for shard in range(SHARDS)]

    def test_AJobHasNoMoreMemoryThanItsCreatorsQuota(self):
        """It takes no step, and says why; after a while it ends. The other jobs go on."""
        self.read_greedy({"job_memory": 100})
        worker = self.train("greedy", key="greedy")
        self.shards.wait_for(lambda: any('code="unavailable"' in self.ask("/metrics", "", shard=shard)[1] for shard in range(SHARDS)), "nothing is refused")
        self.assertEqual({self.reports("", shard)["greedy"]["memory_bytes_max"] for shard in range(SHARDS)}, {100})
        for job in self.jobs:
            self.steps_follow(job)
        self.assertEqual(self.reports("")["greedy"]["steps_decided"], 0)
        _, errors = worker.communicate(timeout=TIMEOUT_S)
        self.assertNotEqual(worker.returncode, 0)
        self.assertRegex(errors, r"the contributions of one step do not fit this shard's memory .* --job-memory-bytes-max \(100\)")
        # Without the quota its next job trains.
        self.read_greedy({})
        self.train("greedy again", key="greedy")
        self.steps_follow("greedy again")

    def test_AKeySendsNoMoreThanItsRate(self):
        """Shards refuse contributions of a key in debt, and end the session of a worker whose heartbeats flood. Others go on."""
        self.read_greedy({"rate": "16kbit"})
        self.train("greedy", key="greedy")
        for shard in range(SHARDS):
            self.shards.wait_for(lambda shard=shard: 'code="over_rate"' in self.ask("/metrics", "", shard=shard)[1], "nothing is refused")
        begin, first = time.monotonic(), self.contribution_bytes("greedy")
        for job in self.jobs:
            self.steps_follow(job)
        self.assertFalse(any("over_rate" in log for log in self.logs()), "it was only to wait")
        self.steps_follow("greedy")
        more = self.contribution_bytes("greedy") - first
        # A second of the rate may have been left at the beginning, and the last message may be over it.
        self.assertLess(more, 2_000 * (time.monotonic() - begin + 1) + 1_000, "the rate bounds nothing")
        self.read_greedy({"rate": "800bit"})
        heartbeats = self.train("heartbeats", "--heartbeat", "10ms", key="greedy")  # these alone are over the rate
        _, errors = heartbeats.communicate(timeout=TIMEOUT_S)
        self.assertEqual(heartbeats.returncode, 5, errors)
        self.assertRegex(errors, r"shard \d+ .*refuses: key 'greedy' is over its rate, and has sent more than 64 times its debt")
        for job in self.jobs:
            self.steps_follow(job)
        self.read_greedy({})
        self.train("greedy again", key="greedy")
        self.steps_follow("greedy again")

    def raw(self, header):
        """Sends a POST that ends job ads, with a header and no body. Returns (status, text)."""
        host, port = self.shards.lines[0]["http"].split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(f"POST /jobs/ads/end HTTP/1.1\r\nAuthorization: Bearer {TOKENS['ops']}\r\n{header}\r\n\r\n".encode())
            answer = b""
            while received := connection.recv(4096):
                answer += received
        return int(answer.split()[1]), answer.decode()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
