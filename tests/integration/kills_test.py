#!/usr/bin/env python3
"""A reproducible training whose shards are killed again and again: its model has the bits of an undisturbed run.

    kills_test.py FOLDER_OF_PROGRAMS [--kills N] [--seed N] [unittest arguments]

Each event is at a random moment: SIGKILL and a new start of a random shard, or SIGSTOP and SIGCONT. Some events come
while the shards still recover from the one before. Workers stay: a reproducible job takes no worker back; the
punisher kills those of other jobs. Prints the kills, the stops and the steps as JSON.
"""

import argparse
import json
import random
import signal
import sys
import time
import unittest

arguments = argparse.ArgumentParser(add_help=False)
arguments.add_argument("--kills", type=int, default=4)
arguments.add_argument("--seed", type=int, default=1)
CHOSEN, sys.argv[1:] = arguments.parse_known_args()

from shards_by_hand import SHARDS, ShardsByHand  # pylint: disable=wrong-import-position

SHARE_OF_STOPS = 0.2
SHARE_DURING_RECOVERY = 0.2
PAUSE_S = (0, 0.2)
STOP_S = (0, 0.3)


class Kills(ShardsByHand):
    # An epoch has 100 steps of 4 ms: the training outlasts the events. A run without faults does not compute for 4 ms.
    epochs = 4 + 3 * CHOSEN.kills

    def test_TheModelHasTheSameBits(self):
        expected = self.undisturbed()
        draw = random.Random(CHOSEN.seed)
        cluster = self.cluster(self.folder / "kills.db")
        workers = self.workers(cluster, self.folder / "killed", "--compute-time", "4ms")
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        kills = stops = 0
        while kills < CHOSEN.kills:
            shard = draw.randrange(SHARDS)
            if draw.random() >= SHARE_DURING_RECOVERY:
                cluster.wait_for_steps(1)
            time.sleep(draw.uniform(*PAUSE_S))
            self.assertTrue(all(worker.poll() is None for worker in workers), f"a worker ended after {kills} kills of {CHOSEN.kills}")
            if draw.random() < SHARE_OF_STOPS:
                stops += 1
                cluster.processes[shard].send_signal(signal.SIGSTOP)
                time.sleep(draw.uniform(*STOP_S))
                cluster.processes[shard].send_signal(signal.SIGCONT)
            else:
                kills += 1
                cluster.kill(shard)
                cluster.start(shard)
        model = self.model(workers, self.folder / "killed")
        differ = abs(len(model) - len(expected)) + sum(one != other for one, other in zip(model, expected))
        print(json.dumps({"kills": kills, "stops": stops, "steps": 100 * self.epochs, "seed": CHOSEN.seed, "bytes_that_differ": differ}))
        self.assertEqual(model, expected)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
