#!/usr/bin/env python3
"""Cost of the poll of a membership table in etcd: the processor time of its members while shards poll, and while as many
watch streams wait for the same key.

    tests/bench/etcd_polls.py [--programs FOLDER] [--shards N] [--members N] [--seconds N] [--json]

No job runs, so nothing changes in the table. Polls include the renewal of the shards' leases. A share is processor time
over time: 0.01 is 1 % of a core.
Exit codes: 0; 77: etcd is not installed.
"""

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import etcd_members  # pylint: disable=wrong-import-position
from trace_cost import processor_seconds  # pylint: disable=wrong-import-position

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "/polls"
SETTLE_S = 2


def share(pids, seconds):
    """Returns the processor time of the processes from now on, over the time."""
    time.sleep(SETTLE_S)
    begin, first = time.monotonic(), processor_seconds(pids)
    time.sleep(seconds)
    return (processor_seconds(pids) - first) / (time.monotonic() - begin)


@contextlib.contextmanager
def shards(programs, table, count):
    """Starts shards that share the table. Yields their numbers of processes."""
    running = []
    try:
        for shard in range(count):
            running.append(subprocess.Popen([programs / "millrace-server", "--shard", str(shard), "--shards", str(count), "--table", table, "--listen",
                                             "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            line = json.loads(running[-1].stdout.readline())
            if line["event"] != "listening":
                raise SystemExit(line["error"])
        yield [one.pid for one in running]
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.communicate()


@contextlib.contextmanager
def watches(etcd, count, members):
    """Opens streams that wait for a change of one key, at the members in turn."""
    streams = []
    try:
        for number in range(count):
            stream = http.client.HTTPConnection(etcd.hosts[0], etcd.client_ports[number % members], timeout=60)
            stream.request("POST", "/v3/watch", json.dumps({"create_request": {"key": b64encode(f"{PREFIX}/changes".encode()).decode()}}))
            said = json.loads(stream.getresponse().readline())
            if not said["result"]["created"]:
                raise SystemExit(f"no watch: {said}")
            streams.append(stream)
        yield
    finally:
        for stream in streams:
            stream.close()


def measure(options, folder):
    etcd = etcd_members.Members(folder, options.members)
    try:
        etcd.leader()
        members = [one.pid for one in etcd.processes]
        idle = share(members, options.seconds)
        with watches(etcd, options.shards, options.members):
            watched = share(members, options.seconds)
        with shards(options.programs, etcd.table(PREFIX), options.shards) as pids:
            of_members, of_shards = share(members, options.seconds), share(pids, options.seconds)
        return {"members": options.members, "shards": options.shards, "idle_share": idle, "watched_share": watched, "polled_share": of_members,
                "shard_share": of_shards / options.shards, "poll_share_a_shard": (of_members - idle) / options.shards}
    finally:
        etcd.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not etcd_members.is_here():
        print("etcd is not installed (deploy/setup.sh --tests)", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(prefix="millrace-polls-") as folder:
        result = measure(options, folder)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{options.members} members, as shares of a core: idle {result['idle_share']:.3f}, with {options.shards} watches "
              f"{result['watched_share']:.3f}, with {options.shards} shards that poll {result['polled_share']:.3f}, and a shard {result['shard_share']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
