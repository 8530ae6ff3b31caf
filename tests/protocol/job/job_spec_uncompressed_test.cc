#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "protocol/job/job_spec.h"
#include "tests/protocol/example_spec.h"
#include "tests/protocol/refused_jobs.h"

/// The items of protocol/job/REFUSED.md about steps that are sent uncompressed, and the settings that may accompany
/// such steps.
namespace millrace::protocol {
namespace {

JobSpec uncompressed(JobSpec spec, const char* select) {
  spec.select = selection_from_text(select).value();
  spec.tensors[1].select.reset();
  return spec;
}

JobSpec asynchronous(JobSpec spec) {
  spec.mode = Mode::kAsynchronous;
  spec.reselect = {};
  for (TensorSpec& tensor : spec.tensors) tensor.reselect.reset();
  return spec;
}

CodecSpec codec(const char* text) { return codec_from_text(text).value(); }

}  // namespace

std::vector<Refused> refused_uncompressed() {
  return {{"uncompressed-asynchronous", kImpossible, "codec_down: gap+qsgd4 changes values",
           [](JobSpec& s) {
             s = asynchronous(uncompressed(s, "topk:0.1:dense=3"));
             s.codec_down = codec("gap+qsgd4");
             for (TensorSpec& tensor : s.tensors) tensor.codec_down.reset();
           }},
          {"uncompressed-asynchronous", kImpossible, "tensor 'bias': codec_down: bloom_p0", [](JobSpec& s) {
             s = asynchronous(s);
             s.tensors[1].select = selection_from_text("topk:0.1:dense=3").value();
             s.tensors[1].codec_down = codec("bloom_p0:0.1");
           }}};
}

namespace {

TEST(UncompressedSteps, MayBeBesideReselectionAndCodesThatLose) {
  const std::vector<std::function<void(JobSpec&)>> accepted = {
      [](JobSpec& s) {
        s = uncompressed(s, "by_size:0.01:signs:dense=3");
        s.codec_up = codec("raw+sign_mean");
        s.codec_down = codec("gap+qsgd8");
        s.reselect = {.reselect = Reselect::kTopK, .density = 0.01};
      },
      [](JobSpec& s) {
        s = asynchronous(uncompressed(s, "by_size:0.01"));
        s.codec_down = codec("gap+qsgd8");
      },
      [](JobSpec& s) {
        s = asynchronous(uncompressed(s, "topk:0.01:dense=3"));
        s.codec_down = codec("gap+deflate");
        for (TensorSpec& tensor : s.tensors) tensor.codec_down.reset();
      },
      [](JobSpec& s) { s.momentum.momentum = Momentum::kNesterovPrinted; }};
  for (const auto& make : accepted) {
    JobSpec spec = example_spec();
    make(spec);
    const Status status = validate(spec);
    EXPECT_TRUE(status) << status.error().message;
  }
}

}  // namespace
}  // namespace millrace::protocol
