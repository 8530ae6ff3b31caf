#include "worker/core/bucket.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "kernels/base/random.h"

namespace millrace::worker {
namespace {

constexpr uint64_t kDimension = 20'000;

/// A job of one tensor in several parts that sends 4-bit values.
struct QuantizedJob {
  explicit QuantizedJob(protocol::CodecError codec_error) {
    spec.name = "bucket";
    spec.tensors.push_back({.name = "w", .dimension = kDimension});
    spec.select.selection = Selection::kNone;
    spec.parts_per_shard = 3;
    spec.codec_up = codec_from_text("gap+qsgd4").value();
    spec.codec_error = codec_error;
    layout = protocol::plan_layout(spec, 1);
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts, LedgerMode::kPerIndex);
  }

  /// Pushes a stream and codes all of it; returns what the receivers decode.
  std::map<uint32_t, float> send(const Stream<float>& pushed) {
    EXPECT_TRUE(bucket->slot(0).add_sparse(pushed.indices, pushed.values, 1));
    EXPECT_TRUE(bucket->select(0));
    std::map<uint32_t, float> sent;
    EncodeOptions options;
    options.spec = spec.codec_up;
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      const auto coded = bucket->code(at, options);
      EXPECT_TRUE(coded);
      const StreamView<float>& stream = coded->sent.view;
      for (size_t i = 0; i < stream.indices.size(); ++i) {
        sent[static_cast<uint32_t>(layout.parts[at].begin) + stream.indices[i]] = stream.values[i];
      }
    }
    return sent;
  }

  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<Bucket> bucket;
};

Stream<float> some_gradient() {
  RandomSequence random(random_key(3));
  Stream<float> stream = Stream<float>::empty(kDimension);
  for (uint32_t index = 0; index < kDimension; index += 1 + static_cast<uint32_t>(random.next_below(9))) {
    stream.indices.push_back(index);
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  return stream;
}

TEST(Bucket, WhatACodeChangedIsInTheResidualBeforeAndAfterItIsSettled) {
  QuantizedJob job(protocol::CodecError::kRetain);
  const Stream<float> pushed = some_gradient();
  auto sent = job.send(pushed);
  ASSERT_EQ(sent.size(), pushed.count());
  ASSERT_TRUE(job.bucket->unsettled());
  const Stream<float> before = job.bucket->residual();
  while (job.bucket->settle_one()) {
  }
  ASSERT_FALSE(job.bucket->unsettled());
  const Stream<float> after = job.bucket->residual();
  EXPECT_EQ(before.indices, after.indices);
  EXPECT_EQ(before.values, after.values);
  std::map<uint32_t, float> stays;
  for (size_t i = 0; i < after.indices.size(); ++i) stays[after.indices[i]] = after.values[i];
  uint64_t rounded = 0;
  for (size_t i = 0; i < pushed.indices.size(); ++i) {
    const uint32_t index = pushed.indices[i];
    const double kept = static_cast<double>(stays[index]) + job.bucket->lost()[index];
    ASSERT_EQ(static_cast<double>(sent[index]) + kept, static_cast<double>(pushed.values[i])) << "index " << index;
    rounded += job.bucket->lost()[index] != 0 ? 1 : 0;
  }
  EXPECT_GT(rounded, 0) << "no difference went beyond f32: the case that the ledger is for was not met";
}

TEST(Bucket, WhatACodeChangedIsInTheLedgerAtOnceWhereItIsDropped) {
  QuantizedJob job(protocol::CodecError::kDrop);
  const Stream<float> pushed = some_gradient();
  auto sent = job.send(pushed);
  EXPECT_FALSE(job.bucket->unsettled());
  EXPECT_EQ(job.bucket->residual().count(), 0);
  double dropped = 0;
  for (size_t i = 0; i < pushed.indices.size(); ++i) {
    const uint32_t index = pushed.indices[i];
    const double lost = job.bucket->lost()[index];
    ASSERT_EQ(static_cast<double>(sent[index]) + lost, static_cast<double>(pushed.values[i])) << "index " << index;
    dropped += lost;
  }
  EXPECT_NEAR(job.bucket->counters().dropped_error, dropped, 1e-9 * static_cast<double>(pushed.count()));
}

}  // namespace
}  // namespace millrace::worker
