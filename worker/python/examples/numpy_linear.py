#!/usr/bin/env python3
"""Linear regression with NumPy: every worker has rows of its own, and all have the same weights after each step.

    millrace serve --shards 2                       # on ports 7600 and 7601
    venv/bin/python numpy_linear.py --worker 0 --workers 2 --servers 127.0.0.1:7600,127.0.0.1:7601 &
    venv/bin/python numpy_linear.py --worker 1 --workers 2 --servers 127.0.0.1:7600,127.0.0.1:7601
"""

import argparse

import numpy as np

import millrace

FEATURES = 2_000
ROWS = 4_000
STEPS = 60
RATE = 0.5


def rows_of(worker, truth):
    """Returns this worker's rows and targets: [ROWS, FEATURES] and [ROWS]."""
    draw = np.random.default_rng(worker)
    rows = draw.standard_normal((ROWS, FEATURES), np.float32)
    return rows, rows @ truth


# README: begin
def train(job, me, rows, targets):
    """Returns the weights after the last step, and the session's statistics."""
    weights = np.zeros(FEATURES, np.float32)
    update = np.empty(FEATURES, np.float32)
    with millrace.Session(job, me, [millrace.Tensor("w", FEATURES)]) as session:
        for _ in range(STEPS):
            gradient = rows.T @ (rows @ weights - targets) / ROWS
            step = session.push("w", gradient)  # sends the largest tenth; the rest stays in the residual
            # Work that does not need the new weights goes here: the exchange runs meanwhile.
            session.wait_into("w", step, update)  # the mean over the workers, and 0 for all other entries
            weights -= RATE * update
        return weights, session.stats()
# README: end


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--worker", type=int, required=True, help="this worker, from 0")
    parser.add_argument("--workers", type=int, required=True, help="number of workers")
    parser.add_argument("--servers", required=True, help="addresses of the shards: HOST:PORT,HOST:PORT")
    parser.add_argument("--select", default="topk:0.1", help="entries that a step sends (default: %(default)s)")
    arguments = parser.parse_args()

    job = millrace.JobConfig(name="numpy_linear", workers=arguments.workers, select=arguments.select, combine="mean")
    me = millrace.WorkerConfig(worker=arguments.worker, servers=arguments.servers)
    truth = np.random.default_rng(99).standard_normal(FEATURES).astype(np.float32)
    weights, stats = train(job, me, *rows_of(arguments.worker, truth))
    error = np.sqrt(np.mean((weights - truth) ** 2))
    print(f"error {error:.4f}, sent {stats.bytes_up} bytes instead of {stats.dense_bytes}")


if __name__ == "__main__":
    main()
