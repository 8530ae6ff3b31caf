#!/usr/bin/env python3
"""Trains a transformer with PyTorch behind slow links: dense DDP over gloo, then through Millrace.

Four ranks and two shards, each on a host of its own. A host is a network namespace (root); where there are
none, all run on this machine's loopback, whose link has no limit. Each run trains the same network on the same batches.
The report has held-out loss, time and bytes; bytes are counted at the hosts' interfaces, alike for all runs. With the
defaults the runs take about 12 minutes.

Ranks are plain processes with torchrun's environment. torchrun itself starts one agent a host, and that of Debian 13
asks for a store with libuv, which Debian's torch lacks.

deploy/demo.sh --torch builds everything and starts this program.
"""

import argparse
import datetime
import gzip
import json
import os
import platform
import shutil
import signal
import sys
from pathlib import Path

import curves
import lab
import plot
from processes import Failed, Processes

INTERRUPTED = 130
LICENCES = Path("/usr/share/common-licenses")
RUNS = ("f32", "bf16", "millrace")
# As time_to_loss (tests/bench/papers): dense training is best at half of the learning rate; most of an exchange is beside
# the backward pass.
DENSE_LR, BUCKET_MB = 0.5, 5


def say(text):
    print(f"demo: {text}", file=sys.stderr, flush=True)


class Progress:
    """Shows one line that changes, or a line for each row where the output is no terminal."""

    def __init__(self, label, steps):
        self._label, self._steps, self._shown = label, steps, 0

    def show(self, step, loss, seconds):
        text = f"{self._label}: step {step} of {self._steps}, loss {loss:.3f}, {seconds:.1f} s"
        if sys.stderr.isatty():
            sys.stderr.write("\r" + text.ljust(self._shown))
            sys.stderr.flush()
            self._shown = len(text)
        else:
            say(text)

    def end(self):
        if self._shown:
            sys.stderr.write("\n")
            self._shown = 0


