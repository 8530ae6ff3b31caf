#!/usr/bin/env python3
"""Writes the seeds of the fuzzers that decode a format with a version: tests/fuzz/corpus/NAME, from protocol/vectors.

    tests/fuzz/seeds.py

A test of C++ keeps the vectors current, and seeds_test.py compares the seeds with them. So no seed is of a version that
its fuzzer's decoder refuses.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
SWITCH_ADDRESS = b"192.0.2.7:7700"
SWITCH_JOB = 7


def vectors(name):
    return json.loads((ROOT / "protocol/vectors" / name).read_text(encoding="utf-8"))["vectors"]


def file_name(name):
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def frames():
    """The fuzzer's first byte is the size of the payload."""
    for vector in vectors("messages.json"):
        yield file_name(vector["name"]), bytes([len(vector["payload"]) // 2]) + bytes.fromhex(vector["envelope"])


def number(value):
    return value.to_bytes(4, "little")


def switch_job(vector):
    """The specification with path switch, an address and a job at the switch. The vectors have no such job."""
    switch = vector["decoded"]["switch"]
    behind = b"".join(number(switch[field]) for field in ("slots", "lanes", "packet_bytes"))
    before = b"\x01" + b"\0\0" + number(0) + behind  # path, address, job
    data = bytes.fromhex(vector["bytes"])
    if data.count(before) != 1:
        raise ValueError("the fields of path switch are not where this script expects them")
    address = len(SWITCH_ADDRESS).to_bytes(2, "little") + SWITCH_ADDRESS
    return data.replace(before, b"\x02" + address + number(SWITCH_JOB) + behind)


def job_specifications():
    smallest, example = [vector for vector in vectors("records.json") if vector["kind"] == "job specification"]
    yield "smallest", bytes.fromhex(smallest["bytes"])
    yield "example", bytes.fromhex(example["bytes"])
    yield "switch", switch_job(smallest)


def containers():
    for vector in vectors("container.json"):
        if vector["name"].endswith((", sparse", ", both", "raw+raw, dense")):
            yield file_name(vector["name"]), bytes.fromhex(vector["bytes"])


def seeds():
    """The content of each folder: {fuzzer: {file: bytes}}."""
    return {"container_fuzz": dict(containers()), "frame_fuzz": dict(frames()), "job_spec_fuzz": dict(job_specifications())}


def main():
    for fuzzer, files in seeds().items():
        folder = CORPUS / fuzzer
        for path in folder.iterdir():
            if path.name not in files:
                path.unlink()
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
