#!/usr/bin/env python3
"""millrace_history_replay: records in, costs out; the history helps where selections recur; bad input ends it.

    tests/bench/history_replay_test.py PROGRAM
"""

import random
import struct
import subprocess
import sys

PROGRAM = sys.argv[1]
N = 20_000
COST = struct.Struct("<12d")


def record(kind, indices):
    return struct.pack(f"<2I{len(indices)}I", kind, len(indices), *indices)


def run(data, n=N):
    done = subprocess.run([PROGRAM, "--dimension", str(n)], input=data, capture_output=True, check=False)
    return done.returncode, done.stdout


def check(what, condition):
    if not condition:
        sys.exit(f"history_replay_test: {what}")


def main():
    draw = random.Random(7)
    often = draw.sample(range(N), N // 20)  # anywhere: gaps do not tell which

    def selection():
        return sorted(set(draw.sample(often, len(often) // 5)) | set(draw.sample(range(N), 30)))

    data = b""
    for _ in range(40):
        data += record(0, selection()) + record(1, selection())
    code, out = run(data)
    check(f"exit code {code}", code == 0)
    check(f"{len(out)} bytes out", len(out) == 40 * (COST.size + 8))
    first, last = COST.unpack_from(out, 0), COST.unpack_from(out, 39 * (COST.size + 8))
    check("sizes are not positive", all(last[at] > 0 for at in (0, 3, 6, 9)))
    check("without updates it is the adaptive code and a name", first[9] == first[6] + 8)
    check(f"history {last[9]} bytes, adaptive {last[6]}", last[9] < 0.8 * last[6])

    check("an empty contribution", run(record(0, []))[0] == 0)
    check("nothing at all", run(b"") == (0, b""))
    for what, bad in (("an unknown kind", record(2, [1])), ("indices that fall", record(0, [2, 1])), ("an index of N", record(1, [N])),
                      ("more than N", struct.pack("<2I", 0, N + 1)), ("half a head", b"\0\0\0\0"), ("half a record", record(0, [1, 2])[:-1])):
        check(what, run(bad)[0] == 1)
    check("--dimension 0", run(b"", 0)[0] == 2)


if __name__ == "__main__":
    main()
