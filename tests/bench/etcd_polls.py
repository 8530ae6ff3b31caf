#!/usr/bin/env python3
"""Cost of the membership table in etcd: the processor time of its members while shards without a job watch and read it.
Beside it, that of as many bare watch streams, and of as many clients that read 20 times a second, as shards without a
stream do.

    tests/bench/etcd_polls.py [--programs FOLDER] [--shards N] [--members N] [--seconds N] [--json]

Nothing changes in the table. Shards also renew their leases. A share is processor time over time: 0.01 is 1 % of a core.
Exit codes: 0; 77: etcd is not installed.
"""

import argparse
import contextlib
import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from base64 import b64encode
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import etcd_members  # pylint: disable=wrong-import-position
from trace_cost import processor_seconds  # pylint: disable=wrong-import-position

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "/polls"
SETTLE_S = 2
READ_EVERY_S = 0.05
CHANGES, IDENTITY = (b64encode(f"{PREFIX}/{name}".encode()).decode() for name in ("changes", "identity"))
TRANSACTIONS = re.compile(r'^grpc_server_handled_total\{.*grpc_method="Txn".*\} (\S+)$', re.MULTILINE)
STREAMS = re.compile(r"^etcd_debugging_mvcc_watcher_total (\S+)$", re.MULTILINE)


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
            stream.request("POST", "/v3/watch", json.dumps({"create_request": {"key": CHANGES}}))
            said = json.loads(stream.getresponse().readline())
            if not said["result"]["created"]:
                raise SystemExit(f"no watch: {said}")
            streams.append(stream)
        yield
    finally:
        for stream in streams:
            stream.close()


@contextlib.contextmanager
def reads(etcd, count, members):
    """Runs clients that read as a shard without a stream does, at the members in turn."""
    over, body = threading.Event(), json.dumps({"success": [{"request_range": {"key": key}} for key in (CHANGES, IDENTITY)]})

    def read(number):
        client = http.client.HTTPConnection(etcd.hosts[0], etcd.client_ports[number % members], timeout=60)
        while not over.wait(READ_EVERY_S):
            client.request("POST", "/v3/kv/txn", body)
            client.getresponse().read()
        client.close()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def counted(etcd, pattern):
    """Returns the sum of a metric of all members."""
    total = 0.0
    for port in etcd.client_ports:
        with urllib.request.urlopen(f"http://{etcd.hosts[0]}:{port}/metrics", timeout=60) as answer:
            total += sum(float(value) for value in pattern.findall(answer.read().decode()))
    return total


def measure_shards(etcd, options, members, idle):
    """Returns the figures of shards; a watch stream of each must be open."""
    with shards(options.programs, etcd.table(PREFIX), options.shards) as pids:
        until = time.monotonic() + etcd_members.WAIT_S
        while counted(etcd, STREAMS) < options.shards:
            if time.monotonic() > until:
                raise SystemExit("the shards do not open their watch streams")
            time.sleep(0.1)
        begin, first = time.monotonic(), counted(etcd, TRANSACTIONS)
        of_members = share(members, options.seconds)
        transactions = (counted(etcd, TRANSACTIONS) - first) / (time.monotonic() - begin)
        own = share(pids, options.seconds)
    return {"shards_share": of_members, "share_a_shard": (of_members - idle) / options.shards, "shard_share": own / options.shards,
            "reads_a_shard": transactions / options.shards}


def measure(options, folder):
    etcd = etcd_members.Members(folder, options.members)
    try:
        etcd.leader()
        members = [one.pid for one in etcd.processes]
        idle = share(members, options.seconds)
        with watches(etcd, options.shards, options.members):
            watched = share(members, options.seconds)
        with reads(etcd, options.shards, options.members):
            read = share(members, options.seconds)
        return {"members": options.members, "shards": options.shards, "idle_share": idle, "watched_share": watched, "read_share": read,
                **measure_shards(etcd, options, members, idle)}
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
              f"{result['watched_share']:.3f}, with {options.shards} clients that read 20 times a second {result['read_share']:.3f}, with "
              f"{options.shards} shards {result['shards_share']:.3f} ({result['reads_a_shard']:.1f} reads a second each), and a shard "
              f"{result['shard_share']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
