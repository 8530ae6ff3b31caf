#!/usr/bin/python3
"""Trainings of PyTorch as real jobs: each rank and each shard is a process in a network namespace of its own.

    jobs.py RUN-FILE        runs one training within a lab (deploy/netlab.sh run); the scripts of figures call it

A run is the object that job_rank.py takes, with "ranks", "shards" and "rate". Runs are kept in a folder, so that an
interrupted script continues. With --out results/ they are committed: a script of hours is run in pieces. A script with
--only makes the trainings whose names have the expression, and takes the others from its own JSON in OUT.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from experiment import ROOT, SKIPPED, Failed, commit, rounded
from peers import why_no_namespaces

sys.path.insert(0, str(ROOT / "worker/python/demo"))
import lab  # pylint: disable=wrong-import-position
from processes import Failed as ProcessFailed  # pylint: disable=wrong-import-position
from processes import Processes  # pylint: disable=wrong-import-position

RANK = Path(__file__).with_name("job_rank.py")
FP16 = ("16 bits are fp16, as torch 1.13's gloo has no bf16. gloo adds fp16 in software: at 1 Gbit/s and more its time is of "
        "processors, not of the link.")
BF16 = ("16 bits are bf16. gloo of torch 1.13 does not add it: the ranks exchange bytes, and add. At 1 Gbit/s and more this takes "
        "processors' time, too.")
AXES = {"step": "step", "seconds": "seconds of training", "bytes": "bytes on all links"}  # of a curve: keys of its rows


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def first_with(rows, quality, key="seconds"):
    """Returns the time, or another key, at which a training first has at least this quality, on straight lines between its rows, or None."""
    before = None
    for row in rows:
        if row["quality"] >= quality:
            if before is None:
                return row[key]
            share = (quality - before["quality"]) / (row["quality"] - before["quality"])
            return before[key] + share * (row[key] - before[key])
        before = row
    return None


def curve(results, key):
    """Returns the mean of a key over the trainings, a value for each of their reports. Of "bytes", those since the first report."""
    return [mean(result["rows"][at][key] for result in results) for at in range(len(results[0]["rows"]))]


def draw_curves(axis, results_of, key, value_of, dashed):
    """Draws a line for each name against a key of AXES. Bytes have a log axis, on which the first report has no place.

    results_of  {name: trainings}.
    value_of    returns a name's values, one for each report, of its trainings.
    dashed      says which names have a dashed line.
    """
    begin = 1 if key == "bytes" else 0
    for name, results in results_of.items():
        axis.plot(curve(results, key)[begin:], value_of(results)[begin:], label=name, ls="--" if dashed(name) else "-")
    axis.set_xlabel(AXES[key])
    if key == "bytes":
        axis.set_xscale("log")


def a_step(result, what):
    """Returns the mean of "seconds" or "bytes" over all steps of a training."""
    rows = result["rows"]
    return (rows[-1][what] - rows[0][what]) / rows[-1]["step"]


def need_namespaces():
    """Ends the script as skipped where this machine cannot make network namespaces."""
    if lacking := why_no_namespaces():
        print(f"skipped: {lacking}")
        sys.exit(SKIPPED)


def earlier_report(here, names):
    """Returns the report in OUT that --only completes. Ends the script with a sentence where there is nothing to complete.

    names  of all trainings of the script.
    """
    try:
        wanted = [name for name in names if re.search(here.only, name)]
    except re.error as wrong:
        sys.exit(f"--only: '{here.only}' is no regular expression: {wrong}")
    if not wanted:
        sys.exit(f"--only: no training has '{here.only}' in its name. Their names: {'; '.join(names)}")
    path = here.out / f"{here.name}.json"
    if not path.exists():
        sys.exit(f"--only completes {path}, which is missing: run the script without --only first")
    report = json.loads(path.read_text(encoding="utf-8"))
    if report["quick"]:
        sys.exit(f"--only completes a full run, but --quick wrote {path}: run the script without --only first")
    return report


def half_of(trainings):
    """Returns the 16-bit type of dense trainings; None where some are taken over: an earlier page has it."""
    kinds = {training.get("note") for training in trainings}
    return kinds.pop() if len(kinds) == 1 else None


class Jobs:
    """Runs trainings with the programs of an Experiment, and keeps their results in OUT/jobs/NAME-HASH.json.

    The package of Python is in the programs' ../python. commits: of the programs of all results so far. before: the
    result in OUT that --only completes, or None.
    """

    def __init__(self, here, names=()):
        """names: of all trainings of a script with --only."""
        self.here, self.commits, self.before = here, set(), None
        self.machines_before = []
        if here.only and not here.quick:
            report = earlier_report(here, names)
            self.before = report["result"]
            self.machines_before = self.before.get("machines", [report["machine"]])
            self.commits |= set(self.before["commits"])
        self._trial = tempfile.TemporaryDirectory(prefix="millrace-jobs-") if here.quick else None  # a trial run reuses none
        self.folder = Path(self._trial.name) if self._trial else here.out / "jobs"
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, name, run):
        """Returns {"rows": [{"step", "loss", "quality", "seconds", "processor", "bytes"}], "parameters", "commit", …} of one training.

        bytes  that all hosts have sent since the first row.
        Ends the script as skipped where a rank did. Raises Failed: a process ended with an error.
        """
        asked = json.dumps(run, sort_keys=True)
        kept = self.folder / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}.json"
        if not kept.exists():
            self._make(name, run, kept)
        result = json.loads(kept.read_text(encoding="utf-8"))
        self.commits.add(result["commit"])
        return result

    def taken_over(self, name):
        """Returns the trainings of this name, one for each seed, from the JSON in OUT; None: they are to be made."""
        if self.before is None or name not in self.before["curves"] or re.search(self.here.only, name):
            return None
        return [{"rows": rows} for rows in self.before["curves"][name]]

    def add_notes(self, half):
        """Adds to the page where its parts are from, and what `half`, the 16-bit type of a dense training, means for its time.

        Returns  {"half", "machines"}, for the JSON.
        """
        half = half or (self.before or {}).get("half")
        if half:
            self.here.note({"fp16": FP16, "bf16": BF16}[half])
        if self.before:
            self.here.note(f"Run with --only '{self.here.only}'. The rest is of commit {' and '.join(self.before['commits'])}, "
                           f"on {' and '.join(self.machines_before)}.")
        elif len(self.commits) > 1:  # an interrupted script has continued
            self.here.note(f"Its trainings are of commits {', '.join(sorted(self.commits))}.")
        return {"half": half, "machines": list(dict.fromkeys([*self.machines_before, self.here.machine]))}

    def _make(self, name, run, kept):
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump({**run, "programs": str(self.here.folder.resolve())}, file)
            file.flush()
            command = [str(lab.NETLAB), "run", str(run["ranks"] + run["shards"]), run["rate"], "--", sys.executable, __file__, file.name]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == SKIPPED:
            print(f"skipped: {name}: {ended.stderr.strip()[-1000:]}")
            sys.exit(SKIPPED)
        if ended.returncode != 0:
            raise Failed(f"{name}: {ended.stderr.strip()[-1000:]}")
        result = {**json.loads(ended.stdout.strip().split("\n")[-1]), "run": run, "commit": commit()}
        partial = kept.with_suffix(".part")
        partial.write_text(json.dumps(rounded(result)) + "\n", encoding="utf-8")
        partial.rename(kept)


def train(run, folder):
    """Returns the result of one training within this lab."""
    hosts = lab.present_lab()
    programs = Path(run["programs"])
    with Processes(hosts, folder, programs, programs.parent / "python") as processes:
        all_hosts = run["ranks"] + run["shards"]
        if run["shards"]:
            run["servers"] = ",".join(processes.start_shards(range(run["ranks"] + 1, all_hosts + 1)))
        ranks = processes.start_ranks(run["ranks"], [json.dumps(run)], RANK)
        result, sent_before = {"rows": []}, 0
        for line in processes.lines_of(ranks):
            if not line.startswith("{"):
                continue
            told = json.loads(line)
            if "step" not in told:
                result |= told
                continue
            sent = hosts.bytes_sent(all_hosts)
            if not result["rows"]:
                sent_before = sent
            result["rows"].append({**told, "bytes": sent - sent_before})
    if not result["rows"] or result["rows"][-1]["step"] != run["steps"]:
        raise ProcessFailed("rank 0 ended before its last step")
    return result


def main():
    run = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="millrace-jobs-") as folder:
        try:
            print(json.dumps(train(run, Path(folder))))
        except ProcessFailed as error:
            print(error, file=sys.stderr)
            return SKIPPED if error.code == SKIPPED else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
