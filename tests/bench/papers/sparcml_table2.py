#!/usr/bin/python3
"""[SparCML19, table 2]: linear classifiers over MPI, dense against sparse allreduces, a pass over the data.

    tests/bench/papers/sparcml_table2.py [--quick] [--out FOLDER] [--programs FOLDER]

`millrace-peer train` in network namespaces of 1 Gbit/s (the paper's Greina, Gigabit Ethernet): 4 ranks (the paper: 8), SGD with 1,000
rows a rank and step, on rows with the statistics of URL and Webspam (`millrace data synthetic`), and on the Debian package index
(`millrace data debian`, 2^22 features). Fewer rows than the paper: a pass is a few steps, and times are of a step. Dense is
Millrace's ring, beside it MPI_Allreduce of a vector of the same length by itself. Coordinate descent: a sparse allgather against a dense
one, URL, as in 8.2.

How Webspam's rows fill a sum in is not published. Two things are set beside the rows drawn: the entries that the paper's own speed-up in
communication implies, and how the sequences of three bytes, which Webspam's features are, fill in over this machine's text files.
"""

import random
import shutil
import sys
from pathlib import Path

from experiment import SKIPPED, Experiment, Failed, np, panels, table
from peers import PROGRAM, TRAIN, DataFiles, bench, between_namespaces, flags_of, why_no_namespaces

RANKS, RATE, BATCH = 4, "1gbit", 1000
SPARSE = ["ssar_recursive_doubling", "ssar_split_allgather", "dsar_split_allgather", "auto"]
PAPER = {"webspam": 20.26, "url": 12.65}  # Greina (GigE), LR, 8 nodes, end to end
PAPER_COMMUNICATION = {"webspam": 25.75, "url": 23.81}
PAPER_SCD = {"communication": 24 / 4.5, "seconds": 49 / 26}  # URL, 8 nodes of Piz Daint, an epoch: dense over sparse allgather
FEATURES = {"url": 3_231_961, "webspam": 16_609_143}
TEXT_FOLDERS = ["/usr/share", "/usr/include", "/usr/lib/python3"]
TEXT_NAMES = {".html", ".htm", ".h", ".py", ".txt", ".po", ".xml", ".json", ".js", ".pl", ".pm"}


