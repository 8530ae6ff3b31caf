"""Common parts of this folder's scripts: kernels through millrace_replay, workers with residuals, data, tables, plots.

Run with Debian's python3 (/usr/bin/python3): numpy and matplotlib, and for the networks torch (deploy/setup.sh
--papers).
"""

import argparse
import gzip
import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

SKIPPED = 77

try:
    import matplotlib
    import numpy as np
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
except ImportError as missing:
    print(f"skipped: {missing} (deploy/setup.sh --papers, and /usr/bin/python3)")
    sys.exit(SKIPPED)

ROOT = Path(__file__).resolve().parents[3]
SHARED = Path(os.environ.get("MILLRACE_SHARED") or next((up / "shared" for up in ROOT.parents if (up / "shared").is_dir()), "shared"))
DATA = SHARED / "data"
HEAD = struct.Struct("<5Q3dQ")
COLUMNS_MAX = 110


class Refused(Exception):
    """The program does not know this selection or codec, or not together."""


class Failed(Exception):
    """The program could not code one vector."""


NON_FINITE = 5  # ErrorCode::kNonFinite


class Diverged(Failed):
    """The input of the selection is not finite any more."""


def programs_folder(asked=None, program="millrace_replay"):
    """Where this program and others are: release before dev."""
    folders = [Path(asked)] if asked else [ROOT / "build" / preset / "bin" for preset in ("release", "dev")]
    for folder in folders:
        if (folder / program).exists():
            return folder
    sys.exit(f"no {program} in {', '.join(map(str, folders))}: cmake --build --preset dev --target {program}")


class Replay:
    """One selection and one codec (tests/bench/replay.cc). Texts are those of a job's specification; select "dense" is none at all."""

    def __init__(self, folder, n, select="none", codec="raw+raw", unbiased=False, seed=1):
        self.n, self.select, self.codec = n, select, codec
        command = [str(folder / "millrace_replay"), "--dimension", str(n), "--select", select, "--codec", codec, "--seed", str(seed)]
        command += ["--unbiased"] if unbiased else []
        checked = subprocess.run(command + ["--check"], capture_output=True, text=True, check=False)
        if checked.returncode == 2:
            raise Refused(checked.stderr.strip().removeprefix("millrace_replay: "))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def read(self, size):
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self.process.stdout.readinto(view)
            if not got:
                raise Failed(f"{self.select} with {self.codec}: millrace_replay ended")
            view = view[got:]
        return data

    def step(self, values):
        """Returns the values that a receiver decodes of `values` [n] f32, and their cost."""
        data = memoryview(np.ascontiguousarray(values, np.float32)).cast("B")
        while data:
            data = data[self.process.stdin.write(data):]
        names = ("selected", "decoded", "container_bytes", "index_bytes", "value_bytes", "select_ns", "encode_ns", "decode_ns", "error")
        cost = dict(zip(names, HEAD.unpack(self.read(HEAD.size))))
        decoded = np.frombuffer(self.read(4 * self.n), np.float32)
        if cost["error"]:
            raise (Diverged if cost["error"] == NON_FINITE else Failed)(f"{self.select} with {self.codec}: error {cost['error']}")
        return decoded, cost


class Workers:
    """Workers that sum up through one selection and one codec each.

    keep_rest  error feedback: values that are not decoded stay for the next step. Else they are lost (unbiased
    methods).
    """

    def __init__(self, experiment, count, n, select, codec, unbiased=False, keep_rest=True):
        self.keep_rest = keep_rest and not unbiased
        self.rest = np.zeros((count, n), np.float32)
        self.replays = []
        for worker in range(count):
            self.replays.append(Replay(experiment.folder, n, select, codec, unbiased, seed=experiment.seed + worker))
        self.totals = {}
        self.steps = 0

    def __enter__(self):
        return self

    def __exit__(self, *ending):
        for replay in self.replays:
            replay.__exit__(*ending)

    def exchange(self, gradients):
        """Returns the mean of the decoded gradients of the workers, from gradients [count][n]."""
        total = np.zeros(self.rest.shape[1], np.float32)
        for worker, replay in enumerate(self.replays):
            held = self.rest[worker] + gradients[worker] if self.keep_rest else gradients[worker]
            decoded, cost = replay.step(held)
            total += decoded
            if self.keep_rest:
                self.rest[worker] = held - decoded
            for name, value in cost.items():
                self.totals[name] = self.totals.get(name, 0) + value
        self.steps += 1
        return total / len(self.replays)

    def mean(self, name):
        """Of a worker's step."""
        return self.totals[name] / (self.steps * len(self.replays))


