#!/usr/bin/env python3
"""Joins the output of card.sh to run files of tests/bench/runs.

    tests/bench/cuda/run_file.py FOLDER… [--runs FOLDER]

Each FOLDER is the output of one run of card.sh, and becomes a repetition: kernels.json is wanted; torch.json, cub.json and profile.csv
add their numbers. A run file is written for each measurement of this card that has all its figures. Without --runs: to `runs` in the
first FOLDER.

Exit codes: 0 written; 77 no measurement has all its figures; 1 the folders cannot be read, or are of several cards.
"""

import argparse
import csv
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import measure
import results
from measurements import MEASUREMENTS

SUBJECT = "Kernels on a card"
DRAM = {"dram__bytes_read.sum": "read", "dram__bytes_write.sum": "write", "gpu__time_duration.sum": "ns", "smsp__inst_executed.sum": "instructions"}
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "inst": 1, "nsecond": 1, "ns": 1, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6}
KERNEL = re.compile(r"Collect<\w+>|BucketTopK|QsgdWarps<\d+, \d+>|SumTails")


def printed_by(path):
    """The JSON that a program printed; nothing where it did not run."""
    if not path.exists():
        return {}
    try:
        return measure.last_json(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}


def dram_of_kernels(path):
    """The counters of each kernel in Nsight Compute's table. Of several launches that with the most memory traffic counts."""
    if not path.exists():
        return {}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith('"')]
    launches = {}
    for row in csv.DictReader(lines):
        name = KERNEL.search(re.sub(r"millrace::cuda::|\(unsigned int\)", "", row.get("Kernel Name", "")))
        key = DRAM.get(row.get("Metric Name"))
        if not name or not key or row["Metric Unit"] not in UNITS:
            continue
        launch = launches.setdefault((name.group(), row["ID"]), {})
        launch[key] = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
    most = {}
    for (name, _), launch in launches.items():
        traffic = launch.get("read", 0) + launch.get("write", 0)
        if name not in most or traffic > most[name].get("read", 0) + most[name].get("write", 0):
            most[name] = launch
    return most


def repetition(folder):
    """The numbers of one run of card.sh, as the run files have them."""
    numbers = printed_by(folder / "kernels.json")
    if "card" not in numbers:
        raise ValueError(f"{folder}: no kernels.json of millrace_cuda_bench")
    torch = printed_by(folder / "torch.json")
    if "torch_topk_unsorted_ms" in torch:
        numbers |= {"torch": torch["torch"], "torch_topk_1_percent_ms": torch["torch_topk_ms"],
                    "torch_topk_1_percent_unsorted_ms": torch["torch_topk_unsorted_ms"],
                    "torch_topk_unsorted_over_top_k_1_percent": round(torch["torch_topk_unsorted_ms"] / numbers["top_k_1_percent_ms"], 2)}
    numbers |= {name: value for name, value in printed_by(folder / "cub.json").items() if name.startswith("cub_")}
    if dram := dram_of_kernels(folder / "profile.csv"):
        numbers["dram_of_kernels"] = dram
    return numbers


def measurements_of(card):
    """The measurements of a card: those that name it, and those that name none."""
    for one in MEASUREMENTS.values():
        named = re.search(r"_([a-z]\d+)$", one.name)
        if one.subject == SUBJECT and (named is None or named.group(1).upper() in card):
            yield one


def missing_figure(one, reports):
    """The first figure that a report lacks; None where all have all."""
    for figure in one.figures:
        for report in reports:
            try:
                results.figure_values(figure, report)
            except (KeyError, ValueError):
                return figure.name
    return None


def commit():
    try:
        return measure.commit()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def fields_of(one, card, reports):
    return {"schema": results.SCHEMA, "measurement": one.name, "date": datetime.datetime.now(datetime.timezone.utc).strftime(results.DATE),
            "commit": commit(), "machine": {"cpu": None, "cores": len(os.sched_getaffinity(0)), "card": card}, "load": "unknown",
            "command": one.command, "note": "Medians on the card's clock. Torch and CUB are of other programs, memory is of Nsight Compute.",
            "repetitions": reports}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="the output of a run of card.sh")
    parser.add_argument("--runs", type=Path, help="folder of the run files (default: `runs` in the first FOLDER)")
    flags = parser.parse_args(arguments)
    try:
        reports = [repetition(folder) for folder in flags.folders]
    except ValueError as error:
        print(f"run_file: {error}", file=sys.stderr)
        return 1
    if len(cards := sorted({report["card"] for report in reports})) > 1:
        print(f"run_file: folders of several cards: {', '.join(cards)}", file=sys.stderr)
        return 1
    runs = flags.runs or flags.folders[0] / "runs"
    written = 0
    for one in measurements_of(cards[0]):
        if missing := missing_figure(one, reports):
            print(f"run_file: {one.name}: left out, no figure '{missing}'")
            continue
        runs.mkdir(parents=True, exist_ok=True)
        target = runs / f"{one.name}.json"
        target.write_text(json.dumps(fields_of(one, cards[0], reports), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        results.read_run(target)
        print(f"run_file: {target}")
        written += 1
    return 0 if written else measure.NOT_HERE


if __name__ == "__main__":
    sys.exit(main())
