#!/usr/bin/env python3
"""The programs of worker/examples, which worker/README.md shows, against real shards and a real switch.

    examples_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import random
import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, WithServers
from peers_example import check_example_of_peers

WORKERS = 2
SWITCH_JOB = 7


class Examples(WithServers):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)

    def shards(self):
        return [f"tcp://{server}" for server in self.servers.split(",")]

    def start(self, example, worker, *arguments):
        command = [PROGRAMS / f"millrace_example_{example}", worker, WORKERS, *arguments, *self.shards()]
        process = subprocess.Popen([*map(str, command)], cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def outputs(self, processes):
        """Returns the output of each process; all must end with 0."""
        texts = []
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            texts.append(out)
        return texts

    def run_all(self, example, *arguments):
        return self.outputs([self.start(example, worker, *arguments) for worker in range(WORKERS)])

    def largest_errors(self, text):
        errors = [float(error) for error in re.findall(r"largest error ([\d.]+)", text)]
        self.assertTrue(errors, text)
        return errors

    def test_PushDense_ReachesTheTargetAndSavesBytes(self):
        for text in self.run_all("push_dense"):
            self.assertLess(max(self.largest_errors(text)), 1e-3, text)
            sent, dense = map(int, re.search(r"sent (\d+) bytes instead of (\d+)", text).groups())
            self.assertLess(sent, dense)

    def test_PushSparse_SumsTheEntriesOfAllWorkers(self):
        own = "".join(f"{worker}: 5\n" for worker in range(WORKERS))
        for text in self.run_all("push_sparse"):
            self.assertEqual(text, own + f"1000000000: {10 * WORKERS}\n")

    def test_SeveralTensors_ReachTheirTargets(self):
        for text in self.run_all("several_tensors"):
            self.assertEqual(len(self.largest_errors(text)), 3, text)
            self.assertLess(max(self.largest_errors(text)), 0.05, text)

    def test_Store_HoldsTheWeights(self):
        for text in self.run_all("store"):
            self.assertEqual(text, "weights 1.000000 1.000000 1.000000\n")

    def test_Restart_AKilledWorkerContinuesFromItsSavedState(self):
        workers = [self.start("restart", worker) for worker in range(WORKERS)]
        line = ""
        while not line.startswith("saved at step 50"):
            line = workers[1].stdout.readline()
            self.assertTrue(line, "the worker ended before step 50")
        workers[1].kill()
        workers[1].communicate()
        workers[1] = self.start("restart", 1)
        texts = self.outputs(workers)
        begun = re.search(r"begins at step (\d+)", texts[1])
        self.assertGreaterEqual(int(begun.group(1)), 50, texts[1])
        last = {text.strip().split("\n")[-1] for text in texts}
        self.assertEqual(len(last), 1, "the workers' weights differ")
        self.assertIn("missing workers 0", last.pop())
        left = [path.name for path in self.work.iterdir() if ".new-" not in path.name]  # of a save that the kill interrupted
        self.assertEqual(left, [], "the states are gone at the end")

    def test_Switch_DecidesTheSteps(self):
        key = self.work / "7.key"
        key.write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
        key.chmod(0o600)
        jobs = self.work / "jobs.json"
        jobs.write_text(json.dumps({"jobs": [{"name": "example", "job": SWITCH_JOB, "key_file": key.name, "workers": WORKERS,
                                              "window_indices": 16384, "slots": 16}]}), encoding="utf-8")
        switch = subprocess.Popen([PROGRAMS / "millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", jobs, "--json"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end, switch)
        address = json.loads(switch.stdout.readline())["addresses"][0]
        for text in self.run_all("switch", address, SWITCH_JOB, key):
            self.assertLess(max(self.largest_errors(text)), 0.01, text)
            self.assertIn("by the switch: yes", text)
        switch.send_signal(signal.SIGTERM)
        self.assertEqual(switch.wait(timeout=TIMEOUT_S), 0)


class ExamplesWithoutServers(unittest.TestCase):
    def run_peers(self, *arguments):
        return subprocess.run([PROGRAMS / "millrace_example_peers", *arguments], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)

    def test_Peers_EndWithTheSameWeights(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                ended = self.run_peers(str(ranks))
                self.assertEqual(ended.returncode, 0, ended.stderr)
                check_example_of_peers(self, ended.stdout, ranks)

    def test_PeersOverTcp_EndWithTheSameWeights(self):
        # A loopback address of its own, so that no other program has the ports.
        host = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.1"
        addresses = [f"{host}:{7600 + rank}" for rank in range(3)]
        processes = [subprocess.Popen([PROGRAMS / "millrace_example_peers_tcp", str(rank), *addresses], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True) for rank in range(3)]
        texts = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0, 0], texts)
        check_example_of_peers(self, "".join(texts), 3)

    def test_Peers_RefuseNoRanks(self):
        ended = self.run_peers("0")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("0 ranks", ended.stderr)


if __name__ == "__main__":
    unittest.main()
