#!/usr/bin/env python3
"""Tests of run_file.py on the numbers of a committed run, put into the files that card.sh writes."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import results
import run_file

PROFILE = """==PROF== Connected to process 1
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void millrace::cuda::run<millrace::cuda::BucketTopK>(T1)","dram__bytes_read.sum","byte","2,147,000,000"
"0","void millrace::cuda::run<millrace::cuda::BucketTopK>(T1)","dram__bytes_write.sum","Gbyte","1.08"
"1","void millrace::cuda::run<millrace::cuda::BucketTopK>(T1)","dram__bytes_read.sum","byte","7"
"2","void millrace::cuda::run<millrace::cuda::QsgdWarps<(unsigned int)4, (unsigned int)0>>(T1)","gpu__time_duration.sum","usecond","367"
"""


class RunFiles(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        stored = results.load(results.RUNS / "cuda_h200.json")["repetitions"][0]
        self.kernels = {key: value for key, value in stored.items() if not key.startswith(("torch", "cub_", "dram"))}
        self.write("kernels.json", f"a line of the program\n{json.dumps(self.kernels)}\n")
        self.write("torch.json", json.dumps({"torch": "2.11", "torch_topk_ms": 6.0, "torch_topk_unsorted_ms": 10 * self.kernels["top_k_1_percent_ms"]}))
        self.write("cub.json", json.dumps({"card": "of CUB", "cub_radix_sort_keys_ms": 5.5}))
        self.write("profile.csv", PROFILE)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def main(self, *folders):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return run_file.main([*map(str, folders or (self.folder,))]), said.getvalue()

    def test_AnOutputBecomesARunFileOfItsCard(self):
        code, said = self.main()
        self.assertEqual(code, 0, said)
        self.assertEqual([path.name for path in (self.folder / "runs").iterdir()], ["cuda_h200.json"])
        self.assertIn("cuda_accumulator_h200: left out, no figure", said)
        fields = results.read_run(self.folder / "runs/cuda_h200.json").fields
        self.assertEqual(fields["machine"]["card"], "NVIDIA H200")
        (numbers,) = fields["repetitions"]
        self.assertEqual(numbers["torch_topk_unsorted_over_top_k_1_percent"], 10)
        self.assertEqual((numbers["card"], numbers["cub_radix_sort_keys_ms"]), ("NVIDIA H200", 5.5))
        self.assertEqual(numbers["dram_of_kernels"], {"BucketTopK": {"read": 2.147e9, "write": 1.08e9}, "QsgdWarps<4, 0>": {"ns": 367e3}})

    def test_FoldersAreRepetitionsOfOneCard(self):
        self.assertEqual(self.main(self.folder, self.folder)[0], 0)
        self.assertEqual(len(results.load(self.folder / "runs/cuda_h200.json")["repetitions"]), 2)
        other = self.folder / "other"
        other.mkdir()
        (other / "kernels.json").write_text(json.dumps({**self.kernels, "card": "NVIDIA H100 80GB HBM3"}), encoding="utf-8")
        code, said = self.main(self.folder, other)
        self.assertEqual(code, 1)
        self.assertIn("several cards", said)

    def test_AMissingProgramLeavesTheRunFileOut(self):
        (self.folder / "torch.json").unlink()
        code, said = self.main()
        self.assertEqual(code, 77)
        self.assertIn("cuda_h200: left out, no figure '`torch.topk`", said)
        self.write("kernels.json", "no card\n")
        self.assertEqual(self.main()[0], 1)


if __name__ == "__main__":
    unittest.main()
