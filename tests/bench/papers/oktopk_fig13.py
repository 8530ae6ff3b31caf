#!/usr/bin/python3
"""[OkTopk22, figure 13]: quality against the time of training, for a transformer. oktopk_quality.py has the setting.

    tests/bench/papers/oktopk_fig13.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N] [--only REGEX]
"""

from experiment import Experiment
from oktopk_quality import run_figure
from peers import PROGRAM

DENSITY = 0.01  # the paper's
CLAIM = "Ok-Topk has the best time to solution: DenseOvlp takes 3 x and Gaussiank 1.30 x its time (BERT, Wikipedia, 32 nodes)"


def main():
    here = Experiment("oktopk_fig13", "Ok-Topk: accuracy of a transformer against time", "[OkTopk22, 5.4, figure 13]", PROGRAM, partial=True)
    run_figure(here, "transformer", DENSITY, CLAIM)


if __name__ == "__main__":
    main()
