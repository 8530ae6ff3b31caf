#!/usr/bin/env python3
"""The training examples under torchrun, with made-up data: they train, and print the bytes that they moved.

    torch_examples_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import gzip
import itertools
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch_required  # first: skips where PyTorch is absent

import torch
from torch_shards import Shards

EXAMPLES = torch_required.ROOT / "worker/python/examples"


def write_digits(folder):
    """Writes 500 images of one bright row each: the row is the label."""
    draw = random.Random(1)
    labels = bytes(draw.randrange(10) for _ in range(500))
    images = bytes(200 if row == 2 * label else draw.randrange(20) for label in labels for row in range(28) for _ in range(28))
    with gzip.open(folder / "mnist-t10k-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">4I", 0x803, len(labels), 28, 28) + images)
    with gzip.open(folder / "mnist-t10k-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">2I", 0x801, len(labels)) + labels)


_FILES = tempfile.TemporaryDirectory()
_NUMBERS = itertools.count()


def torchrun(*arguments):
    """Returns the words of a torchrun command for processes of this machine alone.

    torch 1.13 has no default of --redirects and --tee on Python 3.11. Its --standalone takes port 29400, and a second torchrun
    then depends on the first: port 0 is a free port. The torchrun of Debian's torch 2.6 makes no store over TCP, since it lacks
    libuv: hence a file.
    """
    meeting = ["--rdzv_endpoint", "localhost:0"]
    if torch.__version__.split(".")[0] != "1":
        meeting = ["--rdzv_conf", "store_type=file", "--rdzv_endpoint", f"{_FILES.name}/{next(_NUMBERS)}"]
    return [sys.executable, "-m", "torch.distributed.run", "--redirects", "1", "--tee", "1", "--rdzv_backend", "c10d",
            *meeting, *arguments]


# Of torchrun and its processes. torchrun writes lines of its processes to its own buffered output. The last two are for Debian's
# torch 2.6 and later, which lack libuv.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(torch_required.PACKAGE), "OMP_NUM_THREADS": "1",
               "PYTHONUNBUFFERED": "1", "USE_LIBUV": "0",
               "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shards = Shards()
        cls.folder = tempfile.TemporaryDirectory()
        write_digits(Path(cls.folder.name))
        with gzip.open(Path(cls.folder.name) / "tinyshakespeare.txt.gz", "wt", encoding="utf-8") as file:
            file.write("to be, or not to be: that is the question.\n" * 200)

    @classmethod
    def tearDownClass(cls):
        cls.shards.stop()
        cls.folder.cleanup()

    def run_example(self, name, *arguments, data=True, peers=False):
        command = [*torchrun("--nproc_per_node", "2"), str(EXAMPLES / name), *map(str, arguments)]
        command += ["--path", "peers"] if peers else ["--servers", self.shards.servers]
        if data:
            command += ["--data", self.folder.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_MnistCnn_LearnsTheDigits(self):
        text = self.run_example("mnist_cnn.py", "--steps", 50, "--select", "topk:0.05")
        self.assertGreater(float(re.search(r"accuracy ([\d.]+)", text).group(1)), 0.5, text)
        self.assertLess(float(re.search(r": ([\d.]+) of dense", text).group(1)), 0.2, text)

    def test_MnistCnnOverPeers_LearnsTheDigits(self):
        text = self.run_example("mnist_cnn.py", "--steps", 50, "--select", "topk:0.05", peers=True)
        self.assertGreater(float(re.search(r"accuracy ([\d.]+)", text).group(1)), 0.5, text)
        self.assertLess(float(re.search(r": ([\d.]+) of dense", text).group(1)), 0.2, text)

    def test_CharTransformer_LearnsTheText(self):
        text = self.run_example("char_transformer.py", "--steps", 50, "--width", 32, "--layers", 1, "--context", 16,
                                "--codec", "gap+qsgd8", "--select", "topk:0.1", "--report-every", 25)
        losses = [float(loss) for loss in re.findall(r"held-out loss ([\d.]+) a character", text)]
        self.assertEqual(len(losses), 3, text)
        self.assertLess(losses[2], 2.6, text)

    def test_Embedding_LearnsFromATableAtTheShards(self):
        text = self.run_example("embedding.py", "--rows", 1 << 20, "--steps", 100, "--batch", 128, data=False)
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", text)]
        self.assertEqual(len(losses), 2, text)
        self.assertLess(losses[1], 0.65, text)  # 0.69 without training
        # A batch has at most 1,024 rows of 16: their indices and gradients, and the indices of a pull.
        self.assertLess(int(re.search(r"(\d+) bytes up", text).group(1)), 300_000, text)


# A rank with two buckets of 7 entries, which three ranks cannot share out evenly. Prints their means.
BF16_RANK = """
import sys
import torch
import torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from bf16_hook import Bf16State, bf16_hook

class Bucket:
    def __init__(self, gradients):
        self.buffer = lambda: gradients

dist.init_process_group("gloo")
state, rank = Bf16State(), dist.get_rank()
buckets = [Bucket((1 + 2.0 ** -10) * (torch.arange(7.0) + 10 * rank + first)) for first in (0, 100)]
means = [future.wait() for future in [bf16_hook(state, bucket) for bucket in buckets]]
print([bucket.buffer().tolist() == mean.tolist() for bucket, mean in zip(buckets, means)], torch.cat(means).tolist())
dist.barrier()
"""


class Bf16(unittest.TestCase):
    def test_HookReturnsTheMeanOfRoundedGradients(self):
        ranks, parts = 3, []
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(BF16_RANK)
            script.flush()
            command = [*torchrun("--nproc_per_node", str(ranks)), script.name, str(EXAMPLES)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for first in (0, 100):
            of_ranks = [(1 + 2.0 ** -10) * (torch.arange(7.0) + 10 * rank + first) for rank in range(ranks)]
            parts.append((sum(one.bfloat16().float() for one in of_ranks) / ranks).bfloat16())
        self.assertEqual(done.stdout.count(f"[True, True] {torch.cat(parts).tolist()}"), ranks, done.stdout)


if __name__ == "__main__":
    unittest.main()
