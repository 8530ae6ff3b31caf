"""Two shards, and a switch on request, whose HTTP ports a test reads. Skips nothing by itself."""

import json
import subprocess
import tempfile
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, WithServers, made_up_rows

SWITCH_JOB = 23
WORKERS = 2


class MonitoredCluster(WithServers):
    keys = tempfile.TemporaryDirectory()
    key = Path(keys.name) / f"{SWITCH_JOB}.key"
    serve_flags = ("--job-keys", keys.name)

    @classmethod
    def setUpClass(cls):
        cls.key.write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
        cls.key.chmod(0o600)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.keys.cleanup()

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def rows(self):
        return self.path("rows.svm", made_up_rows(600, 5))

    def line_of(self, process, words):
        """Returns the text after `words` in the output of the process."""
        for line in process.stdout:
            if words in line:
                return line.split(words)[1].strip()
        self.fail(f"ended without '{words}': {process.stderr.read()}")

    def start_switch(self):
        """Returns the start line of a switch with the jobs `train` and `rack`, of role combine."""
        described = {"key_file": str(self.key), "workers": WORKERS, "window_indices": 64, "slots": 1}
        rack = {"name": "rack", "job": SWITCH_JOB + 1, "role": "combine", "rack": [0, 1], "rack_number": 0, "shard": "127.0.0.1:9"}
        jobs = self.path("jobs.json", json.dumps({"jobs": [{"name": "train", "job": SWITCH_JOB, **described}, described | rack]}))
        switch = subprocess.Popen([PROGRAMS / "millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", jobs, "--http", "127.0.0.1:0",
                                   "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, switch)
        self.switch = switch
        return json.loads(switch.stdout.readline())

    def switch_flags(self, switch):
        """Returns the flags of `millrace train` for the job `train` of start_switch()."""
        return ["--path", "switch", "--switch-address", switch["addresses"][0], "--switch-job", SWITCH_JOB, "--switch-key", self.key,
                "--grid", "64:-12"]
