#!/usr/bin/python3
"""[OkTopk22, figure 9]: quality against the time of training, for a CNN. oktopk_quality.py has the setting.

    tests/bench/papers/oktopk_fig9.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N] [--only REGEX]
"""

from experiment import Experiment
from oktopk_quality import run_figure
from peers import PROGRAM

DENSITY = 0.02  # the paper's
CLAIM = "Ok-Topk has the best time to solution: the others take 1.51 to 8.83 x its time (VGG-16, Cifar-10, 32 nodes)"


def main():
    here = Experiment("oktopk_fig9", "Ok-Topk: accuracy of a CNN against time", "[OkTopk22, 5.4, figure 9]", PROGRAM, partial=True)
    run_figure(here, "cnn", DENSITY, CLAIM)


if __name__ == "__main__":
    main()
