#!/usr/bin/env python3
"""millrace_replay: its output is a receiver's decoded values, and its numbers are of those bytes. Standard library
only.

    replay_test.py PROGRAM [unittest arguments]
"""

import random
import struct
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin/millrace_replay"
HEAD = struct.Struct("<5Q3dQ")
CONTAINER_HEADER_BYTES = 64
NON_FINITE = 5


def replay(values, *flags):
    """Runs the vectors of `values` through one process: its exit code, its errors, and (head, decoded vector) of
    each step."""
    n = len(values[0])
    data = b"".join(struct.pack(f"<{n}f", *vector) for vector in values)
    return parse(n, run(data, "--dimension", n, *flags))


def run(data, *flags):
    return subprocess.run([PROGRAM, *map(str, flags)], input=data, capture_output=True, timeout=30, check=False)


def parse(n, ended):
    size = HEAD.size + 4 * n
    steps = []
    for begin in range(0, len(ended.stdout), size):
        steps.append((HEAD.unpack_from(ended.stdout, begin), list(struct.unpack_from(f"<{n}f", ended.stdout, begin + HEAD.size))))
    return ended.returncode, ended.stderr.decode(), steps


def rounded(values):
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def drawn(n, seed):
    draw = random.Random(seed)
    return rounded([draw.gauss(0, 1) for _ in range(n)])


def largest(values, k):
    """The k largest by magnitude, lower index first, the others 0."""
    order = sorted(range(len(values)), key=lambda index: (-abs(values[index]), index))
    kept = set(order[:k])
    return [value if index in kept else 0.0 for index, value in enumerate(values)]


class Replay(unittest.TestCase):
    def test_RawTopKDecodesToTheLargestEntriesOfEveryStep(self):
        n, k = 300, 7
        values = [drawn(n, seed) for seed in range(3)]
        code, said, steps = replay(values, "--select", f"topk:{k}", "--codec", "raw+raw")
        self.assertEqual((code, said, len(steps)), (0, "", 3))
        for vector, (head, decoded) in zip(values, steps):
            self.assertEqual(decoded, largest(vector, k))
            self.assertEqual(head[:5], (k, k, CONTAINER_HEADER_BYTES + 8 * k, 4 * k, 4 * k))
            self.assertTrue(all(nanoseconds > 0 for nanoseconds in head[5:8]))
            self.assertEqual(head[8], 0)

    def test_ADenseVectorHasNoIndexCode(self):
        values = drawn(64, 1)
        code, _, steps = replay([values], "--select", "dense", "--codec", "gap+raw")
        self.assertEqual((code, steps[0][1]), (0, values))
        self.assertEqual(steps[0][0][:5], (64, 64, CONTAINER_HEADER_BYTES + 256, 0, 256))

    def test_FalsePositivesAreCountedAndCarryTheirOwnValues(self):
        values = drawn(20000, 2)
        code, _, steps = replay([values], "--select", "topk:100", "--codec", "bloom_p0:0.01+raw")
        head, decoded = steps[0]
        self.assertEqual((code, head[0]), (0, 100))
        self.assertGreater(head[1], 200)  # 199 false positives are expected, with a standard deviation of 14
        self.assertEqual(sum(value != 0 for value in decoded), head[1])
        self.assertTrue(all(value in (0, own) for value, own in zip(decoded, values)))

    def test_TheSeedAndTheStepDetermineTheDraw(self):
        values = drawn(1000, 3)
        runs = [replay([values, values], "--codec", "raw+qsgd2", "--seed", seed)[2] for seed in (1, 1, 2)]
        decoded = [[step[1] for step in steps] for steps in runs]
        self.assertEqual(decoded[0], decoded[1])
        self.assertNotEqual(decoded[0], decoded[2])
        self.assertNotEqual(decoded[0][0], decoded[0][1])

    def test_ReplayReportsANonFiniteVectorAndSendsTheNextOne(self):
        good = drawn(50, 4)
        bad = [float("nan")] + good[1:]
        code, said, steps = replay([bad, good], "--select", "topk:5")
        self.assertEqual(code, 0)
        self.assertEqual(steps[0], ((0, 0, 0, 0, 0, 0.0, 0.0, 0.0, NON_FINITE), [0.0] * 50))
        self.assertEqual(said.count("\n"), 1)
        self.assertEqual((steps[1][0][8], steps[1][1]), (0, largest(good, 5)))

    def test_InputThatEndsWithinAVectorIsAnError(self):
        for data, code in ((b"", 0), (bytes(4 * 8), 0), (bytes(4 * 8 - 1), 1), (bytes(4 * 8 + 1), 1)):
            ended = run(data, "--dimension", 8)
            self.assertEqual((ended.returncode, len(ended.stdout)), (code, len(data) // 32 * (HEAD.size + 32)))

    def test_InvalidOptionsAreRefusedBeforeInputIsRead(self):
        self.assertEqual(run(b"", "--dimension", 8, "--select", "topk:2", "--codec", "gap+qsgd4", "--check").returncode, 0)
        for flags in (["--select", "best:0.1"], ["--codec", "raw+best"], ["--codec", "auto"], ["--select", "topk:0.1", "--unbiased"]):
            ended = run(bytes(32), "--dimension", 8, *flags)
            self.assertEqual((ended.returncode, ended.stdout, ended.stderr.count(b"\n")), (2, b"", 1), flags)
        self.assertEqual(run(b"", "--dimension", 0).returncode, 2)
        self.assertEqual(run(b"").returncode, 2)


if __name__ == "__main__":
    unittest.main()
