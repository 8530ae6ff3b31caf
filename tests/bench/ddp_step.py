#!/usr/bin/env python3
"""Time that a step spends in communication: DDP over gloo in f32 and in bf16, and DDP with Millrace's hook.

    tests/bench/ddp_step.py [--programs FOLDER] [--package FOLDER] [--link-rate 1gbit] [--rounds N] [--json]

Four ranks and two shards, each a host of its own behind the rate (deploy/netlab.sh). Needs root, Debian's PyTorch (run
with /usr/bin/python3), and built millrace-server and package.

The network has a few wide layers, so that its gradient costs little beside its size. All exchanges have the same
network and batches, and run in turn within each round. A step is a forward and a backward pass without an optimizer;
it lasts until the last rank's end. The same step without communication is DDP's no_sync(). The difference of both is
the time in communication; ratios are those of one round, and medians are over rounds.

    f32, bf16           DDP over gloo; bf16 by worker/python/examples/bf16_hook.py, as gloo of torch 1.13 adds none
    millrace            select topk:0.01, values without loss
    millrace_reselect   the same, where the shards return the largest 1 % of the sum, and keep the rest for later
    passes              no exchange: one pass over memory that adds each gradient to a residual, and zeroes the gradient. No
                        selection with error feedback has less.

processor_ms is the processor time that communication adds to a step, summed over the ranks; shards_processor_ms is the
shards' in a step.

Limits: all processes share this machine's processors, so the selections and codings of all ranks wait for each other.
With fewer processors than hosts, Millrace's time is bound by processors, and gloo's f32 by the link. bf16 is bound by both:
the hook's additions and conversions take processors as well. A ratio to bf16 is lower than one to the bytes at the link's rate.

Exit codes: 0 measured and within the goals (--json: measured), 1 beyond them or failed, 77 this machine lacks something.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path

from rows import print_json
from store_rows import SKIPPED, build
from trace_cost import ROOT, quartile

sys.path.insert(0, str(ROOT / "worker/python/demo"))
import lab  # pylint: disable=wrong-import-position
from processes import Failed, Processes  # pylint: disable=wrong-import-position

RANK = Path(__file__).with_name("ddp_step_rank.py")
RANKS, SHARDS = 4, 2
OVER_F32_MAX, OVER_BF16_MAX = 0.06, 0.12
MS = 1e3


class Steps:
    """The steps of all ranks by scheme, without those of the warm-up.

    Raises  Failed: ranks have different gradients after an exchange.
    """

    def __init__(self, records):
        self._ranks = {}  # of one step
        for record in records:
            if record["round"] >= 0:
                self._ranks.setdefault((record["scheme"], record["talks"], record["round"]), []).append(record)
        self.schemes = list(dict.fromkeys(scheme for scheme, _, _ in self._ranks))
        self._rounds = sorted({number for _, _, number in self._ranks})
        for (scheme, talks, number), ranks in self._ranks.items():
            if talks and len({record["checksum"] for record in ranks}) > 1:
                raise Failed(f"{scheme}, round {number}: the ranks have different gradients after the exchange")

    def of(self, scheme, talks, field, join=max):
        """Returns a field in the order of the rounds, the ranks' values joined."""
        return [join(record[field] for record in self._ranks[scheme, talks, number]) for number in self._rounds]

    def beyond_alone(self, scheme, field, join=max):
        """Returns the part of a field that the communication adds, in the order of the rounds."""
        return [step - alone for step, alone in zip(self.of(scheme, True, field, join), self.of(scheme, False, field, join))]


