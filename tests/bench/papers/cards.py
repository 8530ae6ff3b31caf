#!/usr/bin/python3
"""[RedSync19, figure 1] and [DeepReduce21, figure 10] on cards: the times in the run files of kernels/cuda, drawn.

    tests/bench/papers/cards.py [--out FOLDER]

Left: the time to select the top 0.1 % by size of the message. Right: the time to encode 1 % of 36,864 entries:
on a card the Bloom filter (P0) with QSGD, on a processor the methods of deepreduce_fig10.json, which has to be there.
A card's time includes the wait for its result. Other flags have no effect: nothing is measured here.
"""

import json
import re
from pathlib import Path

from experiment import ROOT, Experiment, np, panels, table

RUNS = ROOT / "tests/bench/runs"
CARDS = ("cuda_h200", "cuda_h100")
HOST = Path(__file__).resolve().parent / "results/deepreduce_fig10.json"
SELECTIONS = {"radix": "radixSelect", "top_k": "top-k", "k_to_2k": "binary search, k to 2k", "sampled": "sampled binary search"}
PAPER_RATE = 3.5e9
MESSAGE = 1 << 24  # values: 64 MiB
ON_CARD = "bloom_p0_qsgd7_of_36864_ms"
ON_HOST = ("BF-P0 + QSGD 8", "BF-P2 + Fit-Poly", "SketchML", "SKCompress")


def medians(name):
    """Returns the card, the commit, and {row: median of the repetitions}."""
    run = json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))
    rows = [key for key, value in run["repetitions"][0].items() if isinstance(value, (int, float))]
    return run["machine"]["card"], run["commit"], {row: float(np.median([one[row] for one in run["repetitions"]])) for row in rows}


def selections(rows):
    """Returns {selection: {values of the message: ms}}."""
    found = {}
    for row, ms in rows.items():
        named = re.fullmatch(r"(.+)_0_1_percent_of_(\d+)_ms", row)
        if named and named[1] in SELECTIONS:
            found.setdefault(named[1], {})[int(named[2])] = ms
    return found


def host_us():
    """Returns {method: microseconds to encode} of the run on a processor."""
    rows = json.loads(HOST.read_text(encoding="utf-8"))["result"]["rows"]
    return {row["method"]: row["encode_us"] for row in rows}


def plot(cards, coding):
    figure, axes = panels(1, 2, width=5.6, height=4.2)
    left, right = axes[0]
    sizes = []
    for (card, rows), style in zip(cards.items(), ("o-", "^--")):
        for number, (name, by_size) in enumerate(selections(rows).items()):
            sizes = sorted(by_size)
            left.loglog([4 * n / 1e6 for n in sizes], [by_size[n] for n in sizes], style, ms=3, lw=1.3, color=f"C{number}",
                        label=f"{SELECTIONS[name]}, {card}")
    left.loglog([4 * n / 1e6 for n in sizes], [4e3 * n / PAPER_RATE for n in sizes], "k-", lw=0.9, label="communication, 3.5 GB/s")
    left.set(xlabel="message, MB", ylabel="ms", title="[RedSync19, figure 1]: top 0.1 %")
    left.legend(fontsize=6.5)
    at = np.arange(len(coding))
    right.barh(at, list(coding.values()), color=["C0" if "card" in name else "C1" for name in coding])
    right.set(xlabel="microseconds to encode", xscale="log", xlim=(1, None), yticks=at, title="[DeepReduce21, figure 10]: 1 % of 36,864")
    right.set_yticklabels(list(coding), fontsize=7)
    right.invert_yaxis()
    return figure


def main():
    here = Experiment("cards", "RedSync, DeepReduce: selection and coding on cards", "[RedSync19, figure 1], [DeepReduce21, figure 10]", program=None)
    cards, commits = {}, []
    for name in CARDS:
        card, commit, rows = medians(name)
        cards[card] = rows
        commits.append(commit)
    here.machine, here.commit = " and ".join(cards), ", ".join(dict.fromkeys(commits))
    result = [{"card": card, "selection": name, "n": n, "ms": ms}
              for card, rows in cards.items() for name, by_size in selections(rows).items() for n, ms in sorted(by_size.items())]
    table(result, [("card", "card", "s"), ("selection", "selection", "s"), ("n", "n", "d"), ("ms", "ms", ".4f")])
    coding = {f"BF-P0 + QSGD 7, card {card}": 1e3 * rows[ON_CARD] for card, rows in cards.items()}
    on_host = host_us()
    coding |= {f"{method}, a processor's thread": on_host[method] for method in ON_HOST}
    for card, rows in cards.items():
        ms = {name: by_size[MESSAGE] for name, by_size in selections(rows).items()}
        ratios = "; ".join(f"{SELECTIONS[name]} {ms['radix'] / value:.2f}" for name, value in ms.items() if name != "radix")
        here.compare("64 MB: trimmed top-k is 38.13 times, sampled threshold binary search 16.17 times as fast as radixSelect (Titan X)",
                     f"{card}, 64 MiB, times as fast as radixSelect: {ratios}",
                     f"radixSelect takes {ms['radix']:.2f} ms here. The paper's scatters in every round; this one reads the array once or twice.")
    slowest = max(rows[key] for rows in cards.values() for key in rows if key.endswith(f"_0_1_percent_of_{MESSAGE}_ms"))
    here.compare("radixSelect sometimes takes longer than synchronizing the message at 3.5 GB/s",
                 f"64 MiB: the slowest selection {slowest:.2f} ms, the message {4e3 * MESSAGE / PAPER_RATE:.1f} ms")
    fastest = min(rows[ON_CARD] for rows in cards.values())
    here.compare("SKCompress is 380 times slower than BF-P0 with QSGD, which runs on a GPU",
                 f"to encode, SKCompress takes {on_host['SKCompress'] / (1e3 * fastest):.1f} times as long as BF-P0 with QSGD on the card",
                 "the paper's SKCompress is Python. With 369 entries the card's time is that of its kernels' starts. Decoding is on the host.")
    here.finish(plot(cards, coding), {"selections": result, "coding_us": coding})


if __name__ == "__main__":
    main()
