#!/usr/bin/env python3
"""Combinations of options that the public types rule out: each does not compile, and its valid neighbour does.

    public_types_test.py COMPILER INCLUDE_FOLDER

The compiler sees the public headers alone, as C++20. Each snippet is a function; an error counts for the snippet that it lies in.
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPILER, INCLUDES = sys.argv.pop(1), sys.argv.pop(1)

HEAD = """#include <millrace/millrace.h>
#include <millrace/peer.h>
using namespace std::chrono_literals;
namespace peers = millrace::peers;
std::vector<float> array(10);
"""

# name: (valid code, invalid code, a word of the error)
SNIPPETS = {
    "quorum_of_a_synchronous_job": ("millrace::Partial{millrace::StepDecision::quorum(2)};", "millrace::Synchronous{millrace::StepDecision::quorum(2)};",
                                    "StepDecision"),
    "deadline_of_a_synchronous_job": ("millrace::BoundedStaleness{millrace::StepDecision::deadline(5ms)};",
                                      "millrace::Synchronous{.deadline = 5ms};", "deadline"),
    "quorum_of_an_asynchronous_job": ("millrace::Asynchronous{.staleness = 2};", "millrace::Asynchronous{.quorum = 2};", "quorum"),
    "participants_of_bounded_staleness": ("millrace::Participants{.drawn = 2};", "millrace::BoundedStaleness{.drawn = 2};", "drawn"),
    "partial_without_a_quorum": ("millrace::Partial{millrace::StepDecision::quorum(2).and_deadline(5ms)};", "millrace::Partial{};",
                                 "StepDecision"),
    "bounded_staleness_without_a_quorum": ("millrace::BoundedStaleness{millrace::StepDecision::quorum(2)};",
                                           "millrace::BoundedStaleness{.staleness = 2};", "StepDecision"),
    "participants_without_a_number": ("millrace::Participants{2u};", "millrace::Participants{};", "Required"),
    "participants_with_staleness": ("millrace::Partial{.decision = millrace::StepDecision::quorum(2), .staleness = 1};",
                                    "millrace::Participants{.drawn = 2, .staleness = 1};", "staleness"),
    "a_switch_without_an_address": ('millrace::SwitchPath{.address = "a:1"};', "millrace::SwitchPath{.slots = 4};", "Required"),
    "a_store_rule_without_a_rate": ("millrace::Store{millrace::optimizer::Sgd{.rate = 0.1}};",
                                    "millrace::Store{millrace::optimizer::Sgd{}};", "Required"),
    "a_number_of_participants_below_0": ("constexpr millrace::Required<uint32_t> drawn = 2; static_assert(drawn == 2u);",
                                         "static_assert(millrace::Required<uint32_t>(-2) == 2u);", "constant|range"),
    "momentum_of_a_store_without_a_rate": ("millrace::optimizer::Momentum{.rate = 0.1, .momentum = 0.5};",
                                           "millrace::optimizer::Momentum{.momentum = 0.5};", "Required"),
    "a_store_without_a_rule": ("millrace::Store{millrace::optimizer::Adam{0.1}, millrace::StoreBegin::kSaved};",
                               "millrace::Store{.begin = millrace::StoreBegin::kSaved};", "rule|variant|deleted|construct"),
    "two_modes": ("millrace::JobConfig{.consistency = millrace::Asynchronous{}};",
                  "millrace::JobConfig{.consistency = {millrace::Synchronous{}, millrace::Asynchronous{}}};", "Synchronous"),
    "a_path_as_a_mode": ("millrace::JobConfig{.path = millrace::ServerPath{}};",
                         "millrace::JobConfig{.consistency = millrace::ServerPath{}};", "ServerPath"),
    "slots_of_servers": ('millrace::Path path = millrace::SwitchPath{.address = "a:1", .slots = 4};', "millrace::Path path = millrace::ServerPath{.slots = 4};",
                         "ServerPath"),
    "a_codec_of_the_switch_for_updates": ('millrace::SwitchPath{.address = "a:1", .codec = millrace::SwitchCodec{}};',
                                          "millrace::JobConfig{.codec_down = millrace::SwitchCodec{}};", "SwitchCodec"),
    "top_k_of_a_whole_number": ("millrace::Selection::top_k(millrace::Amount::count(10));", "millrace::Selection::top_k(10);", "delete"),
    "reselect_of_a_whole_number": ("millrace::Reselect::top_k(0.1);", "millrace::Reselect::top_k(1);", "delete"),
    "a_threshold_with_a_period": ("millrace::Selection::threshold_reuse(0.1, 8);", "millrace::Selection::threshold(0.1, 8);", "threshold"),
    "a_selection_as_text": ("millrace::JobConfig{.select = millrace::Selection::all()};", 'millrace::JobConfig{.select = "topk:0.01"};',
                            "Selection"),
    "value_and_index_code_swapped": ("millrace::Codec(millrace::index::gap, millrace::value::raw);",
                                     "millrace::Codec(millrace::value::raw, millrace::index::gap);", "Codec"),
    "a_false_positive_rate_without_a_filter": ("millrace::Codec(millrace::index::bloom(0.01));",
                                               "millrace::Codec(millrace::index::gap(0.01));", "IndexCode"),
    "a_scale_of_terngrad": ("millrace::value::qsgd(4, millrace::QsgdScale::kL2Norm);",
                            "millrace::value::terngrad(512, millrace::QsgdScale::kL2Norm);", "terngrad"),
    "momentum_without_a_factor": ("millrace::Momentum::correction(0.9);", "millrace::Momentum::correction();", "correction"),
    "a_factor_of_no_momentum": ("millrace::Momentum::none();", "millrace::Momentum::none(0.9);", "none"),
    "momentum_of_sgd_at_the_store": ("millrace::Store{millrace::optimizer::Momentum{.rate = 0.1, .momentum = 0.9}};",
                                     "millrace::Store{millrace::optimizer::Sgd{.rate = 0.1, .momentum = 0.9}};", "momentum"),
    "a_store_with_an_unnamed_rule": ("millrace::Store{millrace::optimizer::Adam{.rate = 0.1}};", "millrace::Store{0.1};", "Store|double|convert"),
    "an_option_of_the_worker_in_the_job": ("millrace::WorkerConfig{.worker = 1};", "millrace::JobConfig{.worker = 1};", "worker"),
    "an_option_of_the_job_in_the_worker": ("millrace::JobConfig{.workers = 4};", "millrace::WorkerConfig{.workers = 4};", "workers"),
    "a_time_without_a_unit": ("millrace::Liveness{.dead_after = 10s};", "millrace::Liveness{.dead_after = 10};", "int|duration"),
    "weights_without_a_scale": ("millrace::Weights(array, -0.1f);", "millrace::Weights{array};", "Weights"),
    "k_of_an_exact_sum": ("peers::Algorithm::topk_a(0.1);", "peers::Algorithm::dense_ring(0.1);", "dense_ring"),
    "ok_topk_without_a_k": ("peers::Algorithm::oktopk(0.1);", "peers::Algorithm::oktopk();", "oktopk"),
    "ok_topk_of_a_whole_number": ("peers::Algorithm::oktopk(millrace::Amount::count(3));", "peers::Algorithm::oktopk(3);", "delete"),
    "regions_of_a_tree": ("peers::Algorithm::oktopk(0.1, {.boundaries_period = 8});",
                          "peers::Algorithm::gtopk(0.1, peers::Oktopk{.boundaries_period = 8});", "gtopk"),
    "a_quantizer_of_a_ring": ("peers::Algorithm::dsar_split_allgather(millrace::Codec());",
                              "peers::Algorithm::sparse_ring(millrace::Codec());", "sparse_ring"),
    "a_group_twice": ("peers::Group group(std::move(peers::Communicator::in_process(1)[0]));",
                      "peers::Group group(std::move(peers::Communicator::in_process(1)[0])); peers::Group other(group);", "delete"),
}


def source_of(codes):
    """A file with a function for each snippet, whose errors carry the snippet's name as that of the file."""
    return HEAD + "".join(f'#line 1 "{name}"\nvoid {name}() {{ {code} }}\n' for name, code in codes.items())


def compiled(codes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snippets.cc"
        path.write_text(source_of(codes), encoding="utf-8")
        return subprocess.run([COMPILER, "-std=c++20", "-fsyntax-only", "-ferror-limit=0" if "clang" in COMPILER else "-fmax-errors=0",
                               "-I", INCLUDES, str(path)], env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
                              timeout=120, check=False)


class PublicTypes(unittest.TestCase):
    def test_ValidCombinationsCompile(self):
        ended = compiled({name: valid for name, (valid, _, _) in SNIPPETS.items()})
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_EachInvalidCombinationIsAnError(self):
        ended = compiled({name: invalid for name, (_, invalid, _) in SNIPPETS.items()})
        self.assertNotEqual(ended.returncode, 0)
        for name, (_, invalid, word) in SNIPPETS.items():
            with self.subTest(name):
                errors = re.findall(rf"^{name}:\d+:\d+: (?:fatal )?error: (.*)", ended.stderr, re.MULTILINE)
                self.assertTrue(errors, f"this compiles: {invalid}")
                self.assertRegex("\n".join(errors), word)


if __name__ == "__main__":
    unittest.main()