def rows_of(steps, labels):
    """Returns a row for each scheme."""
    communication = {scheme: steps.beyond_alone(scheme, "seconds") for scheme in steps.schemes}

    def over(scheme, other):
        return statistics.median(one / dense for one, dense in zip(communication[scheme], communication[other]))

    rows = []
    for scheme, seconds in communication.items():
        rows.append({
            "scheme": scheme, "label": labels[scheme], "rounds": len(seconds),
            "step_ms": MS * statistics.median(steps.of(scheme, True, "seconds")), "alone_ms": MS * statistics.median(steps.of(scheme, False, "seconds")),
            "communication_ms": MS * statistics.median(seconds), "communication_quartile_1_ms": MS * quartile(seconds, 1),
            "communication_quartile_3_ms": MS * quartile(seconds, 3), "over_f32": over(scheme, "f32"), "over_bf16": over(scheme, "bf16"),
            "processor_ms": MS * statistics.mean(steps.beyond_alone(scheme, "processor_s", sum)),
            "shards_processor_ms": MS * statistics.mean(steps.of(scheme, True, "shards_processor_s")),
            "bytes_sent": statistics.median(steps.of(scheme, True, "bytes_sent")),
            "bytes_received": statistics.median(steps.of(scheme, True, "bytes_received"))})
    return rows


def measure(arguments, folder):
    """Returns the rows of one run within this lab."""
    run = {name: getattr(arguments, name) for name in ("width", "layers", "batch", "warmup", "rounds")}
    with Processes(lab.present_lab(), folder, arguments.programs, arguments.package) as processes:
        run["servers"] = ",".join(processes.start_shards(range(RANKS + 1, RANKS + SHARDS + 1)))
        run["shards"] = processes.pids()
        said = [line for line in processes.lines_of(processes.start_ranks(RANKS, [json.dumps(run)], RANK)) if line.startswith("{")]
    report = json.loads(said[-1])
    labels = {"f32": "DDP over gloo, f32", "bf16": "DDP over gloo, bf16", "millrace": "Millrace, 1 %",
              "millrace_reselect": "Millrace, 1 %, 1 % returns", "passes": "one pass over memory"}
    return rows_of(Steps(report["steps"]), labels)


def show(rows):
    print(f"{'':27} step ms  alone ms  communication ms (quartiles)  / f32     / bf16  processor ms  at shards  MB sent  received")
    for row in rows:
        print(f"{row['label']:27}{row['step_ms']:8.1f}{row['alone_ms']:10.1f}{row['communication_ms']:18.1f}"
              f" ({row['communication_quartile_1_ms']:.0f} to {row['communication_quartile_3_ms']:.0f})".ljust(81)
              + f"{row['over_f32']:8.3f}{row['over_bf16']:11.3f}{row['processor_ms']:14.1f}{row['shards_processor_ms']:11.1f}"
              f"{row['bytes_sent'] / 1e6:9.2f}{row['bytes_received'] / 1e6:10.2f}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=build("bin"))
    parser.add_argument("--package", type=Path, default=build("python"))
    parser.add_argument("--link-rate", default="1gbit", metavar="RATE", help="of each host's link (%(default)s)")
    parser.add_argument("--width", type=int, default=2048, help="of a layer (%(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="of a rank (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--warmup", type=int, default=3, help="rounds that do not count (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args()


def main():
    arguments = parsed()
    missing = [name for name in ("torch", "numpy") if importlib.util.find_spec(name) is None]
    missing += [str(path) for path in (arguments.programs / "millrace-server", arguments.package / "millrace") if not path.exists()]
    if missing:
        print(f"skipped: no {', '.join(missing)} (Debian: python3-torch; --package, --programs)")
        return SKIPPED
    if not isinstance(lab.present_lab(), lab.Namespaces):
        if lacking := lab.lacking():
            print(f"skipped: {lacking}")
            return SKIPPED
        lab.enter_lab(RANKS + SHARDS, arguments.link_rate, [sys.executable, __file__], sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="millrace-ddp-step-") as folder:
        try:
            rows = measure(arguments, Path(folder))
        except Failed as failure:
            if failure.code == SKIPPED:
                print(f"skipped: {failure}")
            else:
                print(f"ddp_step: {failure}", file=sys.stderr)
            return SKIPPED if failure.code == SKIPPED else 1
    if arguments.json:
        print_json(rows)
        return 0
    show(rows)
    lossless = next(row for row in rows if row["scheme"] == "millrace")
    return 0 if lossless["over_f32"] <= OVER_F32_MAX and lossless["over_bf16"] <= OVER_BF16_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
