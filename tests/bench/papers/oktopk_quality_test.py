#!/usr/bin/python3
"""Tests of oktopk_quality.py on made-up trainings: the times to a quality, and the sentence of the control that trains on."""

import unittest

import oktopk_quality


def training(*qualities):
    """Returns a training with these qualities at steps 0, 10, …, of a second each."""
    return {"rows": [{"step": 10 * at, "seconds": 10.0 * at, "bytes": 0, "loss": 1.0, "quality": quality} for at, quality in enumerate(qualities)]}


class Times(unittest.TestCase):
    def test_Target_IsOfTheDenseTrainingOfTheSameSeed(self):
        dense = [training(0.0, 1.0), training(0.0, 0.5)]
        row = oktopk_quality.row_of(4, "Ok-Topk", [training(0.0, 1.0), training(0.0, 0.5)], dense, 1.0)
        self.assertAlmostEqual(row["seconds"], 9.8)
        self.assertIsNone(oktopk_quality.row_of(4, "Ok-Topk", dense[::-1], dense, 1.0)["seconds"])

    def trained_on(self, *qualities):
        of = {name: [training(0.0, 1.0)] for name in (*oktopk_quality.DENSE, "Ok-Topk")}
        rows = [oktopk_quality.row_of(4, name, results, of["Dense"], 1.0) for name, results in of.items()]
        return oktopk_quality.trained_on(rows, {4: of}, {oktopk_quality.MORE_STEPS: [training(*qualities)]})

    def test_TrainedOn_NamesTheStepsAndTheirTime(self):
        self.assertEqual(self.trained_on(0.0, 0.49, 0.98), "Trained for 5 x the steps, Ok-Topk on 4 ranks reaches it after 20: "
                         "20 s at its time of a step (Dense 10 s, DenseOvlp 10 s, Dense 16 bits 10 s)")

    def test_TrainedOn_SaysWhereItDoesNotReachTheQuality(self):
        self.assertEqual(self.trained_on(0.0, 0.5), "Trained for 5 x the steps, Ok-Topk on 4 ranks does not reach it in every training")


if __name__ == "__main__":
    unittest.main()
