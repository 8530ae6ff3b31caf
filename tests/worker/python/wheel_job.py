"""Runs a small job with the package that this Python has installed: two shards, two workers, exact sums.

    wheel_job.py FOLDER_OF_PROGRAMS

deploy/debian-root.sh --python runs it in a fresh virtual environment, which has neither NumPy nor torch.
"""

import array
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import millrace

SHARDS = WORKERS = 2
DIMENSION, STEPS = 1000, 3


def start_shards(programs, folder):
    """Returns the processes of the shards, and their addresses."""
    processes = [subprocess.Popen([programs / "millrace-server", "--shard", str(shard), "--shards", str(SHARDS), "--listen",
                                   "127.0.0.1:0", "--table", f"{folder}/table.db", "--drain", "0s", "--json"],
                                  stdout=subprocess.PIPE, text=True) for shard in range(SHARDS)]
    return processes, [json.loads(process.stdout.readline())["address"] for process in processes]


def train(worker, addresses, sums):
    """Adds the updates of all steps to sums[worker]. The gradient of a worker is its number + 1 in every entry."""
    job = millrace.JobConfig(name="wheel", workers=WORKERS, select="none")
    me = millrace.WorkerConfig(worker=worker, shards=addresses)
    gradient, update = array.array("f", [worker + 1.0] * DIMENSION), array.array("f", bytes(4 * DIMENSION))
    with millrace.Session(job, me, [millrace.Tensor("w", DIMENSION)]) as session:
        for _ in range(STEPS):
            step = session.push("w", gradient)
            session.wait_into("w", step, update)
            sums[worker] = [before + now for before, now in zip(sums[worker], update)]


def main():
    print(f"Python {sys.version.split()[0]}: {millrace.__file__}, version {millrace.__version__}")
    sums = [[0.0] * DIMENSION for _ in range(WORKERS)]
    with tempfile.TemporaryDirectory() as folder:
        processes, addresses = start_shards(Path(sys.argv[1]), folder)
        try:
            threads = [threading.Thread(target=train, args=(worker, addresses, sums)) for worker in range(WORKERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
                process.stdout.close()
    expected = [STEPS * 3.0] * DIMENSION
    if sums != [expected] * WORKERS:
        sys.exit(f"wrong sums: {sums[0][:4]} ... instead of {expected[:4]} ...")
    print(f"{WORKERS} workers, {STEPS} steps: all sums are right")


if __name__ == "__main__":
    main()
