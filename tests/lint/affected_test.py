#!/usr/bin/env python3
"""Which tests a change reaches (affected.py), in a configured build: affected_test.py BUILD"""

import os
import sys
import unittest

import affected
from tidy import ROOT, Tree

BUILD = os.path.abspath(sys.argv.pop(1))
EVERY_TEST = "^(unit|sim|only_asan|only_tsan)$"


class AChange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reach = affected.Reach(BUILD, Tree(ROOT, BUILD))
        cls.everything = affected.read_by_cmake(BUILD).union(affected.EVERYTHING)
        cls.files = {target: reach.files(target) for target, _ in affected.tests_of(BUILD, EVERY_TEST, "^$") if target != affected.NO_TARGET}

    def reached_by(self, *changed):
        for path in changed:
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), f"{path} has gone: name another one here")
        return {target for target, files in self.files.items() if affected.is_reached(target, files, set(changed), self.everything)}

    def assert_reached(self, changed, reached, not_reached):
        found = self.reached_by(changed)
        self.assertLessEqual(set(reached), found)
        self.assertFalse(found.intersection(not_reached))

    def test_OfASourceReachesTheTestsThatLinkIt(self):
        self.assert_reached("worker/core/session_core.cc", ("worker_core_test", "cluster_sim_test"), ("kernels_test", "switch_agg_test"))
        self.assert_reached("kernels/base/random.cc", ("kernels_test", "server_test", "worker_core_test"), ())

    def test_OfAHeaderReachesTheTestsThatIncludeIt(self):
        self.assert_reached("server/rounds/job_rounds.h", ("server_test", "cluster_sim_test"), ("kernels_test", "monitoring_trace_test"))

    def test_OfATestsOwnSourceReachesThatTest(self):
        for target, files in self.files.items():
            own = [path for path in files.inputs if path.startswith("tests/") and path.endswith("_test.cc")]
            self.assertTrue(own, f"{target} has no source of its own")
            self.assertIn(target, self.reached_by(own[0]), own[0])
            # Two tests may share a source: protocol_datagram_test and protocol_portable_mac_test do.
            self.assertLessEqual(len(self.reached_by(own[0]) - self.readers_of_all() - {target}), 1, own[0])

    def readers_of_all(self):
        return {target for target, files in self.files.items() if "" in files.read}

    def test_OfASchemaReachesTheTestsOfItsMessages(self):
        self.assert_reached("protocol/messages/messages.capnp", ("protocol_frame_test", "server_test"), ("kernels_test",))

    def test_OfADocumentReachesTheTestsThatMayReadIt(self):
        self.assertEqual(self.readers_of_all(), {"protocol_frame_test"}, "format_versions_test.cc looks for constants in all sources")
        self.assertEqual(self.reached_by("README.md"), self.readers_of_all())
        self.assert_reached("monitoring/METRICS.md", ("monitoring_catalog_test",), ("protocol_vectors_test", "kernels_test"))
        self.assert_reached("protocol/vectors/session.json", ("protocol_vectors_test",), ("monitoring_catalog_test",))
        self.assert_reached("tests/support/format_versions.txt", ("worker_core_test", "protocol_frame_test"), ("kernels_test",))

    def test_OfTheRootsOfPathsReachesTheTestsThatUseThem(self):
        self.assert_reached("tests/support/tree_paths.cc", ("server_process_test", "monitoring_catalog_test"), ("kernels_test",))

    def test_OfAProgramReachesTheTestsThatStartIt(self):
        self.assert_reached("server/process/main.cc", ("server_process_test",), ("server_test",))

    def test_AReadWhosePathIsNotKnownMayBeOfAnyFile(self):
        for text, use in (('source_file("a/" + name)', ("source", "a/")), ("source_file(name)", ("source", "")), ('built_file(\n"bin/x")', ("built", "bin/x"))):
            self.assertEqual(affected.READS.findall(text), [use])

    def test_OfAFoldersRulesReachesTheTestsOfItsFiles(self):
        self.assert_reached("worker/CMakeLists.txt", ("worker_core_test", "cluster_sim_test"), ("kernels_test",))

    def test_OfTheBuildReachesAllTests(self):
        for path in (*affected.EVERYTHING, "monitoring/http/page/page.html"):
            self.assertEqual(self.reached_by(path), set(self.files), path)

    def test_OfNothingReachesNoTest(self):
        self.assertEqual(self.reached_by(), set())

    def test_ThatIsNotKnownReachesAllTests(self):
        self.assertTrue(all(affected.is_reached(target, files, None) for target, files in self.files.items()))

    def test_FuzzersAreThoseOfTheBuild(self):
        listed = affected.fuzzers_of(BUILD)
        here = os.path.exists(os.path.join(BUILD, "tests/fuzz"))
        self.assertEqual(("frame_fuzz", "frame_fuzz") in listed, here)
        self.assertFalse([name for name, _ in listed if not os.path.exists(os.path.join(ROOT, "tests/fuzz", name + ".cc"))])

    def test_OfASeedReachesItsFuzzer(self):
        changed = {"tests/fuzz/corpus/frame_fuzz/seed"}
        self.assertTrue(affected.is_reached("frame_fuzz", affected.Files(frozenset()), changed))
        self.assertFalse(affected.is_reached("model_fuzz", affected.Files(frozenset()), changed))


if __name__ == "__main__":
    unittest.main()