class Experiment:
    """One figure: its flags, its table, its plot, and the paper's results beside it."""

    def __init__(self, name, title, source, program="millrace_replay", partial=False):
        """partial: the script has --only (jobs.py)."""
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--quick", action="store_true", help="the smallest sizes: a trial run, not for its figures")
        parser.add_argument("--out", default="out/papers", help="folder of the PNG and the JSON")
        parser.add_argument("--programs", help="folder of the programs (build/release/bin, else build/dev/bin)")
        parser.add_argument("--seed", type=int, default=1)
        if partial:
            parser.add_argument("--only", metavar="REGEX", help="train these alone, as 'lstm.*RGC'; the others are of the JSON in OUT")
        arguments = parser.parse_args()
        self.only = getattr(arguments, "only", None)
        self.name, self.title, self.source = name, title, source
        self.quick, self.seed = arguments.quick, arguments.seed
        self.out = Path(arguments.out)
        self.folder = programs_folder(arguments.programs, program) if program else None
        self.commit, self.machine = commit(), machine()
        self.skipped, self.findings, self.notes, self.begin = [], [], [], time.monotonic()
        print(f"{title}\n({source})\n", flush=True)

    def skip(self, what, why):
        """Says that a row is left out."""
        self.skipped.append({"what": what, "why": why})
        print(f"  left out: {what}: {why[:160]}", flush=True)

    def known(self, texts, n=4096):
        """Of (name, select, codec, unbiased) those that the program knows; says the others."""
        kept = []
        for name, select, codec, unbiased in texts:
            try:
                with Replay(self.folder, n, select, codec, unbiased):
                    kept.append((name, select, codec, unbiased))
            except Refused as refused:
                self.skip(name, str(refused))
        return kept

    def compare(self, paper, here, why=""):
        """Adds one claim of the paper, the result here, and where it differs, the reason."""
        self.findings.append({"paper": paper, "here": here, "why": why})

    def note(self, text):
        """Adds a sentence about the whole run to its page."""
        self.notes.append(text)

    def finish(self, figure, result):
        self.out.mkdir(parents=True, exist_ok=True)
        image = self.out / f"{self.name}.png"
        figure.savefig(image, dpi=80)
        plt.close(figure)
        took_s = time.monotonic() - self.begin
        for finding in self.findings:
            print(f"\n  paper: {finding['paper']}\n  here:  {finding['here']}")
            if finding["why"]:
                print(f"  why:   {finding['why']}")
        report = {"figure": self.title, "source": self.source, "quick": self.quick, "seed": self.seed, "took_s": round(took_s, 1),
                  "commit": self.commit, "machine": self.machine, "result": result, "findings": self.findings, "left_out": self.skipped}
        report |= {"note": " ".join(self.notes)} if self.notes else {}
        text = json.dumps(rounded(json.loads(json.dumps(report, default=float))), indent=1)
        (self.out / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"\n{image} and its .json, {took_s:.0f} s")


def rounded(value):
    """The same, with floats of six digits: more than any of them is good for."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def commit():
    """The commit of this script, marked where the tree has changes; "unknown" outside of a clone."""
    told = subprocess.run(["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def machine():
    """The processor's name and the number of cores that this process may use."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0] if names else 'a processor without a name'}, {len(os.sched_getaffinity(0))} cores"


def table(rows, columns):
    """Prints rows (dictionaries): columns are (key, title, format)."""
    cells = [[title for _, title, _ in columns]]
    for row in rows:
        cells.append(["" if row.get(key) is None else format(row[key], form) for key, _, form in columns])
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    for number, line in enumerate(cells):
        text = [cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))]
        print("  " + "  ".join(text).rstrip())
        if number == 0:
            print("  " + "-" * min(COLUMNS_MAX, sum(widths) + 2 * (len(widths) - 1)))
    print(flush=True)


def panels(rows, columns, width=5.2, height=3.6):
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, constrained_layout=True)
    for axis in axes.flat:
        axis.grid(True, alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def need_torch():
    """torch on one thread; without it the script ends as skipped."""
    try:
        import torch
    except ImportError:
        print("skipped: no torch (deploy/setup.sh --papers, and /usr/bin/python3)")
        sys.exit(SKIPPED)
    torch.set_num_threads(1)
    return torch


def need_data(*names):
    missing = [name for name in names if not (DATA / name).exists()]
    if missing:
        print(f"skipped: no {', '.join(missing)} in {DATA} (MILLRACE_SHARED names the folder above)")
        sys.exit(SKIPPED)


def trace_models():
    """The module that made the traces: its CNN, its LSTM, its MNIST."""
    need_data("make_traces.py", "mnist-t10k-images-idx3-ubyte.gz", "mnist-t10k-labels-idx1-ubyte.gz", "tinyshakespeare.txt.gz")
    spec = importlib.util.spec_from_file_location("make_traces", DATA / "make_traces.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace(name):
    """accumulator [workers, n] f32 and the layers' sizes of a trace."""
    need_data(f"traces/{name}.npz")
    with np.load(DATA / "traces" / f"{name}.npz") as file:
        return file["accumulator"], file["layers"]


def w8a():
    """Rows [m, 300] f32 dense, labels of -1 and 1."""
    need_data("w8a.svm.gz")
    with gzip.open(DATA / "w8a.svm.gz", "rt") as file:
        lines = file.read().split("\n")
    lines = [line.split() for line in lines if line]
    rows = np.zeros((len(lines), 300), np.float32)
    for number, line in enumerate(lines):
        for cell in line[1:]:
            index, value = cell.split(":")
            rows[number, int(index) - 1] = float(value)
    return rows, np.array([float(line[0]) for line in lines], np.float32)
