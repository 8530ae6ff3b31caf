#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "tests/protocol/example_spec.h"
#include "tests/protocol/refused_jobs.h"

namespace millrace::protocol {
namespace {

CodecSpec reproducible_qsgd(bool scale_max) {
  return {.index = IndexCodecId::kGap, .value = ValueCodecId::kQsgd, .qsgd_scale_max = scale_max};
}

CodecSpec reproducible_bloom() { return {.index = IndexCodecId::kBloom}; }

/// A reproducible job with that changed.
std::function<void(JobSpec&)> reproducible_but(const std::function<void(JobSpec&)>& change) {
  return [change](JobSpec& s) {
    s.reproducible = true;
    s.select = {.selection = SelectionId::kTopK, .density = 0.01};
    s.codec_up = s.codec_down = {};
    s.codec_error = CodecError::kRetain;
    s.combine = Combine::kMean;
    s.store = {};
    s.reselect = {};
    for (TensorSpec& tensor : s.tensors) tensor = {.name = tensor.name, .dimension = tensor.dimension};
    change(s);
  };
}

/// The same over a switch.
std::function<void(JobSpec&)> over_switch_but(const std::function<void(JobSpec&)>& change) {
  return reproducible_but([change](JobSpec& s) {
    s.path = Path::kSwitch;
    s.switch_path.address = "192.0.2.7:7600";
    s.switch_path.value = WindowValueCodec::kFixed32;
    s.grid.block_indices = 4096;
    change(s);
  });
}

}  // namespace

std::vector<Refused> refused_reproducible() {
  const auto of_two = [](JobSpec& s) {
    s.fuse_below = 1;
    s.reselect = {.reselect = Reselect::kTopK, .k = 10};
  };
  return {
      {"reproducible-steps", kImpossible, "needs mode synchronous",
       reproducible_but([](JobSpec& s) { s.staleness = 1; })},
      {"reproducible-steps", kImpossible, "needs mode synchronous", reproducible_but([](JobSpec& s) {
         s.mode = Mode::kPartial;
         s.quorum = 2;
       })},
      {"reproducible-weights", kImpossible, "combine weighted_mean",
       reproducible_but([](JobSpec& s) { s.combine = Combine::kWeightedMean; })},
      {"reproducible-unbiased", kImpossible, "unbiased off", reproducible_but([](JobSpec& s) {
         s.unbiased = true;
         s.momentum = {};
         s.select = {};
         s.codec_error = CodecError::kDrop;
       })},
      {"reproducible-unbiased", kImpossible, "codec_error drop",
       reproducible_but([](JobSpec& s) { s.codec_error = CodecError::kDrop; })},
      {"reproducible-joiners", kImpossible, "initial_weights first",
       reproducible_but([](JobSpec& s) { s.initial_weights = InitialWeights::kFirst; })},
      {"reproducible-store", kReserved, "with a store", reproducible_but([](JobSpec& s) {
         s.momentum = {};
         s.store.optimizer = {.optimizer = Optimizer::kSgd, .rate = 0.1};
       })},
      {"reproducible-codec", kImpossible, "codec_up: qsgd",
       reproducible_but([](JobSpec& s) { s.codec_up = reproducible_qsgd(true); })},
      {"reproducible-codec", kImpossible, "codec_down: qsgd",
       reproducible_but([](JobSpec& s) { s.codec_down = reproducible_qsgd(false); })},
      {"reproducible-codec", kImpossible, "codec_up: bloom_p0",
       reproducible_but([](JobSpec& s) { s.codec_up = reproducible_bloom(); })},
      {"reproducible-codec", kImpossible, "codec_down: bloom_p0",
       reproducible_but([](JobSpec& s) { s.tensors[1].codec_down = reproducible_bloom(); })},
      {"reproducible-reselect", kImpossible, "2 buckets", reproducible_but(of_two)},
      {"reproducible-reselect", kImpossible, "threshold_period", reproducible_but([](JobSpec& s) {
         s.tensors.resize(1);
         s.reselect = {.reselect = Reselect::kTopK, .k = 10, .threshold_period = 2};
       })},
      {"reproducible-reselect", kImpossible, "2 lanes at the switch", over_switch_but([](JobSpec& s) {
         s.tensors.resize(1);
         s.tensors[0].dimension = 100'000;
         s.reselect = {.reselect = Reselect::kTopK, .k = 10};
         s.switch_path.lanes = 2;
       })},
      {"uncompressed-reselect", kImpossible, "the count of the step before", reproducible_but([](JobSpec& s) {
         s.tensors.resize(1);
         s.select = selection_from_text("topk:0.1:dense=3").value();
         s.reselect = {.reselect = Reselect::kTopK, .k = 10};
       })},
      {"uncompressed-reselect", kImpossible, "a switch would cut", over_switch_but([](JobSpec& s) {
         s.tensors.resize(1);
         s.tensors[0].dimension = 300;
         s.tensors[0].select = selection_from_text("by_size:0.1").value();
         s.reselect = {.reselect = Reselect::kTopK, .k = 10};
       })},
      {"reproducible-switch", kImpossible, "fixed32",
       over_switch_but([](JobSpec& s) { s.switch_path.value = WindowValueCodec::kFixed16; })},
      {"reproducible-switch", kImpossible, "fixed32",
       over_switch_but([](JobSpec& s) { s.switch_path.value = WindowValueCodec::kQsgd8; })},
      {"reproducible-switch", kImpossible, "bloom",
       over_switch_but([](JobSpec& s) { s.switch_path.index = WindowIndexCodec::kBloom; })},
      {"reproducible-switch", kImpossible,
       "5376 indices a block at most; without a grid of its own a reproducible job has 4096",
       over_switch_but([](JobSpec& s) { s.grid.block_indices = 5440; })},
  };
}

namespace {

TEST(ReproducibleJob, AValidReproducibleJobIsAccepted) {
  const std::vector<std::pair<const char*, std::function<void(JobSpec&)>>> accepted{
      {"reproducible", reproducible_but([](JobSpec&) {})},
      {"reproducible, with momentum, clipping and any codec without loss", reproducible_but([](JobSpec& s) {
         s.momentum = {.momentum = Momentum::kCorrection, .factor = 0.9};
         s.clip = 1;
         s.codec_up = s.codec_down = codec_from_text("auto").value();
       })},
      {"reproducible, re-selecting in one tensor", reproducible_but([](JobSpec& s) {
         s.tensors.resize(1);
         s.reselect = {.reselect = Reselect::kTopK, .k = 10};
       })},
      {"reproducible, over a switch", over_switch_but([](JobSpec&) {})},
      {"reproducible, over several lanes of a switch", over_switch_but([](JobSpec& s) {
         s.tensors[0].dimension = 100'000;
         s.switch_path.lanes = 2;
       })},
  };
  for (const auto& [what, make] : accepted) {
    JobSpec spec = example_spec();
    make(spec);
    const Status status = validate(spec);
    EXPECT_TRUE(status) << what << ": " << status.error().message;
  }
}

TEST(ReproducibleJob, PartsOfOneThatReselectsBeginAtBlocks) {
  JobSpec spec = example_spec();
  reproducible_but([](JobSpec& s) {
    s.tensors.resize(1);
    s.tensors[0].dimension = 100'000;
    s.reselect = {.reselect = Reselect::kTopK, .k = 10};
    s.grid.block_indices = 4096;
  })(spec);
  for (const uint32_t shards : {1U, 2U, 3U, 7U, 24U, 30U}) {
    for (const uint32_t parts : {0U, 1U, 3U, 64U}) {
      spec.parts_per_shard = parts;
      const JobLayout layout = plan_layout(spec, shards);
      uint64_t end = 0;
      for (const PartLayout& part : layout.parts) {
        ASSERT_EQ(part.begin, end);
        ASSERT_EQ(part.begin % 4096, 0U) << shards << " shards of " << parts;
        ASSERT_LT(part.begin, part.end) << shards << " shards of " << parts;
        end = part.end;
      }
      ASSERT_EQ(end, 100'000U);
      // 24 whole blocks: as many shards take part, and no more.
      ASSERT_EQ(layout.parts.back().shard > 0, shards > 1 && shards <= 24) << shards;
    }
  }
}

}  // namespace
}  // namespace millrace::protocol
