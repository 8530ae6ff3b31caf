#!/usr/bin/env python3
"""The page of a real cluster with a job, in Chromium: rows, labels for screen readers, the keyboard, narrow and dark screens.

    page_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Skipped where Chromium is not installed. MILLRACE_SCREENSHOTS=FOLDER keeps a picture of each view.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

import browser
from commands import PROGRAMS, made_up_rows, start
from reserved_ports import ReservedPorts
from shards_by_hand import SHARDS, WORKERS, Cluster

if browser.program() is None:
    print("page_test: skipped: there is no chromium (deploy/setup.sh --tests)")
    sys.exit(77)

# A name that is markup, and long: it must stay text, and break on a phone.
JOB = "<img src=x onerror=document.title='broken'>&quot;" + "job" * 40
NARROW = 360
PICTURES = os.environ.get("MILLRACE_SCREENSHOTS")


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        ports = ReservedPorts(WORKERS)
        cls.addClassCleanup(ports.close)
        cls.worker_ports = ports.numbers
        cls.workers = [f"127.0.0.1:{port}" for port in cls.worker_ports]
        cls.cluster = Cluster(folder.name, str(Path(folder.name) / "table.db"), "--page-workers", ",".join(cls.workers))
        cls.addClassCleanup(cls.cluster.end)
        for shard in range(SHARDS):
            cls.cluster.start(shard)
        cls.cluster.start_spare()
        rows = Path(folder.name) / "rows.svm"
        # Far apart, so that each shard holds a range of the tensor.
        rows.write_text(re.sub(r"(\d+):", lambda index: f"{int(index[1]) * 700}:", made_up_rows(400, 5)), encoding="utf-8")
        for worker in range(WORKERS):
            process = start("train", "--servers", cls.cluster.servers(), "--job", JOB, "--worker", worker, "--workers", WORKERS, "--train", rows, "--batch", 2,
                            "--epochs", 1_000_000, "--lr", 0.1, "--http", cls.workers[worker])
            cls.addClassCleanup(cls.end, process)
        cls.cluster.wait_for_steps(5)
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.close)

    @staticmethod
    def end(process):
        process.kill()
        process.communicate(timeout=240)

    def setUp(self):
        self.browser.errors.clear()
        self.browser.resize(1280, 900)

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])

    def url(self, shard=0, job=None):
        return f"http://{self.cluster.lines[shard]['http']}/" + ("#" + urllib.parse.urlencode({"job": job}, quote_via=urllib.parse.quote) if job else "")

    def json(self, path):
        with urllib.request.urlopen(self.url() + path, timeout=120) as answer:
            return json.load(answer)

    def open(self, url, until):
        self.browser.open("about:blank")  # another fragment alone would load nothing
        self.browser.open(url)
        self.browser.wait_for(until)

    def open_cluster(self):
        self.open(self.url(), "document.querySelectorAll('#content table').length >= 3")

    def open_job(self):
        self.open(self.url(1, JOB), f"[...document.querySelectorAll('td')].filter(cell => cell.textContent.includes('blocked')).length === {WORKERS}")

    def rows(self, caption):
        """Returns the rows of a table as {column: text}."""
        return self.browser.value("""(() => {
          const table = [...document.querySelectorAll('table')].find(one => one.caption.textContent === %s);
          const names = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
          return [...table.tBodies[0].rows].map(row => Object.fromEntries([...row.cells].map((cell, at) => [names[at], cell.textContent])));
        })()""" % json.dumps(caption))

    def keep_picture(self, name):
        if PICTURES:
            self.browser.screenshot(Path(PICTURES) / f"{name}.png")

    def test_ClusterShowsAllShardsOfTheTableAndTheJob(self):
        self.open_cluster()
        shards = self.rows("Shards of the cluster")
        self.assertEqual([(row["Shard"], row["State"], row["Page"]) for row in shards],
                         [(str(shard), "serves", self.cluster.lines[shard]["http"]) for shard in range(SHARDS)])
        self.assertEqual(len(self.rows("Spares that wait")), 1)
        self.browser.wait_for("[...document.querySelectorAll('td[data-label=\"Steps per second\"]')].some(cell => parseFloat(cell.textContent) > 0)")
        job, = self.rows("Jobs of the cluster")
        self.assertEqual((job["Job"], job["State"], job["Workers"]), (JOB, "runs", f"{WORKERS} of {WORKERS}"))
        self.assertRegex(job["Dense / sent"], r"^[\d.,]+×$")
        self.assertEqual(self.browser.value("document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.browser.value("document.querySelector('#state').textContent"), "healthy")

    def test_JobShowsEachWorkerWithItsOwnNumbers(self):
        self.open_job()
        rows = self.rows("Workers of the job")
        self.assertEqual([row["Worker"] for row in rows], [str(worker) for worker in range(WORKERS)])
        for row in rows:
            self.assertEqual(row["State"], "in step")
            self.assertRegex(row["Lag"], r"^[\d,]+ steps?$")
            self.assertRegex(row["Steps per second"], r"^[\d.,]+$")
            self.assertRegex(row["Time"], r"^blocked \d+ %, exchange of a bucket [\d.]+ m?s$")
            times = re.findall(r"(\w+) ([\d.,]+) (?:µs|m?s)(?:, |$)", row["Mean of a step"])
            self.assertEqual([phase for phase, _ in times], ["select", "encode", "wait", "apply"], row)
            self.assertGreater(min(float(time.replace(",", "")) for _, time in times), 0, row)
            self.assertRegex(row["Dense / sent"], r"^[\d.,]+×$")
            self.assertRegex(row["Residual"], r"^[\d.,]+$")
        # The history of the shard, not of the browser.
        self.assertGreaterEqual(max(len(job["samples"]) for job in self.json("history")["jobs"]), 2)
        self.browser.wait_for("document.querySelectorAll('figure polyline').length === 4")
        self.assertEqual(self.browser.value("document.querySelector('h1').textContent"), "Job " + JOB)

    def test_ScreenReadersMeetTablesChartsAndAState(self):
        self.open_job()
        spoken = self.browser.spoken()
        self.assertIn(("table", "Workers of the job"), spoken)
        self.assertEqual(sum(role == "rowheader" for role, _ in spoken), WORKERS)
        self.assertIn(("columnheader", "Lag"), spoken)
        self.assertIn("status", [role for role, _ in spoken])
        self.assertIn(("navigation", "Breadcrumb"), spoken)
        charts = [name for role, name in spoken if role in ("image", "img")]
        self.assertEqual(len(charts), 4, spoken)
        self.assertTrue(all(", last ten minutes: now " in name or "no values yet" in name for name in charts), charts)
        nameless = self.browser.value("[...document.querySelectorAll('a, button, summary, [role=meter]')].filter(one => "
                                      "!(one.textContent || one.getAttribute('aria-label') || '').trim()).length")
        self.assertEqual(nameless, 0)
        self.browser.resize(NARROW, 740)  # rows become boxes, and stay rows for a reader
        self.assertIn(("table", "Workers of the job"), self.browser.spoken())
        self.assertIn(("columnheader", "Lag"), self.browser.spoken())

    def test_KeyboardReachesEverythingInOrderAndFocusSurvivesPolls(self):
        self.open_cluster()
        met = []
        for _ in range(2 + SHARDS + 4):
            self.browser.press("Tab")
            met.append(self.browser.value("document.activeElement.textContent"))
        self.assertEqual(met, ["Skip to the content", JOB, *(f"All values of shard {shard}" for shard in range(SHARDS)), "metrics", "health", "readiness", "status as JSON"])
        self.browser.value("document.querySelector('#content a').focus()")
        self.browser.value("window.kept = document.activeElement")
        before = self.browser.value("document.querySelector('#age').textContent")
        self.browser.wait_for(f"document.querySelector('#age').textContent !== {json.dumps(before)}")
        self.assertTrue(self.browser.value("document.activeElement === window.kept"))
        self.browser.press("Enter")
        self.browser.wait_for("document.querySelector('nav') !== null")
        self.assertEqual(self.rows("Workers of the job")[0]["Worker"], "0")

    def test_DetailsOfAShardOpenAndStayOpen(self):
        self.open_cluster()
        self.browser.value("document.querySelector('#shard-1').open = true")
        self.browser.wait_for("document.querySelector('#shard-1').textContent.includes('Steps decided')")
        before = self.browser.value("document.querySelector('#age').textContent")
        self.browser.wait_for(f"document.querySelector('#age').textContent !== {json.dumps(before)}")
        self.assertTrue(self.browser.value("document.querySelector('#shard-1').open"))

    def test_APhoneScrollsDownAlone(self):
        for name, open_view in (("cluster", self.open_cluster), ("job", self.open_job)):
            open_view()
            for width, dark in ((1280, False), (1280, True), (NARROW, False), (NARROW, True)):
                with self.subTest(name, width=width, dark=dark):
                    self.browser.resize(width, 800, dark)
                    self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), width)
                    beyond = "[...document.querySelectorAll('main *')].filter(one => !one.closest('caption, thead, svg, .skip') && one.getBoundingClientRect().right > innerWidth + 1)"
                    if width == NARROW:
                        self.assertEqual(self.browser.value(f"{beyond}.map(one => one.outerHTML.slice(0, 200))"), [])
                    light = self.browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
                    self.assertEqual(light, not dark)
                    self.keep_picture(f"{name}-{width}-{'dark' if dark else 'light'}")

    def test_AWorkersPageShowsItsStatus(self):
        self.open(f"http://{self.workers[0]}/", "document.querySelectorAll('.card').length > 5")
        self.assertIn("Residual norm", self.browser.value("document.querySelector('#content').innerText"))


class LostShards(unittest.TestCase):
    def test_AGoneShardIsNamedByTheOthersPage(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(folder, str(Path(folder) / "table.db"))
            for shard in range(SHARDS):
                cluster.start(shard)
            cluster.kill(1)
            said = {"collecting": True}
            while said.get("collecting"):
                with urllib.request.urlopen(f"http://{cluster.lines[0]['http']}/cluster", timeout=120) as answer:
                    said = json.load(answer)
            cluster.end()
        self.assertEqual([row["state"] for row in said["shards"]], ["serving", "gone"])
        self.assertEqual(said["shards"][0]["status"]["shard"], 0)
        self.assertNotIn("status", said["shards"][1])


if __name__ == "__main__":
    unittest.main()
