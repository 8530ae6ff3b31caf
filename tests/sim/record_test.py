#!/usr/bin/env python3
"""Checks the mutations of tests/sim/record and RECORD.md, and that record.py refuses wrong ones."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import record

SOURCE = "int a = 1;\nint b = 2;\nint c = 3;\n"
HEAD = ("Fault: b is wrong.\nFound-by: simulator 0123abcd\nTest: a_test A.B\nSeeds: 20 from 7\n"
        "Fails-with: is wrong\n\n")
DIFF = "--- a/x.cc\n+++ b/x.cc\n@@ -1,3 +1,3 @@\n int a = 1;\n-int b = 2;\n+int b = 4;\n int c = 3;\n"


class Record(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made_up.patch"
            path.write_text(text, encoding="utf-8")
            return record.read_mutation(path)

    def test_TheMutationsOfTheTree_ApplyAndAreInThePage(self):
        record.check()

    def test_AMutation_HasItsHeadersAndChangesItsFile(self):
        mutation = self.read(HEAD + DIFF)
        self.assertEqual((mutation.name, mutation.target, mutation.which), ("made_up", "a_test", "A.B"))
        self.assertEqual(mutation.search(), (7, 20, True))
        self.assertEqual(record.apply(mutation, lambda path: SOURCE), {"x.cc": SOURCE.replace("b = 2", "b = 4")})

    def test_ADiffThatFitsNowhereOrTwice_IsRefused(self):
        for source in (SOURCE.replace("b = 2", "b = 3"), SOURCE + SOURCE, ""):
            with self.assertRaises(record.Wrong):
                record.apply(self.read(HEAD + DIFF), lambda path, text=source: text)
        with self.assertRaises(record.Wrong):
            record.apply(self.read(HEAD), lambda path: SOURCE)

    def test_HeadersThatAreMissingOrWrong_AreRefused(self):
        for old, new in (("Fault: b is wrong.\n", ""), ("simulator", "oracle"), ("0123abcd", "now"),
                         ("20 from 7", "some"), ("20", "0"), ("a_test A.B", "a_test")):
            with self.subTest(old=old), self.assertRaises(record.Wrong):
                self.read(HEAD.replace(old, new) + DIFF)

    def test_ATestThatDoesNotExist_IsRefused(self):
        mutation = self.read(HEAD + DIFF)
        record.check_test(mutation, "TEST(A, B) {}")
        with self.assertRaises(record.Wrong):
            record.check_test(mutation, "TEST(A, Bc) {}")

    def test_AMutationThatIsNotFound_OrForAnotherReason_IsWrong(self):
        mutation = self.read(HEAD + DIFF)
        self.assertEqual(record.judge(mutation, 9, "b is wrong"), "seed 9")
        for seed, output in ((None, "b is wrong"), (9, "another failure")):
            with self.assertRaises(record.Wrong):
                record.judge(mutation, seed, output)
        blind = self.read(HEAD.replace("20 from 7", "not within 20") + DIFF)
        self.assertEqual(record.judge(blind, None, ""), "not found")
        with self.assertRaises(record.Wrong):
            record.judge(blind, 9, "b is wrong")

    def test_ASearch_EndsAtTheFirstSeedThatFails(self):
        begun = []

        def run_test(program, mutation, first=None, count=None):
            begun.append((first, count))
            return (1, "a_test --seed 61") if first <= 61 < first + count else (0, "")

        with mock.patch.object(record, "run_test", run_test):
            mutation = self.read(HEAD.replace("20 from 7", "100") + DIFF)
            self.assertEqual(record.search(None, mutation)[0], 61)
            self.assertEqual(begun, [(1, 25), (26, 25), (51, 25)])
            self.assertEqual(record.search(None, self.read(HEAD + DIFF))[0], None)
            self.assertEqual(begun[-1], (7, 20))


if __name__ == "__main__":
    unittest.main()
