#!/usr/bin/env python3
"""`millrace advise`: the terms of the models, options that win over measurements, servers among the rows.

    advise_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import tempfile
import unittest

from commands import run

TERMS = ("select_ms", "encode_ms", "decode_ms", "latency_ms", "transfer_ms", "add_ms", "reevaluate_ms")
SHAPE = ("--dimension", 1 << 22, "--density", 0.01, "--ranks", 8, "--link-rate", "1gbit", "--latency", "30us")
BY_HAND = ("--add-time", "2ns", "--add-value-time", "1ns", "--select-time", "0.5ns", "--encode-time", "3ns", "--decode-time", "2ns", "--entry-bytes", 6)


def named_rows(advice):
    return {row["algorithm"]: row for row in advice["rows"]}


class Advise(unittest.TestCase):
    def advise(self, *arguments):
        ended = run("advise", *SHAPE, *arguments, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout)

    def refused(self, sentence, *arguments):
        ended = run("advise", *SHAPE, *arguments)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn(sentence, ended.stderr)

    def test_EveryRowHasItsTermsAndTheFastestIsFirst(self):
        advice = self.advise(*BY_HAND)
        totals = [row["total_ms"] for row in advice["rows"]]
        self.assertEqual(totals, sorted(totals))
        for row in advice["rows"]:
            self.assertAlmostEqual(row["total_ms"], sum(row[term] for term in TERMS), delta=1e-9 * row["total_ms"])
            self.assertEqual(row["select_ms"] > 0, not row["dense"], row)
            self.assertEqual(row["encode_ms"] > 0, not row["dense"], row)
        rows = named_rows(advice)
        self.assertGreater(rows["oktopk"]["reevaluate_ms"], 0)
        self.assertEqual(rows["topk_a"]["reevaluate_ms"], 0)
        self.assertLessEqual({"servers", "servers_topk", "dense_ring", "ssar_split_allgather"}, set(rows))

    def test_OptionsOverrideMeasurements(self):
        advice = self.advise(*BY_HAND)
        self.assertEqual(advice, self.advise(*BY_HAND), "nothing in it is measured")
        self.assertAlmostEqual(advice["select"]["callers_ns"], 0.5)
        for side in ("contribution", "sums"):
            self.assertEqual([round(advice[side][name], 9) for name in ("entry_bytes", "encode_ns", "decode_ns")], [6, 3, 2])
        self.assertAlmostEqual(named_rows(advice)["servers"]["select_ms"], (1 << 22) * 0.5e-6)
        rows = named_rows(self.advise(*BY_HAND, "--threshold-period", 1, "--boundary-period", 1))
        self.assertGreater(rows["oktopk"]["reevaluate_ms"], 30 * named_rows(advice)["oktopk"]["reevaluate_ms"])

    def test_ASlowerSelectionMakesNoSparseOneMoreFavourable(self):
        before = None
        for each in (0, 0.5, 5, 500):
            rows = named_rows(self.advise(*BY_HAND[:4], "--select-time", f"{each}ns"))
            ratio = {name: row["total_ms"] / rows["dense_ring"]["total_ms"] for name, row in rows.items()}
            for name in ratio if before else ():
                self.assertGreaterEqual(ratio[name], before[name] * (1 - 1e-12), name)
            before = ratio

    def test_CodecsAndSelectionsAreMeasured(self):
        advice = self.advise("--codec", "gap+qsgd4", "--select", "trimmed")
        self.assertTrue(0.5 < advice["contribution"]["entry_bytes"] < 4 < advice["sums"]["entry_bytes"] < 8, advice)
        for name in ("encode_ns", "decode_ns"):
            self.assertGreater(advice["contribution"][name], 0)
        for name in ("callers_ns", "topk_ns", "gaussian_ns", "reevaluate_ns", "reuse_ns"):
            self.assertGreater(advice["select"][name], 0)
        pairs = self.advise("--select", "none")
        self.assertEqual((pairs["contribution"]["entry_bytes"], pairs["contribution"]["encode_ns"]), (8, 0))
        self.assertTrue(all(row["select_ms"] == 0 for row in pairs["rows"]))

    def test_MoreShardsShareTheServersLink(self):
        one, four = (named_rows(self.advise(*BY_HAND, "--shards", shards)) for shards in (1, 4))
        self.assertAlmostEqual(one["servers"]["transfer_ms"], 4 * four["servers"]["transfer_ms"], delta=0.1)
        self.assertLess(four["servers"]["add_ms"], one["servers"]["add_ms"])
        self.assertEqual(one["oktopk"], four["oktopk"])
        exact = named_rows(self.advise(*BY_HAND, "--exact"))
        self.assertIn("servers", exact)
        self.assertNotIn("servers_topk", exact)
        self.assertNotIn("oktopk", exact)

    def test_ATableForPeopleHasTheTermsAndTheSpeeds(self):
        ended = run("advise", *SHAPE, *BY_HAND)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        head = ended.stdout.split("\n")[0].split()
        self.assertEqual(head, ["algorithm", "result", "time", "selecting", "coding", "messages", "bytes", "adding", "re-evaluating"])
        for sentence in ("Adding: 2.00 ns", "Selecting: 0.50 ns a value by topk", "6.00 bytes, 3.00 ns to encode"):
            self.assertIn(sentence, ended.stdout)

    def layers(self, text, *arguments):
        ended = run("advise", "--layers", text, *SHAPE[2:], *BY_HAND, *arguments, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout)

    def test_EachLayerTravelsTheFasterWayAndTheSumsAreRight(self):
        sizes = [1, 1 << 22, 1, 4096]
        advice = self.layers(",".join(map(str, sizes)))
        rows = advice["layers"]
        self.assertEqual([row["n"] for row in rows], sizes)
        self.assertEqual([row["k"] for row in rows], [1, 41943, 1, 41])
        for row in rows:
            alone = json.loads(run("advise", "--dimension", row["n"], *SHAPE[2:], *BY_HAND, "--json").stdout)
            for kind, is_dense in (("dense", True), ("sparse", False)):
                first = next(one for one in alone["rows"] if one["dense"] == is_dense)
                self.assertEqual((row[kind], row[f"{kind}_ms"]), (first["algorithm"], first["total_ms"]))
            self.assertEqual(row["faster"], "dense" if row["dense_ms"] <= row["sparse_ms"] else "sparse")
        # One value of one is as large dense, and needs no selection.
        self.assertEqual([row["faster"] for row in rows], ["dense", "sparse", "dense", "sparse"])
        for name, of_row in (("dense_ms", lambda row: row["dense_ms"]), ("sparse_ms", lambda row: row["sparse_ms"]),
                             ("chosen_ms", lambda row: min(row["dense_ms"], row["sparse_ms"]))):
            self.assertAlmostEqual(advice[name], sum(map(of_row, rows)))
        self.assertLess(advice["chosen_ms"], min(advice["dense_ms"], advice["sparse_ms"]))

    def test_LayersOfAFileAsATableForPeople(self):
        with tempfile.NamedTemporaryFile("w", suffix=".layers") as file:
            file.write("1\n4194304\n")
            file.flush()
            ended = run("advise", "--layers", "@" + file.name, *SHAPE[2:], *BY_HAND)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        lines = ended.stdout.split("\n")
        self.assertEqual(lines[0].split(), ["values", "entries", "dense", "time", "sparse", "time", "faster"])
        self.assertEqual([(line.split()[0], line.split()[-1]) for line in lines[2:4]], [("1", "dense"), ("4,194,304", "sparse")])
        self.assertIn("1 of 2 layers dense", ended.stdout)

    def test_ADimensionOrLayersOneOfThem(self):
        for arguments in (SHAPE[2:], (*SHAPE, "--layers", "5")):
            ended = run("advise", *arguments)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("give --dimension, or --layers", ended.stderr)
        for text, sentence in (("5,x", "'x' is not a number"), ("@/no/such/file", "cannot be read: No such file")):
            ended = run("advise", "--layers", text, *SHAPE[2:])
            self.assertIn(sentence, ended.stderr)
            self.assertEqual(ended.returncode, 6 if text.startswith("@") else 2)

    def test_AdviseRefusesInvalidOptions(self):
        self.refused("name one here", "--codec", "auto")
        self.refused("gspar does not select", "--select", "gspar")
        self.refused("threshold does not select", "--select", "threshold")
        self.refused("nothing", "--select", "nothing")
        self.refused("nothing", "--codec", "nothing+raw")
        self.refused("is not a number from 1", "--shards", 0)


if __name__ == "__main__":
    unittest.main()
