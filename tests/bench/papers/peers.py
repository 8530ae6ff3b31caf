"""Common parts of the figures of the peer mode: allreduces simulated and between network namespaces, and training."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from experiment import ROOT, Failed

NETLAB = ROOT / "deploy/netlab.sh"
PROGRAM = "millrace-bench"
TRAIN = "millrace-peer"
MPIRUN_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def flags_of(options):
    """dimension=5, work_scale=1 as --dimension 5 --work-scale 1; a list as one word with commas, True as the flag alone."""
    words = []
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(",".join(value) if isinstance(value, list) else str(value))
    return words


def last_json(command):
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                           env={**os.environ, **MPIRUN_ROOT})
    if ended.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit code {ended.returncode}: {ended.stderr.strip()[-300:]}")
    return json.loads(ended.stdout.strip().split("\n")[-1])


def simulate(here, algorithms, **options):
    """{algorithm: row} of `millrace-bench simulate`; what did not fit or took too long is left out, and said. Of an algorithm that
    re-evaluates, the row of the long run."""
    rows = {}
    for row in last_json([here.folder / PROGRAM, "simulate", "--json", *flags_of({"algorithm": algorithms, **options})])["rows"]:
        name = row["algorithm"]
        if "error" in row:
            here.skip(f"{name}, {options.get('ranks')} ranks", row["error"])
        elif row["steps"] in ("all", "amortised") or (name not in rows and options.get("steps", 1) == 1):
            assert row["correct"], row
            rows[name] = row
    return rows


def why_no_namespaces():
    """Returns None where this machine can put ranks into network namespaces, else the missing requirement."""
    ended = subprocess.run([str(NETLAB), "check"], capture_output=True, text=True, check=False)
    return None if ended.returncode == 0 else (ended.stdout + ended.stderr).strip()


def between_namespaces(here, ranks, rate, program, *arguments):
    """The JSON of a command of millrace-peer or millrace-bench, a rank in a namespace each."""
    return last_json([NETLAB, "mpirun", "--ranks", ranks, "--link-rate", rate, "--", here.folder / program, *arguments, "--json"])


def bench(here, ranks, rate, **options):
    """{algorithm: row} of `millrace-bench peers` between namespaces; openmpi_dense among them."""
    rows = between_namespaces(here, ranks, rate, PROGRAM, "peers", *flags_of(options))["rows"]
    for row in rows:
        assert row["correct"], row
    return {row["algorithm"]: row for row in rows}


def select_ms(here, n, density, repeats=5):
    """{selection: median ms} of `millrace-bench select` on Gaussian data, one thread."""
    rows = last_json([here.folder / PROGRAM, "select", "--dimension", n, "--density", density, "--repeats", repeats, "--json"])["rows"]
    return {row["algorithm"]: row["ms"] for row in rows}


class DataFiles:
    """Training files of `millrace data`, in a folder that goes with them."""

    def __init__(self, here):
        self.here, self.folder = here, tempfile.TemporaryDirectory(prefix="millrace-papers-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def make(self, name, *arguments):
        """The file that `millrace data ARGUMENTS` writes."""
        path = Path(self.folder.name) / f"{name}.svm"
        last_json([self.here.folder / "millrace", "data", *arguments, "--output", path, "--json"])
        return path
