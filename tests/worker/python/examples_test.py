#!/usr/bin/env python3
"""Programs of worker/python/examples against real shards, each worker a process.

    examples_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import re
import subprocess
import sys
import unittest

from shards import ENVIRONMENT, ROOT, TIMEOUT_S, WithShards

WORKERS = 2


class Examples(WithShards):
    def outputs(self, example, *arguments):
        """Returns the output of each worker; all must end with 0."""
        command = [sys.executable, ROOT / "worker/python/examples" / example, "--workers", WORKERS, "--servers", ",".join(self.addresses),
                   *arguments]
        processes = [subprocess.Popen([*map(str, command), "--worker", str(worker)], env=ENVIRONMENT, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for worker in range(WORKERS)]
        texts = []
        for process in processes:
            out, error = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, error)
            texts.append(out)
        return texts

    def test_NumpyLinear_FindsTheWeightsWithFewerBytes(self):
        for text in self.outputs("numpy_linear.py"):
            error, sent, dense = re.fullmatch(r"error ([\d.]+), sent (\d+) bytes instead of (\d+)\n", text).groups()
            self.assertLess(float(error), 0.05)
            self.assertLess(int(sent), int(dense) / 4)


if __name__ == "__main__":
    unittest.main()
