#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/random.h"
#include "kernels/magnitude/value_chunks.h"
#include "kernels/select/top_k.h"
#include "protocol/job/layout.h"
#include "worker/core/residual/bucket.h"

/// Dense pushes of a lone tensor against a slow reference: an addition that collects entries changes no bit.
namespace millrace::worker {
namespace {

using Entries = std::vector<std::pair<uint32_t, uint32_t>>;  // index, bits of the value

/// The slow reference of a residual: a loop adds, and a scan selects afterwards.
class PlainResidual {
 public:
  explicit PlainResidual(size_t n) : values_(n, 0.0f) {}

  void add(size_t index, float value) { values_[index] += value; }
  void push(std::span<const float> gradient, float weight) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const float product = weight * gradient[i];
      values_[i] += product;
    }
  }
  Entries take_largest(size_t k) {
    IndexBuffer positions;
    EXPECT_TRUE(select_top_k_nonzero(values_, k, positions));
    Entries taken;
    for (const uint32_t i : positions) taken.emplace_back(i, std::bit_cast<uint32_t>(std::exchange(values_[i], 0.0f)));
    return taken;
  }
  Entries nonzero() const {
    Entries all;
    for (uint32_t i = 0; i < values_.size(); ++i) {
      if (values_[i] != 0) all.emplace_back(i, std::bit_cast<uint32_t>(values_[i]));
    }
    return all;
  }

 private:
  std::vector<float> values_;
};

struct DenseJob {
  explicit DenseJob(uint64_t n, const char* select) {
    spec.name = "dense";
    spec.tensors.push_back({.name = "w", .dimension = n});
    spec.select = selection_from_text(select).value();
    spec.codec_up = codec_from_text("raw+raw").value();
    spec.parts_per_shard = 3;
    layout = protocol::plan_layout(spec, 1);
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts);
  }
  /// Selects and codes a step; `returns` of every three entries of it return to the residual later.
  Entries send(uint64_t step, uint32_t returns) {
    EXPECT_TRUE(bucket->select(step));
    Entries sent;
    EncodeOptions options;
    options.spec = spec.codec_up;
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      const auto coded = bucket->code(at, options);
      EXPECT_TRUE(coded);
      const StreamView& stream = coded->sent.view;
      Stream back = Stream::empty(stream.dimension);
      for (size_t i = 0; i < stream.indices.size(); ++i) {
        sent.emplace_back(static_cast<uint32_t>(layout.parts[at].begin) + stream.indices[i],
                          std::bit_cast<uint32_t>(stream.values[i]));
        if (i % 3 >= returns) continue;
        back.indices.push_back(stream.indices[i]);
        back.values.push_back(stream.values[i]);
        returned.emplace_back(sent.back());
      }
      bucket->give_back(at, std::move(back));
    }
    return sent;
  }
  Entries nonzero() const {
    const Stream residual = bucket->residual();
    Entries all;
    for (size_t i = 0; i < residual.values.size(); ++i) {
      if (residual.values[i] == 0) continue;
      all.emplace_back(residual.dense ? static_cast<uint32_t>(i) : residual.indices[i],
                       std::bit_cast<uint32_t>(residual.values[i]));
    }
    return all;
  }

  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<Bucket> bucket;
  Entries returned;  ///< by the last step
};

/// A gradient with ties where `levels` is not 0.
std::vector<float> pushed_gradient(size_t n, uint64_t step, uint64_t levels) {
  RandomSequence random(random_key(step, 43));
  std::vector<float> gradient(n);
  for (float& value : gradient) {
    value = levels == 0 ? static_cast<float>(random.next_normal())
                        : static_cast<float>(random.next_below(levels)) * (random.next_below(2) == 0 ? 1.0f : -1.0f);
  }
  return gradient;
}

struct DenseCase {
  uint64_t n;
  uint64_t levels;
  uint32_t returns;
  const char* select;
};

TEST(DensePush, EveryStepIsTheReferencesOnAnyNumberOfThreads) {
  constexpr uint64_t kSteps = 4;
  for (const DenseCase& each :
       {DenseCase{kCollectFrom, 0, 0, "topk:0.01"}, DenseCase{kCollectFrom + 13, 0, 1, "topk:0.01"},
        DenseCase{kCollectFrom + 1, 5, 0, "topk:0.01"}, DenseCase{kCollectFrom, 0, 0, "topk:0.01:warm_up=2"},
        DenseCase{kCollectFrom - 1, 0, 0, "topk:0.01"}, DenseCase{1000, 0, 1, "topk:50"}}) {
    // Step t pushes the values from the t-th on.
    const std::vector<float> all = pushed_gradient(each.n + kSteps, 1, each.levels);
    for (const size_t threads : {1u, 2u, 4u}) {
      SCOPED_TRACE(std::string(each.select) + " of " + std::to_string(each.n) + " on " + std::to_string(threads));
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      DenseJob job(each.n, each.select);
      PlainResidual reference(each.n);
      for (uint64_t step = 0; step < kSteps; ++step) {
        const auto gradient = std::span<const float>(all).subspan(step, each.n);
        ASSERT_TRUE(job.bucket->slot(0).add_dense(gradient, 0.7f));
        reference.push(gradient, 0.7f);
        for (const auto& [index, bits] : std::exchange(job.returned, {})) {
          reference.add(index, std::bit_cast<float>(bits));
        }
        const Entries sent = job.send(step, each.returns);
        ASSERT_TRUE(sent == reference.take_largest(sent.size())) << step;
        ASSERT_TRUE(step + 1 < kSteps || sent.size() == k_of(job.spec.select, each.n)) << sent.size();
      }
      for (const auto& [index, bits] : job.returned) reference.add(index, std::bit_cast<float>(bits));
      ASSERT_TRUE(job.nonzero() == reference.nonzero());
    }
  }
}

TEST(DensePush, ARefusedOneChangesNothing) {
  const size_t n = 4 * kValueChunk + 1;
  DenseJob job(n, "topk:0.01");
  const std::vector<float> gradient = pushed_gradient(n, 1, 0);
  ASSERT_TRUE(job.bucket->slot(0).add_dense(gradient, 1));
  job.send(0, 0);
  const Entries before = job.nonzero();
  for (const size_t at : {size_t{0}, kValueChunk - 1, kValueChunk, 2 * kValueChunk, n - 1}) {
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> bad = gradient;
      bad[at] = wrong;
      const Status refused = job.bucket->slot(0).add_dense(bad, 1);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, ErrorCode::kNonFinite);
      EXPECT_FALSE(job.bucket->slot(0).filled());
    }
    ASSERT_TRUE(job.nonzero() == before) << at;
  }
}

TEST(DensePush, ASumThatOverflowsIsRefusedByTheSelection) {
  DenseJob job(kCollectFrom, "topk:0.01");
  std::vector<float> gradient = pushed_gradient(kCollectFrom, 1, 0);
  ASSERT_TRUE(job.bucket->slot(0).add_dense(gradient, 1));
  job.send(0, 0);
  gradient[kCollectFrom - 5] = std::numeric_limits<float>::max();
  ASSERT_TRUE(job.bucket->slot(0).add_dense(gradient, 2)) << "the value is finite, and its product is not";
  const Status refused = job.bucket->select(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNonFinite);
}

}  // namespace
}  // namespace millrace::worker
