#!/usr/bin/env python3
"""`millrace train --method`: every preset trains; its permitted combinations.

    train_methods_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import time
import unittest

from commands import TIMEOUT_S, WithServers, made_up_rows, run, start


class Methods(WithServers):
    def methods(self):
        """Their names, and whether they select, as --help has them."""
        words = run("train", "--help").stdout.split("Methods (--method), with the options that they set:\n")[1].split("\n\n")[0].split("\n")
        return {name.split()[0]: "--select none " not in sets for name, sets in zip(words[::2], words[1::2])}

    def test_EachTrainsToTheEndWithNothingMissing(self):
        train = self.path("methods.svm", made_up_rows(2000, 2))
        test = self.path("methods-test.svm", made_up_rows(500, 3))
        methods = self.methods()
        self.assertLessEqual({"three_lc", "sketchml", "skcompress", "dgc", "sparcml", "oktopk", "redsync", "gspar"}, set(methods))
        flags = ["--train", train, "--test", test, "--batch", 20, "--lr", 0.5, "--audit"]
        for name, selects in methods.items():
            with self.subTest(method=name):
                # A thousandth of 41 weights is none: it trains with more.
                more = ["--density", 0.25] if selects else []
                for result in self.train(2, *flags, "--method", name, "--epochs", 6, *more, job=name):
                    self.assertEqual(result["audit"]["imbalance"], 0)
                    self.assertGreater(result["epochs"][-1]["held_out"]["accuracy"], 0.85)
                for result in self.train(2, *flags, "--method", name, "--steps", 20, job=name + " alone"):
                    self.assertEqual((result["steps"], result["audit"]["imbalance"]), (20, 0))

    def test_AGivenDensityOverridesTheMethod(self):
        train = self.path("given.svm", made_up_rows(200, 2))
        entries = {}
        for density in (0.05, 0.5):
            result, = self.train(1, "--train", train, "--epochs", 1, "--batch", 10, "--method", "oktopk", "--density", density,
                                 job=f"given{density}")
            entries[density] = sum(epoch["entries_up"] for epoch in result["epochs"])
        self.assertGreater(entries[0.5], 4 * entries[0.05])

    def test_TheThresholdPeriodIsTheMethodsOrTheOneGiven(self):
        train = self.path("period.svm", made_up_rows(400, 2))
        flags = ["--train", train, "--steps", 12, "--batch", 10]
        oktopk = ["--method", "oktopk", "--density", 0.25]
        # Workers of one job have equal options: a period that is the method's own joins, another one does not.
        job = "period of the method"
        first = start("train", *self.flags(0, 2, job), *flags, *oktopk)
        try:
            self.refused_once_open(job, first, *flags, *oktopk, "--threshold-period", 5)
            self.refused_once_open(job, first, *flags, *oktopk, "--reselect", "topk:0.01:1")
            second = run("train", *self.flags(1, 2, job), *flags, *oktopk, "--threshold-period", 32)
            self.assertEqual(second.returncode, 0, second.stderr)
            self.assertEqual(first.wait(timeout=TIMEOUT_S), 0)
        finally:
            self.end(first)
        # By hand, and where a method's period gives way.
        for name, more in (("by hand", ["--reselect", "topk:0.2", "--threshold-period", 4, "--audit"]),
                           ("gives way", [*oktopk, "--reproducible"])):
            for result in self.train(2, *flags, *more, job=name):
                self.assertEqual(result["steps"], 12)

    def refused_once_open(self, job, first, *arguments):
        """Worker 1 of the job must hear, as soon as worker 0 has opened it, that its options are others."""
        ports = [shard["http"] for shard in self.cluster["shards"]]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self.assertIsNone(first.poll())
            self.assertLess(time.monotonic(), deadline)
            if f'"{job}"' in run("status", *ports, "--json").stdout:
                break
        ended = run("train", *self.flags(1, 2, job), *arguments)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("threshold_period", ended.stderr)

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def test_WhatMakesAnotherMethodIsRefused(self):
        train = self.path("refused.svm", made_up_rows(200, 2))
        for sentence, flags in (("--method: there is no 'best'", ["--method", "best"]),
                                ("method dgc selects by topk:0.001", ["--method", "dgc", "--select", "threshold:0.1"]),
                                ("method dgc has codec raw+raw", ["--method", "dgc", "--codec-up", "gap+qsgd4"]),
                                ("method three_lc has no density", ["--method", "three_lc", "--density", 0.1]),
                                ("--threshold-period belongs to --reselect", ["--threshold-period", 4]),
                                ("leave the period out", ["--method", "oktopk", "--reproducible", "--threshold-period", 4]),
                                ("leave the period out", ["--reselect", "topk:0.1", "--path", "switch", "--switch-address", "127.0.0.1:9", "--switch-job", 1,
                                                  "--threshold-period", 4]),
                                ("leave the period out", ["--reselect", "topk:0.1:8", "--reproducible"]),
                                ("leave the period out", ["--reselect", "topk:0.1:8", "--path", "switch", "--switch-address", "127.0.0.1:9",
                                                          "--switch-job", 1]),
                                ("--threshold-period 4 and --reselect topk:0.1:8: give one period",
                                 ["--reselect", "topk:0.1:8", "--threshold-period", 4]),
                                ("--unbiased: 'maybe': known are 'on', 'off'", ["--unbiased=maybe"]),
                                ("--link-rate: '-1'", ["--link-rate=-1"]),
                                ("--switch-key: '': it is empty", ["--switch-key", ""]),
                                ("--path: 'swich:a:1': known are server|switch", ["--path", "swich:a:1"]),
                                ("'0' is not a number from 1", ["--reselect", "topk:0.1", "--threshold-period", 0]),
                                ("--dense sends every parameter", ["--method", "dgc", "--dense"]),
                                ("give one of them", ["--method", "dgc", "--density", 0.1, "--select", "topk:0.1"]),
                                ("momentum", ["--method", "dgc", "--store", "momentum:0.1"])):
            with self.subTest(flags=flags):
                self.refused(2, sentence, "train", *self.flags(), "--train", train, *flags)


if __name__ == "__main__":
    unittest.main()
