#!/usr/bin/env python3
"""DistributedDataParallel with a model on CUDA: two ranks on one card, real shards. Skips where there is no card.

    torch_cuda_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch_required  # first: skips where PyTorch is absent

import torch

from torch_shards import Shards

HERE = Path(__file__).parent
TIMEOUT_S = 150
RANKS = 2


class OnCard(unittest.TestCase):
    def test_AllCasesOfTheRanks(self):
        shards = Shards()
        try:
            with tempfile.TemporaryDirectory() as folder:
                ranks = [subprocess.Popen([sys.executable, HERE / "torch_cuda_ranks.py", torch_required.PROGRAMS, torch_required.PACKAGE,
                                           str(number), str(RANKS), folder, shards.servers],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for number in range(RANKS)]
                texts = []
                try:
                    texts = [process.communicate(timeout=TIMEOUT_S)[0] for process in ranks]
                finally:
                    for process in ranks:
                        process.kill()
                        process.wait()
                results = [Path(folder) / f"rank{number}.json" for number in range(RANKS)]
                results = [json.loads(path.read_text(encoding="utf-8")) if path.exists() else {} for path in results]
        finally:
            shards.stop()
        print(texts[0])
        for number, result in enumerate(results):
            self.assertTrue(result, f"rank {number} ended before its first case:\n{texts[number]}")
            for case, error in result.items():
                with self.subTest(rank=number, case=case):
                    self.assertEqual(error, "", texts[number])
        self.assertEqual([process.returncode for process in ranks], [0] * RANKS, "\n".join(texts))


if __name__ == "__main__":
    if not torch_required.BUILT or not torch.cuda.is_available():
        print("skipped: PyTorch finds no CUDA device here, or the module is not built", file=sys.stderr)
        sys.exit(77)
    unittest.main()
