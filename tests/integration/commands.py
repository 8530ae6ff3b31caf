"""Common parts of the tests of `millrace` commands: starting them, two shards for a class, made-up data.

Takes the folder of the programs off the front of the command line.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAMS = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin").resolve()
SHARED = Path(os.environ.get("MILLRACE_SHARED", Path(__file__).resolve().parents[3] / "shared"))
W8A = SHARED / "data/w8a.svm.gz"
NETLAB = Path(__file__).resolve().parents[2] / "deploy/netlab.sh"
TIMEOUT_S = 240
# Of a healthy switch. Ten time-outs of one worker cause a fallback, and on a busy machine the switch may not run
# meanwhile. tests/worker/switch and tests/sim/switch check under a virtual clock that there are none.
FALLBACKS_MAX = 3


def millrace(*arguments):
    """Returns the command line of `millrace`; if the first argument is "bench", that of `millrace-bench`."""
    program = "millrace"
    if arguments and arguments[0] == "bench":
        program, arguments = "millrace-bench", arguments[1:]
    return [str(PROGRAMS / program), *map(str, arguments)]


def run(*arguments):
    return subprocess.run(millrace(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def start(*arguments):
    return subprocess.Popen(millrace(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def target(link):
    """Returns the target of a link below /proc; "" where its process or its file is gone."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def made_up_rows(count, seed):
    """Rows of 40 features that a linear model separates but for a little noise."""
    draw = random.Random(seed)
    truth = random.Random(1)
    weights = [truth.gauss(0, 1) for _ in range(40)]
    lines = []
    for _ in range(count):
        features = sorted(draw.sample(range(40), 8))
        label = 1 if sum(weights[index] for index in features) + draw.gauss(0, 0.3) > 0 else -1
        lines.append(f"{label:+d} " + " ".join(f"{index + 1}:1" for index in features))
    return "\n".join(lines) + "\n"


def assert_at_switch(test, result):
    """A worker's result: the switch decided, but for a few fallbacks, the last of which may be under way at the end."""
    said = result["switch"]
    test.assertLessEqual(said["fallbacks"], FALLBACKS_MAX, said)
    test.assertTrue(said["at_switch"] or said["fallbacks"] > said["came_back"], said)


class WithServers(unittest.TestCase):
    """Two shards on free ports for all tests of a class; a job's name keeps tests apart."""

    serve_flags = ()  # more, for `millrace serve`

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = open(Path(cls.folder.name) / "serve.log", "w", encoding="utf-8")
        cls.serve = subprocess.Popen(millrace("serve", "--shards", 2, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", *cls.serve_flags),
                                     stdout=subprocess.PIPE, stderr=cls.log, text=True)
        cls.cluster = json.loads(cls.serve.stdout.readline())
        cls.servers = cls.cluster["servers"]

    @classmethod
    def tearDownClass(cls):
        cls.serve.send_signal(signal.SIGTERM)
        code = cls.serve.wait(timeout=240)
        cls.serve.stdout.close()
        cls.log.close()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"millrace serve ended with {code}")

    def path(self, name, text=None):
        path = Path(self.folder.name) / name
        if text is not None:
            path.write_text(text, encoding="utf-8")
        return path

    def flags(self, worker=0, workers=1, job=None):
        return ["--servers", self.servers, "--job", job or self.id().rsplit(".", 1)[-1], "--worker", worker, "--workers", workers]

    def train(self, workers, *arguments, job=None):
        """Runs all workers to their end; the JSON that each printed last."""
        running = [start("train", *self.flags(worker, workers, job), "--json", *arguments) for worker in range(workers)]
        results = []
        for process in running:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            results.append(json.loads(out.strip().split("\n")[-1]))
        return results

    def refused(self, code, sentence, *arguments):
        """A command must end with `code` and one line on stderr that holds `sentence`."""
        ended = run(*arguments)
        self.assertEqual(ended.returncode, code, ended.stderr)
        self.assertIn(sentence, ended.stderr)
        return ended
