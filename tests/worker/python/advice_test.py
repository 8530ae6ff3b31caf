#!/usr/bin/env python3
"""millrace.advise(): the planner's times, where the link decides, and refusals.

    advice_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import unittest

from shards import millrace

N = 100_000
SLOW = 1e6  # bits a second: selecting and adding take no time beside it


class Advised(unittest.TestCase):
    def refused(self, sentence, *arguments, **options):
        with self.assertRaisesRegex(millrace.JobError, sentence) as raised:
            millrace.advise(*arguments, **{"workers": 4, "link_rate": SLOW, **options})
        self.assertEqual(raised.exception.code, "invalid_argument")

    def test_SlowLink_CostsTheBytesOfTheServersShares(self):
        advice = millrace.advise(N, 0.01, workers=4, shards=2, link_rate="1mbit")
        self.assertEqual(advice.entries, N // 100)
        # A shard's link carries the shares of four workers, half of each, up and down.
        self.assertAlmostEqual(advice.servers_dense.seconds / (2 * 2 * 4 * N * 8 / SLOW), 1, delta=0.01)
        union = N * (1 - 0.99**4)
        self.assertAlmostEqual(advice.servers.seconds / (2 * 8 * (N / 100 + union) * 8 / SLOW), 1, delta=0.05)
        self.assertFalse(advice.dense_is_faster)
        self.assertTrue(advice.reason.startswith("Sparse wins"), advice.reason)
        times = [row.seconds for row in advice.ranking]
        self.assertEqual(times, sorted(times))
        self.assertIn(advice.servers, advice.ranking)

    def test_HalfOfTheEntries_AreFasterDense(self):
        advice = millrace.advise(N, 0.6, workers=4, shards=2, link_rate=SLOW, select="none", exact=True)
        self.assertIn("dense", advice.reason.lower())
        self.assertGreaterEqual(advice.servers.seconds, 0.99 * advice.servers_dense.seconds)
        self.assertEqual({row.result for row in advice.ranking}, {"exact_sum"})

    def test_Latency_CountsForEachMessage(self):
        plain, late = (millrace.advise(N, 0.01, workers=2, link_rate=SLOW, latency=latency, select="none") for latency in (0, "1s"))
        self.assertAlmostEqual(late.servers.seconds - plain.servers.seconds, 2 * 2, delta=0.1)

    def test_Codec_MakesEntriesSmaller(self):
        plain, coded = (millrace.advise(N, 0.01, workers=2, link_rate=SLOW, codec=codec).servers for codec in ("raw", "gap"))
        self.assertLess(coded.transfer_seconds, 0.8 * plain.transfer_seconds)

    def test_ImpossibleQuestions_AreRefused(self):
        self.refused("a dimension from 1", 0, 0.1)
        self.refused("density over 0", N, 0.0)
        self.refused("a rate over 0", N, 0.1, link_rate=0)
        self.refused("selection", N, 0.1, select="best")
        self.refused("auto chooses", N, 0.1, codec="auto")


if __name__ == "__main__":
    unittest.main()
