"""Common parts of the binding's tests: two shards for a class, sessions of a job in threads of this process.

Takes the folder of the programs and the folder of the package off the front of the command line.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from in_threads import in_threads

ROOT = Path(__file__).resolve().parents[3]


def _folder(default):
    given = sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else ROOT / default
    return Path(given).resolve()


PROGRAMS = _folder("build/dev/bin")
PACKAGE = _folder("build/dev/python")
SHARDS = 2
TIMEOUT_S = 60
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}

sys.dont_write_bytecode = True
sys.path.insert(0, str(PACKAGE))
if importlib.util.find_spec("numpy") is None:
    print("skipped: this Python has no NumPy (Debian's package python3-numpy)", file=sys.stderr)
    sys.exit(77)

import millrace  # noqa: E402


class WithShards(unittest.TestCase):
    """Two shards on free ports for all tests of a class; a job has the name of its test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = open(Path(cls.folder.name) / "shards.log", "w", encoding="utf-8")
        cls.processes = []
        for shard in range(SHARDS):
            command = [PROGRAMS / "millrace-server", "--shard", shard, "--shards", SHARDS, "--listen", "127.0.0.1:0",
                       "--table", Path(cls.folder.name) / "table.db", "--drain", "0s", "--json"]
            cls.processes.append(subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=cls.log, text=True))
        cls.addresses = [json.loads(process.stdout.readline())["address"] for process in cls.processes]

    @classmethod
    def tearDownClass(cls):
        for process in cls.processes:
            process.terminate()
        for process in cls.processes:
            process.wait(timeout=TIMEOUT_S)
            process.stdout.close()
        cls.log.close()
        cls.folder.cleanup()

    def path(self, name):
        return Path(self.folder.name) / name

    def job(self, workers=1, **options):
        return millrace.JobConfig(**{"name": self.id().rsplit(".", 1)[-1], "workers": workers, **options})

    def me(self, worker=0, **options):
        return millrace.WorkerConfig(worker=worker, shards=self.addresses, **options)

    def connect(self, tensors, workers=1, **options):
        """Returns the sessions of all workers, which close with the test. tensors: a list, or a function of the worker."""
        sessions = [None] * workers
        job = self.job(workers, **options)

        def join(worker):
            chosen = tensors(worker) if callable(tensors) else tensors
            sessions[worker] = millrace.Session(job, self.me(worker), chosen)
            self.addCleanup(sessions[worker].close)

        in_threads(join, workers)
        self.assertNotIn(None, sessions)
        return sessions

    def refused(self, code, sentence, call, *arguments, **named):
        """The call must raise a JobError with that code and that part of its sentence."""
        with self.assertRaises(millrace.JobError) as raised:
            call(*arguments, **named)
        self.assertEqual(raised.exception.code, code, raised.exception)
        self.assertIn(sentence, str(raised.exception))
        return raised.exception


def in_python(program, *arguments, **options):
    """Starts a Python program of its own with the package."""
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=ENVIRONMENT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
