#!/usr/bin/env python3
"""`millrace train --unbiased` and `--optimizer svrg` with real shards and workers.

    unbiased_train_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import unittest

from commands import WithServers, made_up_rows


class Unbiased(WithServers):
    def test_DrawnGradientsTrainTheModelAndTheBooksBalance(self):
        train = self.path("unbiased.svm", made_up_rows(3000, 2))
        test = self.path("unbiased-test.svm", made_up_rows(500, 3))
        flags = ["--train", train, "--test", test, "--epochs", 4, "--batch", 50, "--lr", 0.5, "--l2", 1e-5, "--audit"]
        losses = {}
        for select in ("none", "gspar:0.3", "gspar_closed:0.5", "uniform:0.5", "random:20"):
            results = self.train(3, *flags, "--unbiased", "--select", select, job=select.replace(":", "-"))
            losses[select] = results[0]["epochs"][-1]["held_out"]["loss"]
            for result in results:
                self.assertEqual(result["epochs"][-1]["held_out"]["loss"], losses[select], "all workers hold the same weights")
                self.assertEqual(result["audit"]["imbalance"], 0, f"{select}: {result['audit']}")
            entries = [sum(epoch["entries_up"] for epoch in result["epochs"]) for result in results]
            self.assertGreater(min(entries), 0)
        for select, loss in losses.items():
            self.assertLess(loss, 1.5 * losses["none"], f"{select}: {losses}")

    def test_SvrgTrainsWithAndWithoutDraws(self):
        train = self.path("svrg.svm", made_up_rows(1500, 2))
        flags = ["--train", train, "--test", train, "--epochs", 5, "--batch", 25, "--lr", 0.5, "--l2", 1e-4]
        losses = {}
        for name, more in (("sgd", []), ("svrg", ["--optimizer", "svrg"]), ("every-7", ["--optimizer", "svrg", "--snapshot-every", 7]),
                           ("drawn", ["--optimizer", "svrg", "--unbiased", "--select", "gspar:0.4", "--staleness", 1])):
            results = self.train(3, *flags, *more, job=name)
            losses[name] = results[0]["epochs"][-1]["held_out"]["loss"]
            self.assertEqual({result["epochs"][-1]["held_out"]["loss"] for result in results}, {losses[name]})
        for name, loss in losses.items():
            self.assertLess(loss, 1.1 * losses["sgd"], losses)
            self.assertLess(loss, 0.5, losses)

    def test_OnePercentByTheGreedyAlgorithmNeedsNoOtherFlag(self):
        train = self.path("one-percent.svm", made_up_rows(600, 2))
        results = self.train(2, "--train", train, "--epochs", 2, "--batch", 50, "--unbiased", "--select", "gspar:0.01", job="one-percent")
        self.assertEqual({result["steps"] for result in results}, {12})

    def test_WhatDoesNotGoTogetherIsRefusedWithTheReason(self):
        train = self.path("refused.svm", made_up_rows(60, 2))
        for flags, reason in ((["--unbiased", "--select", "topk:0.1"], "one that draws (random, gspar)"), (["--select", "gspar:0.1"], "set unbiased on"),
                              (["--unbiased", "--codec-error", "retain"], "an unbiased job keeps none"),
                              (["--unbiased", "--select", "gspar_closed:-1"], "gspar_closed:VARIANCE"),
                              (["--optimizer", "svrg", "--mode", "asynchronous"], "needs --mode synchronous"),
                              (["--optimizer", "svrg", "--store", "sgd:0.1"], "--store"), (["--snapshot-every", 3], "is of --optimizer svrg")):
            self.refused(2, reason, "train", *self.flags(job="refused"), "--train", train, *flags)


if __name__ == "__main__":
    unittest.main(verbosity=2)
