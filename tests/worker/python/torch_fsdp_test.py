#!/usr/bin/env python3
"""FSDP2 through Millrace's hook: two replicas with two shards each, beside FSDP2's own all-reduce over gloo.

    torch_fsdp_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch_required  # first: skips where PyTorch is absent

import torch
import torch_fsdp_cases
from torch_shards import Shards

HERE = Path(__file__).parent
RANKS = 4
TIMEOUT_S = 280  # imports of torch take most of the time


def start_rank(rank, folder, servers):
    with (folder / f"rank{rank}.log").open("w", encoding="utf-8") as log:
        return subprocess.Popen([sys.executable, HERE / "torch_fsdp_ranks.py", torch_required.PROGRAMS, torch_required.PACKAGE,
                                 str(rank), str(RANKS), folder, servers], stdout=log, stderr=subprocess.STDOUT,
                                env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"})


def run_cases(servers):
    """Runs all cases with all ranks. Returns ({case: [error of each rank]}, the text that each rank printed)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [start_rank(rank, folder, servers) for rank in range(RANKS)]
        try:
            deadline = time.monotonic() + TIMEOUT_S
            for process in ranks:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"the ranks have not ended within {TIMEOUT_S} s", file=sys.stderr)  # check() fails: cases lack a result
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        texts = [(folder / f"rank{rank}.log").read_text(encoding="utf-8") + f"rank {rank} ended with code {process.returncode}\n"
                 for rank, process in enumerate(ranks)]
        paths = [folder / f"rank{rank}.json" for rank in range(RANKS)]
        results = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    return {case: [result.get(case) for result in results] for result in results for case in result}, texts


class Fsdp(unittest.TestCase):
    """One test a case: all of them run in one set of processes, before the first test."""

    @classmethod
    def setUpClass(cls):
        shards = Shards()
        try:
            cls.results, cls.texts = run_cases(shards.servers)
        finally:
            shards.stop()

    def check(self, case):
        errors = self.results.get(case.__name__)
        self.assertIsNotNone(errors, "the ranks ended before this case:\n" + "\n".join(self.texts))
        self.assertEqual(errors, [""] * RANKS, "\n".join(map(str, errors)))


for one in torch_fsdp_cases.ALL:
    setattr(Fsdp, "test_" + "".join(word.capitalize() for word in one.__name__.split("_")),
            lambda self, case=one: self.check(case))


if __name__ == "__main__":
    if not torch_fsdp_cases.has_hooks():
        print(f"skipped: FSDP2 of torch {torch.__version__} has no set_all_reduce_hook()", file=sys.stderr)
        sys.exit(77)
    unittest.main()
