#!/usr/bin/python3
"""[OkTopk22, figure 11]: quality against the time of training, for an LSTM. oktopk_quality.py has the setting.

    tests/bench/papers/oktopk_fig11.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N] [--only REGEX]
"""

from experiment import Experiment
from oktopk_quality import run_figure
from peers import PROGRAM

DENSITY = 0.02  # the paper's
CLAIM = "Ok-Topk has the best time to solution: the others take 1.34 to 7.71 x its time (LSTM, AN4, 64 nodes)"


def main():
    here = Experiment("oktopk_fig11", "Ok-Topk: accuracy of an LSTM against time", "[OkTopk22, 5.4, figure 11]", PROGRAM, partial=True)
    run_figure(here, "lstm", DENSITY, CLAIM)


if __name__ == "__main__":
    main()
