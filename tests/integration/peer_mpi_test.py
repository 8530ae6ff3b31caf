#!/usr/bin/env python3
"""`millrace-bench peers` under mpirun: right sums for every number of ranks, and what happens when ranks die, stop or differ.

    peer_mpi_test.py FOLDER_OF_THE_PROGRAMS

Exits 77 (skipped, for ctest) where there is no mpirun, or the build has no MPI."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import mpi_ranks
from mpi_ranks import BENCH, RANKS_MAX_S, pids_of_ranks, run, start
from peers_example import check_example_of_peers

SMALL = ["peers", "--dimension", "20000", "--density", "0.01", "--repeats", "3", "--warmup", "1", "--json"]
ENDLESS = ["peers", "--dimension", "20000", "--density", "0.01", "--repeats", "1000000", "--without-dense"]
ONE = ["--algorithm", "ssar_recursive_doubling"]


def result_of(ended):
    if ended.returncode != 0:
        raise AssertionError(f"exit code {ended.returncode}: {ended.stderr}")
    return json.loads(ended.stdout.strip().split("\n")[-1])


def results_of_cases(ranks, arguments, cases):
    """The results of the cases, measured in one start of MPI: {line of the case: result}."""
    with tempfile.NamedTemporaryFile("w", suffix=".cases") as file:
        file.write("".join(line + "\n" for line in cases))
        file.flush()
        ended = run(ranks, [*arguments, "--cases", file.name])
    if ended.returncode != 0:
        raise AssertionError(f"exit code {ended.returncode}: {ended.stderr}")
    results = {result["case"]: result for result in map(json.loads, ended.stdout.strip().split("\n"))}
    if list(results) != list(cases):
        raise AssertionError(f"{list(results)} and not {cases}")
    return results


class Sums(unittest.TestCase):
    def check(self, ended, ranks):
        return self.check_result(result_of(ended), ranks)

    def check_result(self, result, ranks):
        self.assertEqual(result["ranks"], ranks)
        self.assertEqual(result["messages_unexpected"], 0)
        for row in result["rows"]:
            self.assertTrue(row["correct"], row)
            self.assertGreater(row["median_ms"], 0, row)
        return {row["algorithm"]: row for row in result["rows"]}

    def test_EveryNumberOfRanksHasTheRightSums(self):
        for ranks in (1, 2, 3, 8):
            with self.subTest(ranks=ranks):
                rows = self.check(run(ranks, SMALL), ranks)
                self.assertIn("openmpi_dense", rows)
                self.assertGreater(len(rows), 1)

    def test_SumsAreCorrectForEveryDistributionAndALossyCodec(self):
        cases = ["--distribution " + shape for shape in ("clustered", "same", "disjoint", "one_region")]
        cases += ["--codec " + codec for codec in ("gap+raw", "gap+qsgd4")]
        cases.append("--dimension 1000000 --density 0.4 --repeats 1 --warmup 0")
        for line, result in results_of_cases(3, SMALL, cases).items():
            with self.subTest(case=line):
                rows = self.check_result(result, 3)
        # Bodies of megabytes, and sums that become dense.
        self.assertGreater(max(row.get("bytes_sent_max", 0) for row in rows.values()), 2_500_000)

    def test_PooledBoundariesHalveTheBytesOfOktopkWhereRanksDiffer(self):
        # Every rank has its entries in a part of its own: averaged boundaries give each part to one rank.
        disjoint = ["peers", "--dimension", "200000", "--density", "0.05", "--distribution", "disjoint", "--algorithm", "oktopk", "--json"]
        most = {boundaries: self.check(run(4, [*disjoint, "--boundaries", boundaries]), 4)["oktopk"]["bytes_sent_max"]
                for boundaries in ("averaged", "pooled")}
        self.assertLess(most["pooled"], 0.7 * most["averaged"], most)
        ended = mpi_ranks.run_differing(["peers", "--algorithm", "oktopk", "--dimension", "20000", "--boundaries", "pooled"],
                                        ["peers", "--algorithm", "oktopk", "--dimension", "20000"])
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("pooled", ended.stderr)

    def test_BodiesAreSharedWithinAMachineAndSentWhereAskedTo(self):
        # A dense vector has 2.4 MB and fits into no small segment, which has one piece of 2 MiB.
        large = ["peers", "--dimension", "600000", "--density", "0.1", "--repeats", "1", "--warmup", "0", "--json"]
        entries = {}
        small = 1 << 18
        sizes = (1 << 26, 0, small)
        results = results_of_cases(4, large, [f"--shared-bytes {size}" for size in sizes])
        for shared_bytes, result in zip(sizes, results.values()):
            with self.subTest(shared_bytes=shared_bytes):
                rows = self.check_result(result, 4)
                # `auto` chooses by measured costs.
                entries[shared_bytes] = {name: row["entries"] for name, row in rows.items() if name != "auto"}
                shared = result["shared_bodies"]
                self.assertEqual(shared["in_place"] > 0, shared_bytes > 0, shared)
                # Bodies that do not fit are sent.
                self.assertEqual(shared["without_room"] > 0, shared_bytes == small, shared)
        self.assertEqual(entries[1 << 26], entries[0])
        self.assertEqual(entries[small], entries[0])

    def test_SumsOfBodiesThatAreSharedAreRight(self):
        # Long enough to be shared: every algorithm, each distribution, ranks that are no power of two.
        large = ["peers", "--dimension", "120000", "--density", "0.15", "--repeats", "1", "--warmup", "0", "--json"]
        shapes = ["--distribution " + shape for shape in ("clustered", "same", "disjoint", "one_region")]
        codecs = ["--codec " + codec for codec in ("gap+raw", "gap+qsgd4")]
        for ranks, cases in ((2, ["--seed 1"]), (3, shapes + codecs), (5, ["--seed 1"]), (8, ["--seed 1"])):
            for line, result in results_of_cases(ranks, large, cases).items():
                with self.subTest(ranks=ranks, case=line):
                    self.check_result(result, ranks)
                    self.assertGreater(result["shared_bodies"]["in_place"], 0)

    def test_BodiesAreSharedWithinAHostAndNeverBetweenHosts(self):
        large = ["peers", "--dimension", "120000", "--density", "0.15", "--repeats", "1", "--warmup", "0", "--json"]
        for hosts in (2, 4):
            with self.subTest(hosts=hosts):
                ended = mpi_ranks.run_on_hosts(4, hosts, large)
                if ended is None:
                    self.skipTest("network namespaces cannot be made here")
                self.check(ended, 4)
                self.assertEqual(result_of(ended)["shared_bodies"]["in_place"] > 0, hosts < 4, ended.stdout)

    def test_RecursiveDoublingSendsWhatItsFormulaSays(self):
        rows = self.check(run(2, [*SMALL, *ONE]), 2)
        # One message of a header and 200 pairs.
        self.assertEqual(rows["ssar_recursive_doubling"]["bytes_sent_max"], 32 + 200 * 8)
        self.assertEqual(rows["ssar_recursive_doubling"]["messages_sent_max"], 1)

    def test_EveryThreadLevel(self):
        for level in ("single", "funneled", "serialized", "multiple"):
            with self.subTest(level=level):
                self.check(run(2, [*SMALL, *ONE, "--mpi-threads", level]), 2)

    def test_OverlapSaysHowMuchIsHidden(self):
        for level in ("serialized", "multiple"):
            result = result_of(run(2, [*SMALL, *ONE, "--overlap", "--compute-on", "elsewhere", "--mpi-threads", level]))
            self.assertGreater(result["rows"][0]["step_over_longer"], 0)

    def test_OverlapOfADenseGradientInBuckets(self):
        result = result_of(run(2, [*SMALL, "--algorithm", "dense_ring", "--overlap", "--compute-on", "elsewhere", "--bucket-bytes",
                                   "4000"]))
        whole, buckets = result["rows"]
        self.assertEqual((whole["algorithm"], buckets["algorithm"]), ("dense_ring", "dense_ring in buckets"))
        self.assertEqual(buckets["layers"], 32)
        self.assertGreater(buckets["buckets"], 1)
        self.assertGreater(buckets["step_over_at_end"], 0)


class Library(unittest.TestCase):
    def test_TheExampleOfTheLibraryEndsWithTheSameWeightsOnAllRanks(self):
        example = mpi_ranks.PROGRAMS / "millrace_example_peers_mpi"
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                ended = subprocess.run([*mpi_ranks.MPIRUN, "-n", str(ranks), str(example)], env=mpi_ranks.ENVIRONMENT,
                                       capture_output=True, text=True, timeout=RANKS_MAX_S, check=False)
                self.assertEqual(ended.returncode, 0, ended.stderr)
                check_example_of_peers(self, ended.stdout, ranks)


class Failures(unittest.TestCase):
    SILENCE_MS = 6000

    def ended(self, mpirun):
        """Returns the stderr of the ranks. They are ended by --rank-silence, or this fails."""
        try:
            return mpirun.communicate(timeout=RANKS_MAX_S)[1]
        except subprocess.TimeoutExpired:
            mpirun.kill()
            mpirun.communicate()
            self.fail(f"ranks still run after {RANKS_MAX_S} s")

    def test_AStoppedRankIsNamedByAllOthers(self):
        for threads in ([], ["--overlap"]):
            with self.subTest(threads=threads), start(4, [*ENDLESS, *ONE, *threads, "--rank-silence", f"{self.SILENCE_MS}ms"]) as mpirun:
                stopped = pids_of_ranks(mpirun, [2])[2]
                mpi_ranks.wait_for_start(mpirun)
                os.kill(stopped, signal.SIGSTOP)
                err = self.ended(mpirun)
                for rank in (0, 1, 3):
                    self.assertRegex(err, f"rank {rank}: (rank . said: )?.*rank 2 has not answered for {self.SILENCE_MS} ms")
                self.assertNotEqual(mpirun.returncode, 0)

    def test_AStoppedRankIsNamedAndItsSharedMemoryIsRemoved(self):
        large = ["peers", "--dimension", "1000000", "--density", "0.05", "--repeats", "1000000", "--without-dense"]
        algorithm = ["--algorithm", "ssar_split_allgather"]
        for how in (signal.SIGSTOP, signal.SIGKILL):
            with self.subTest(how=how), start(4, [*large, *algorithm, "--rank-silence", f"{self.SILENCE_MS}ms"]) as mpirun:
                ranks = pids_of_ranks(mpirun, range(4))
                while not all(mpi_ranks.shares_memory(pid) for pid in ranks.values()):
                    self.assertIsNone(mpirun.poll())
                    time.sleep(0.05)
                time.sleep(1)
                os.kill(ranks[2], how)
                err = self.ended(mpirun)
                self.assertNotEqual(mpirun.returncode, 0)
                if how == signal.SIGSTOP:
                    for rank in (0, 1, 3):
                        self.assertRegex(err, f"rank {rank}: (rank . said: )?.*rank 2 has not answered for {self.SILENCE_MS} ms")
                for pid in ranks.values():
                    self.assertFalse(mpi_ranks.shares_memory(pid), "it lives with its processes, and with nothing else")

    def test_AKilledRankEndsTheJob(self):
        with start(3, [*ENDLESS, *ONE, "--rank-silence", f"{self.SILENCE_MS}ms"]) as mpirun:
            killed = pids_of_ranks(mpirun, [1])[1]
            mpi_ranks.wait_for_start(mpirun)
            os.kill(killed, signal.SIGKILL)
            self.ended(mpirun)
            self.assertNotEqual(mpirun.returncode, 0)

    def differing(self, first, second):
        ended = mpi_ranks.run_differing(["peers", *ONE, *first], ["peers", *ONE, *second])
        self.assertNotEqual(ended.returncode, 0)
        for rank in range(3):
            self.assertIn(f"millrace-bench peers: rank {rank}: ", ended.stderr)
        return ended.stderr

    def test_EveryRankReportsDifferingDimensions(self):
        err = self.differing(["--dimension", "30000"], ["--dimension", "20000"])
        self.assertIn("n=30000", err)
        self.assertIn("n=20000", err)

    def test_EveryRankReportsDifferingCodecs(self):
        err = self.differing(["--dimension", "20000", "--codec", "gap+qsgd4"], ["--dimension", "20000"])
        self.assertIn("gap+qsgd4", err)

    def test_ProgressByAThreadIsRefusedWhereMpiIsTheMainThreads(self):
        ended = run(2, [*SMALL, *ONE, "--overlap", "--mpi-threads", "funneled"])
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("--mpi-threads", ended.stderr)

    def test_InvalidOptionsAreRefusedBeforeMpiStarts(self):
        for arguments, word in ((["--algorithm", "no_such"], "ssar_recursive_doubling"), (["--density", "2"], "density"),
                                (["--codec", "auto"], "codec"), (["--cases", "/no/such/file"], "/no/such/file")):
            ended = subprocess.run([BENCH, "peers", *arguments], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(ended.returncode, 6 if "--cases" in arguments else 2, ended.stderr)
            self.assertIn(word, ended.stderr)

    def test_AWrongCaseIsNamedByItsLineBeforeMpiStarts(self):
        for text, word in (("--dimension 20000\n--density 7\n", ":2: "), ("# none\n\n", "has no cases"), ("--json\n", "--json"),
                           ("--mpi-threads single\n", "--mpi-threads"), ("--codec no_such\n", ":1: "), ("--dimension\n", ":1: ")):
            with self.subTest(text=text), tempfile.NamedTemporaryFile("w", suffix=".cases") as file:
                file.write(text)
                file.flush()
                ended = subprocess.run([BENCH, "peers", "--cases", file.name], capture_output=True, text=True, timeout=120, check=False)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(word, ended.stderr)


if __name__ == "__main__":
    mpi_ranks.main()
