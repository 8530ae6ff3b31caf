#!/usr/bin/env python3
"""`millrace train --history` with real shards and workers: indices coded against the updates that both sides have seen.

    history_train_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import random
import unittest

from commands import WithServers

FEATURES = 50_000
WORDS_A_ROW = 40


def rows_of_words(rows, seed):
    """Some features in most rows, most in few: as words in texts."""
    draw = random.Random(seed)
    places = list(range(1, FEATURES + 1))
    random.Random(1).shuffle(places)
    lines = []
    for _ in range(rows):
        words = {places[min(int(draw.paretovariate(0.6)), FEATURES) - 1] for _ in range(WORDS_A_ROW)}
        label = 1 if sum(word % 2 for word in words) * 2 > len(words) else -1
        lines.append(" ".join([str(label)] + [f"{word}:1" for word in sorted(words)]))
    return "\n".join(lines) + "\n"


class History(WithServers):
    def test_TheSameModelForFewerBytes(self):
        train = self.path("words.svm", rows_of_words(3000, 2))
        test = self.path("words-test.svm", rows_of_words(300, 3))
        flags = ["--train", train, "--test", test, "--epochs", 3, "--batch", 100, "--lr", 0.5, "--audit", "--exchange-timeout", "60s"]
        for more in ([], ["--select", "topk:0.01", "--reselect", "topk:0.02"]):
            plain, by_history = (self.train(2, *flags, *more, *history, job=f"words-{len(more)}-{len(history)}")
                                 for history in ([], ["--history"]))
            for one, other in zip(plain, by_history):
                self.assertEqual([epoch["held_out"] for epoch in one["epochs"]], [epoch["held_out"] for epoch in other["epochs"]])
                self.assertEqual(other["audit"]["imbalance"], 0)
                self.assertLess(other["bytes_up"], one["bytes_up"])
                self.assertEqual(one["history_bytes_saved"], 0)
                # A worker may send a contribution twice, for example when the other worker joins.
                once_more = 2 * one["bytes_up"] / one["rounds"]
                self.assertAlmostEqual(other["bytes_up"] + other["history_bytes_saved"], one["bytes_up"], delta=once_more)

    def test_WithStepsAheadItIsRefusedWithTheReason(self):
        train = self.path("refused.svm", rows_of_words(20, 2))
        self.refused(2, "staleness 0", "train", *self.flags(job="refused"), "--train", train, "--history", "--staleness", 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