def steps_of(here, path, model, algorithm, steps):
    """Returns one step's seconds, the seconds of it that wait for sums, and the MB that the rank with most volume
    sent. They are means of the second half, when auto has tried out its candidates."""
    options = {"train": path, "model": model, "algorithm": algorithm, "batch": 100 if here.quick else BATCH, "steps": steps,
               "epochs": 1000, "lr": 0.5, "seed": here.seed}
    epochs = between_namespaces(here, RANKS, RATE, TRAIN, "train", *flags_of(options))["epochs"]
    counted = epochs[len(epochs) // 2:]
    total = sum(epoch["steps"] for epoch in counted)
    def a_step(key):
        return sum(epoch[key] for epoch in counted) / total
    return {"seconds": a_step("seconds"), "waiting": a_step("waiting_s"), "megabytes": a_step("bytes_sent_max") * 1e-6,
            "entries": counted[-1]["entries_mean"], "loss": counted[-1]["loss"]}


def train_all(here, name, features, path, models, steps):
    rows = []
    for model in models:
        dense = steps_of(here, path, model, "dense_ring", max(2, steps // 5))
        rows.append({"data": name, "features": features, "model": model, "algorithm": "dense_ring", **dense})
        for algorithm in SPARSE:
            row = {"data": name, "features": features, "model": model, "algorithm": algorithm, **steps_of(here, path, model, algorithm, steps)}
            row.update(speedup=dense["seconds"] / row["seconds"], communication=dense["waiting"] / row["waiting"])
            rows.append(row)
    return rows


def dense_of_mpi(here, features):
    return bench(here, RANKS, RATE, dimension=features, density=1e-5, algorithm="dense_ring", repeats=2, warmup=1)


def coordinate_descent(here, path, steps):
    """A step's means with either allgather."""
    rows = []
    for form in ("dense", "sparse"):
        options = {"train": path, "optimizer": "scd", "allgather": form, "l2": 1e-6, "steps": steps, "coordinates": 100, "epochs": 1000}
        epochs = between_namespaces(here, RANKS, RATE, TRAIN, "train", *flags_of(options))["epochs"]
        total = sum(epoch["steps"] for epoch in epochs)
        rows.append({"data": "url", "features": FEATURES["url"], "model": "lr, scd", "algorithm": f"{form} allgather",
                     "seconds": sum(epoch["seconds"] for epoch in epochs) / total,
                     "waiting": sum(epoch["waiting_s"] for epoch in epochs) / total,
                     "megabytes": sum(epoch["bytes_sent_max"] for epoch in epochs) / total * 1e-6,
                     "entries": epochs[-1]["entries_mean"], "loss": epochs[-1]["loss"]})
    dense, sparse = rows
    # Both make the same steps, to the bit.
    assert dense["loss"] == sparse["loss"], rows
    sparse["gather_speedup"] = dense["seconds"] / sparse["seconds"]
    sparse["gather_communication"] = dense["waiting"] / sparse["waiting"]
    here.compare(f"SCD, URL, 8 nodes: the sparse allgather {PAPER_SCD['seconds']:.1f} x end to end ({PAPER_SCD['communication']:.1f} x in "
                 "communication) the dense one",
                 f"{sparse['gather_speedup']:.2f} x ({sparse['gather_communication']:.2f} x); MB sent {dense['megabytes']:.3f} against "
                 f"{sparse['megabytes']:.4f}", "4 ranks at 1 Gbit/s; the paper's are 8 on Aries")
    return rows


def trigrams_of_files(files_max):
    """Returns how many sequences of three bytes given numbers of files have together: this machine's text files,
    shuffled."""
    names = [path for folder in TEXT_FOLDERS for path in Path(folder).rglob("*") if path.suffix in TEXT_NAMES and path.is_file()]
    names.sort()
    random.Random(1).shuffle(names)
    seen, rows, of_each, counts = np.zeros(1 << 24, bool), 0, 0, {}
    for name in names:
        try:
            text = np.fromfile(name, np.uint8)[:60_000].astype(np.uint32)
        except OSError:
            continue
        if len(text) < 4_000:
            continue
        found = np.unique(text[:-2] << 16 | text[1:-1] << 8 | text[2:])
        seen[found] = True
        rows, of_each = rows + 1, of_each + len(found)
        if rows in (125, 1_000, 4_000, 8_000):
            counts[rows] = int(seen.sum())
        if rows == files_max:
            break
    return {"files": rows, "a_file": of_each / max(rows, 1), "together": counts}


def fill_in(here):
    """Compares the published facts about Webspam's sums with the drawn rows."""
    here.compare("webspam: how a sum fills in is not published. SSAR split sends k + K entries of 8 bytes where the ring sends 2 N of 4. "
                 f"So {PAPER_COMMUNICATION['webspam']} x in communication implies k + K",
                 f"{FEATURES['webspam'] / PAPER_COMMUNICATION['webspam'] / 1e6:.2f} M entries, 8 ranks of 1,000 rows, if time goes by bytes")
    text = trigrams_of_files(125 if here.quick else 8_000)
    here.compare("the features are sequences of three bytes; in this machine's text files",
                 f"{text['a_file']:.0f} a file of {text['files']}; together " +
                 ", ".join(f"{count:,} in {files:,}" for files, count in text["together"].items()))
    return text


def plot(axis, rows, names):
    best = {}
    for row in rows:
        if "speedup" in row and row["model"] == "lr":
            best.setdefault(row["data"], []).append(row)
    width = 0.2
    for at, algorithm in enumerate(SPARSE):
        heights = [next(row["speedup"] for row in best[name] if row["algorithm"] == algorithm) for name in names]
        axis.bar([x + (at - 1.5) * width for x in range(len(names))], heights, width, label=algorithm)
    papers = [(x, PAPER[name]) for x, name in enumerate(names) if name in PAPER]
    if papers:
        axis.plot(*zip(*papers), "k_", ms=30, label="the paper's, 8 nodes")
    axis.axhline(1, color="black", lw=0.8)
    axis.set_xticks(range(len(names)), names)
    axis.set(title="LR: a step over dense_ring's, 4 ranks, 1 Gbit/s", ylabel="times as fast", yscale="log")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def main():
    here = Experiment("sparcml_table2", "SparCML: linear classifiers over MPI", "[SparCML19, 8.2, table 2]", PROGRAM)
    missing = why_no_namespaces()
    if missing:
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)
    sets = {"url": ["synthetic", "--like", "url", "--rows", 400 if here.quick else 40_000],
            "webspam": ["synthetic", "--like", "webspam", "--rows", 200 if here.quick else 8_000],
            "debian": ["debian", "--dimension", 1 << (12 if here.quick else 22)]}
    if shutil.which("apt-cache") is None:
        here.skip("debian", "there is no apt-cache")
        del sets["debian"]
    rows, alone = [], {}
    with DataFiles(here) as files:
        for name, arguments in sets.items():
            try:
                path = files.make(name, *arguments)
            except Failed as failed:
                here.skip(name, str(failed))
                continue
            features = FEATURES.get(name) or arguments[-1]
            steps = 4 if here.quick else 60
            of_mpi = dense_of_mpi(here, 4096 if here.quick else features)
            alone[name] = {key: row["median_ms"] for key, row in of_mpi.items()}
            rows += train_all(here, name, features, path, ("lr",) if here.quick or name == "debian" else ("lr", "svm"), steps)
            if name == "url":
                rows += coordinate_descent(here, path, steps)
    text = fill_in(here)
    table(rows, [("data", "", "s"), ("features", "features", "d"), ("model", "model", "s"), ("algorithm", "algorithm", "s"),
                 ("seconds", "s a step", ".4f"), ("waiting", "(waiting)", ".4f"), ("megabytes", "MB sent", ".3f"),
                 ("entries", "entries", ".0f"), ("loss", "loss", ".4f"), ("speedup", "speed-up", ".2f"),
                 ("communication", "(waiting)", ".2f"), ("gather_speedup", "over dense", ".2f"),
                 ("gather_communication", "(waiting)", ".2f")])
    for name, ms in alone.items():
        here.compare("baseline: MPI's dense allreduce", f"{name}: MPI_Allreduce alone {ms['openmpi_dense']:.0f} ms, Millrace's ring "
                     f"{ms['dense_ring']:.0f} ms")
    for name, paper in PAPER.items():
        own = [row for row in rows if row["data"] == name and row["model"] == "lr" and "speedup" in row]
        if not own:
            continue
        best = max(own, key=lambda row: row["speedup"])
        here.compare(f"{name}, LR, 8 nodes at 1 Gbit/s: {paper} x end to end ({PAPER_COMMUNICATION[name]} x in communication), SSAR split "
                     "allgather", f"{best['speedup']:.2f} x ({best['communication']:.2f} x), {best['algorithm']}",
                     "4 ranks on two cores, drawn rows; communication is a rank's waiting time for sums, with the slowest rank's "
                     "computation in it")
    figure, axes = panels(1, 1, width=6.4, height=4.0)
    names = [name for name in sets if any(row["data"] == name for row in rows)]
    plot(axes[0][0], rows, names)
    here.finish(figure, {"ranks": RANKS, "rate": RATE, "rows": rows, "dense_alone_ms": alone, "trigrams": text})


if __name__ == "__main__":
    main()
