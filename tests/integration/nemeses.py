"""Common parts of the nemesis tests: a job with short time limits, its two permitted ends, and damage to files.

Takes --thorough and --seed off the command line. --thorough repeats the random damage many times.
"""

import argparse
import random
import sys

_parser = argparse.ArgumentParser(add_help=False)
_parser.add_argument("--thorough", action="store_true")
_parser.add_argument("--seed", type=int, default=1)
CHOSEN, sys.argv[1:] = _parser.parse_known_args()

from commands import TIMEOUT_S  # pylint: disable=wrong-import-position
from shards_by_hand import WORKERS, ShardsByHand  # pylint: disable=wrong-import-position

# Only where a time limit is to pass: elsewhere a busy machine must not pass one.
DEAD_AFTER_S = 10
SHARD_LIMITS = ("--abandon-after", f"{DEAD_AFTER_S}s")
SHORT_LIMITS = ("--dead-after", f"{DEAD_AFTER_S}s", "--heartbeat", "200ms", "--shard-silence", f"{2 * DEAD_AFTER_S}s")

# Codes of a worker whose sentence names the cause (deploy/OPERATING.md): bad data, unreachable, refused, a file, ended early.
ENDED = (3, 4, 5, 6, 8)


def damage(data, draw):
    """Returns the bytes with one bit flipped or, one time in four, with their end cut off."""
    at = draw.randrange(len(data))
    if draw.random() < 0.25:
        return data[:at]
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1:]


class Nemesis(ShardsByHand):
    """A job either yields the model of an undisturbed run, bit for bit, or all its workers end with a sentence."""

    epochs = 5  # of 100 steps each
    compute_time = "4ms"  # of a step

    def setUp(self):
        super().setUp()
        self.draw = random.Random(f"{CHOSEN.seed} {self.id()}")

    def begin(self, cluster, *flags):
        """Starts workers that compute for some time a step, and waits until every shard has decided a step."""
        workers = self.workers(cluster, self.folder / "disturbed", "--compute-time", self.compute_time, *flags)
        self.addCleanup(self.end_workers, workers)
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        cluster.wait_for_steps(5)
        return workers

    @staticmethod
    def end_workers(workers):
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()

    def same_model(self, workers, *flags):
        """Each push is in the model, and once: it has the bits of an undisturbed run with these flags."""
        self.assertEqual(self.model(workers, self.folder / "disturbed"), self.undisturbed(*flags))

    def ended_alike(self, workers, code, *words):
        """Every worker ends with this code, and with a sentence that has all the words."""
        ends = [self.ended(worker) for worker in workers]
        for its_code, sentence in ends:
            self.assertEqual(its_code, code, ends)
            for word in words:
                self.assertRegex(sentence, word)

    def ended(self, worker):
        """Waits for a worker that must not succeed. Returns its exit code and the last line of its stderr."""
        _, err = worker.communicate(timeout=TIMEOUT_S)
        self.assertIn(worker.returncode, ENDED, err)
        sentence = err.strip().split("\n")[-1]
        self.assertGreater(len(sentence), 20, err)
        return worker.returncode, sentence

    def same_model_or_sentences(self, workers):
        """Each model is the undisturbed run's, and each worker without success says why. No other end is permitted."""
        said = [worker.communicate(timeout=TIMEOUT_S)[1] for worker in workers]
        codes = [worker.returncode for worker in workers]
        for code, err in zip(codes, said):
            self.assertIn(code, (0, *ENDED), said)
            self.assertTrue(code == 0 or len(err.strip().split("\n")[-1]) > 20, said)
        models = [path for path in (self.folder / f"disturbed.{worker}" for worker in range(WORKERS)) if path.exists()]
        self.assertTrue(models or codes[0] != 0, codes)
        # The one that is left trains without the other: its model is another one, and its code is 8.
        if codes == [0] * WORKERS:
            self.assertEqual([path.read_bytes() for path in models], [self.undisturbed()])
        elif codes[0] == 0:
            self.fail(f"worker 0 reports success without the others: {codes}, {said}")
        for path in models:
            path.unlink()


def log_of(cluster, shard):
    return (cluster.folder / f"shard-{shard}.log").read_text(encoding="utf-8")