def options(arguments):
    parser = argparse.ArgumentParser(prog="deploy/demo.sh --torch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link-rate", default="100mbit", metavar="RATE",
                        help="of each host's link; none: no namespaces (%(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--shards", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=80, help="of the dense runs (%(default)s)")
    parser.add_argument("--millrace-steps", type=int, default=None, metavar="STEPS", help="1.5 times --steps unless given")
    parser.add_argument("--report-every", type=int, default=10, metavar="STEPS", help="(%(default)s)")
    parser.add_argument("--runs", default=",".join(RUNS), help="some of %(default)s")
    parser.add_argument("--select", default="topk:0.03", help="entries that a rank sends (%(default)s)")
    parser.add_argument("--codec", default="gap+qsgd4", help="of the entries, and of their sums (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.03, metavar="RATE",
                        help="of SGD with Nesterov's momentum of 0.9 (%(default)s); dense runs have half of it")
    parser.add_argument("--width", type=int, default=320, help="of the transformer (%(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="windows of 64 characters a rank and step (%(default)s)")
    parser.add_argument("--data", type=Path, metavar="FILE", help="gzipped text; else Tiny Shakespeare of ../shared/data, or the "
                        "licences that every Debian has")
    parser.add_argument("--folder", type=Path, default=lab.ROOT / "build/torch_demo", help="of the results (build/torch_demo)")
    parser.add_argument("--build", type=Path, default=lab.ROOT / "build/release", metavar="FOLDER",
                        help="with bin/ and python/ (build/release)")
    args = parser.parse_args(arguments)
    args.runs = args.runs.split(",")
    unknown = [name for name in args.runs if name not in RUNS]
    if unknown or len(set(args.runs)) < len(args.runs):
        parser.error(f"--runs takes some of {','.join(RUNS)}, each once")
    if args.millrace_steps is None:
        args.millrace_steps = (3 * args.steps + 1) // 2
    for name in ("ranks", "shards", "steps", "millrace_steps", "report_every", "width", "layers", "batch"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is at least 1")
    return args


def text_file(args):
    """Returns the file with the text to learn, and its description."""
    if args.data:
        return args.data, str(args.data)
    for folder in lab.ROOT.parents:
        if (shared := folder / "shared/data/tinyshakespeare.txt.gz").exists():
            return shared, "Tiny Shakespeare"
    return licences(args)


def licences(args):
    """Writes the texts of a folder that every Debian has. Returns as text_file()."""
    parts = sorted(path for path in LICENCES.iterdir() if path.is_file() and not path.is_symlink())
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in parts)
    target = args.folder / "licences.txt.gz"
    with gzip.open(target, "wt", encoding="utf-8") as file:
        file.write(text)
    return target, f"the {len(parts)} licences of Debian, {len(text) // 1000} kB"


def train(args, hosts, name, text):
    """Runs one training. Returns the run as curves.py describes it."""
    steps = args.millrace_steps if name == "millrace" else args.steps
    run = {"name": name, "label": f"Millrace {args.select}, {args.codec}" if name == "millrace" else f"dense {name} over gloo", "rows": []}
    logs = args.folder / name
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with Processes(hosts, logs, args.build / "bin", args.build / "python") as processes:
        arguments = ["--data", text, "--steps", steps, "--report-every", args.report_every, "--report-windows", 16,
                     "--width", args.width, "--layers", args.layers, "--batch", args.batch, "--bucket-mb", BUCKET_MB]
        if name == "millrace":
            servers = processes.start_shards(range(args.ranks + 1, args.ranks + args.shards + 1))
            arguments += ["--servers", ",".join(servers), "--select", args.select, "--codec", args.codec,
                          "--codec-down", args.codec, "--sgd", args.lr]
        else:
            arguments += ["--dense", name, "--sgd", DENSE_LR * args.lr]
        progress, sent_before = Progress(run["label"], steps), 0
        for line in processes.lines_of(processes.start_ranks(args.ranks, arguments)):
            if row := curves.row_of(line):
                sent = hosts.bytes_sent(args.ranks + args.shards)
                if not run["rows"]:
                    sent_before = sent
                run["rows"].append([*row, sent - sent_before])
                progress.show(*row)
        progress.end()
    if not run["rows"] or run["rows"][-1][0] != steps:
        raise Failed(f"{run['label']} ended before step {steps}: logs are in {logs}")
    return run


def report_of(args, limited, runs, description):
    """Returns the report, which the JSON file has and the plot shows."""
    target = curves.with_figures(runs)
    link = args.link_rate if limited else None
    behind = f"behind {link}" if link else "on one machine, no limit of the link"
    return {"format": curves.FORMAT, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "title": f"Transformer, width {args.width}, {args.layers} layers; {args.ranks} ranks {behind}",
            "link": link, "ranks": args.ranks, "shards": args.shards, "text": description, "width": args.width,
            "layers": args.layers, "batch": args.batch, "select": args.select, "codec": args.codec, "lr": args.lr,
            "cores": os.cpu_count(), "machine": platform.machine(), "target": target, "runs": runs}


def publish(args, report):
    """Prints the table, and writes demo.json and demo.png."""
    print("\n".join(curves.table_of(report["runs"], report["target"])))
    if sentence := curves.sentence_of(report["runs"]):
        print(sentence)
    data, picture = args.folder / "demo.json", args.folder / "demo.png"
    data.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"numbers: {data}")
    try:
        plot.draw(report, picture)
        print(f"plot:    {picture}")
    except ImportError:
        say(f"no plot: python3-matplotlib is missing. With it: /usr/bin/python3 worker/python/demo/plot.py {data} {picture}")


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    args = options(sys.argv[1:])
    hosts = lab.present_lab()
    limited = isinstance(hosts, lab.Namespaces)
    if not limited and args.link_rate != "none":
        missing = lab.lacking()
        if not missing:
            lab.enter_lab(args.ranks + args.shards, args.link_rate, [sys.executable, __file__], sys.argv[1:])
        say(f"no network namespaces here ({missing}): everything runs on the loopback, and the link is unlimited")
    signal.signal(signal.SIGTERM, interrupted)
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        text, description = text_file(args)
        say(f"{args.ranks} ranks and {args.shards} shards learn {description}")
        runs = [train(args, hosts, name, text) for name in args.runs]
    except Failed as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted: all processes have ended")
        return INTERRUPTED
    publish(args, report_of(args, limited, runs, description))
    return 0


if __name__ == "__main__":
    sys.exit(main())
