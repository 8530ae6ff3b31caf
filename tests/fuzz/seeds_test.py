#!/usr/bin/env python3
"""Checks that the fuzzers' seeds are of the formats' present versions."""

import unittest

import seeds


class Seeds(unittest.TestCase):
    def test_SeedsOfMessagesJobsAndContainers_AreTheVectors(self):
        for fuzzer, files in seeds.seeds().items():
            found = {path.name: path.read_bytes() for path in (seeds.CORPUS / fuzzer).iterdir()}
            self.assertEqual(sorted(found), sorted(files), f"{fuzzer}: run tests/fuzz/seeds.py")
            for name, data in files.items():
                self.assertEqual(found[name], data, f"{fuzzer}/{name}: run tests/fuzz/seeds.py")

    def test_SeedsOfDatagrams_BeginWithThePresentVersion(self):
        first = {vector["bytes"][:2] for vector in seeds.vectors("datagrams.json")}
        found = {path.read_bytes()[:1].hex() for path in (seeds.CORPUS / "datagram_fuzz").iterdir()}
        self.assertEqual(found, first)

    def test_TheJobOfTheSwitch_HasThreeFieldsMore(self):
        files = seeds.seeds()["job_spec_fuzz"]
        self.assertEqual(len(files["switch"]), len(files["smallest"]) + len(seeds.SWITCH_ADDRESS))


if __name__ == "__main__":
    unittest.main()
