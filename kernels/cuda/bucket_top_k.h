#pragma once

#include <algorithm>
#include <string>

#include "kernels/cuda/array_kernels.h"
#include "kernels/cuda/bucket_kernels.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/top_k.h"

namespace millrace::cuda {

/// Arrays and parameters of a bucket selection. All arrays have n entries, in the queue's memory.
struct BucketJob {
  const float* residual = nullptr;
  const float* gradient = nullptr;  ///< null: nothing to add
  float* kept = nullptr;            ///< the new residual, may be `residual`; null: not wanted
  uint64_t n = 0;
  uint32_t bucket_size = 4096;
  uint32_t k = 64;
  uint32_t bits = 0;      ///< of a QSGD code (2 to 8), k values a bucket, scale: the maximum; 0: no code
  WordSource words = {};  ///< of the code
};

/// Positions, values and code of a bucket selection, in the queue's memory.
template <class Queue>
struct BucketSelection {
  Positions<Queue> selected;
  MemoryOf<Queue, float> values;  ///< as selected
  MemoryOf<Queue, uint8_t> code;
  uint64_t code_bytes = 0;
};

template <class Queue>
class BucketSelector {
 public:
  BucketSelector(Queue& queue, const BucketJob& job)
      : queue_(queue), job_(job), buckets_((job.n + job.bucket_size - 1) / job.bucket_size) {}

  /// Errors  limit_exceeded: no memory; `kept` is unspecified then, as with non_finite.
  Result<BucketSelection<Queue>> select() {
    const uint64_t room = buckets_ * job_.k;
    BucketSelection<Queue> result{{queue_.template allocate<uint32_t>(room), 0},
                                  queue_.template allocate<float>(room),
                                  queue_.template allocate<uint8_t>(code_bytes(room)),
                                  0};
    auto counts = queue_.template allocate<uint32_t>(buckets_);
    auto memory = queue_.template allocate<BucketState>(1);
    queue_.clear(memory.data(), sizeof(BucketState));
    queue_.launch(kernel(result, counts.data(), memory.data()), buckets_);
    BucketState state;
    queue_.download(std::span(&state, 1), memory.data());
    if (auto done = queue_.finish(); !done) return std::unexpected(done.error());
    if (state.non_finite != 0) return non_finite_values();
    result.selected.count = state.selected;
    // Less than k in the last bucket alone leaves no hole, but its code is of fewer values.
    if (state.selected != room) return compacted(std::move(result), counts.data());
    result.code_bytes = code_bytes(room);
    return result;
  }

 private:
  uint64_t code_bytes(uint64_t values) const {
    return job_.bits == 0 ? 0 : qsgd_encoded_bytes(values, job_.bits, job_.k);
  }

  BucketTopK kernel(const BucketSelection<Queue>& result, uint32_t* counts, BucketState* state) const {
    const bool is_aligned = is_aligned16(job_.residual) != 0 && is_aligned16(job_.gradient) != 0 &&
                            is_aligned16(job_.kept) != 0 && job_.bucket_size % 4 == 0;
    return {.residual = job_.residual,
            .gradient = job_.gradient,
            .kept = job_.kept,
            .count = job_.n,
            .bucket_size = job_.bucket_size,
            .k = job_.k,
            .bits = job_.bits,
            .is_aligned = is_aligned ? 1u : 0u,
            .words = job_.words,
            .positions = result.selected.positions.data(),
            .values = result.values.data(),
            .counts = counts,
            .codes = result.code.data(),
            .record_bytes = static_cast<uint32_t>(code_bytes(job_.k)),
            .state = state};
  }

  /// Closes the holes of buckets with fewer than k entries, and codes the values again: buckets of the code have k.
  Result<BucketSelection<Queue>> compacted(BucketSelection<Queue> from, uint32_t* counts) {
    const uint64_t count = from.selected.count;
    auto first = queue_.template allocate<uint64_t>(buckets_);
    queue_.launch(ScanCounts{static_cast<uint32_t>(buckets_), counts, first.data()}, 1);
    BucketSelection<Queue> result{{queue_.template allocate<uint32_t>(count), count},
                                  queue_.template allocate<float>(count),
                                  queue_.template allocate<uint8_t>(code_bytes(count)),
                                  code_bytes(count)};
    uint32_t* const positions = result.selected.positions.data();
    queue_.launch(CompactBuckets{job_.k, counts, first.data(), from.selected.positions.data(), from.values.data(),
                                 positions, result.values.data()},
                  buckets_);
    if (job_.bits != 0) recode(result);
    if (auto done = queue_.finish(); !done) return std::unexpected(done.error());
    return result;
  }

  void recode(BucketSelection<Queue>& result) {
    const uint64_t count = result.selected.count;
    auto decoded = queue_.template allocate<float>(count);
    auto flag = queue_.template allocate<uint32_t>(1);
    const BucketLayout layout{
        .count = count, .bucket_size = job_.k, .head_bytes = sizeof(float), .codes_bits = job_.bits};
    code_buckets(queue_, QsgdFormat{job_.bits, 0}, layout, result.values.data(), job_.words, result.code.data(),
                 decoded.data(), flag.data());
    if (job_.kept == nullptr) return;
    queue_.launch(
        ScatterDifference{result.selected.positions.data(), result.values.data(), decoded.data(), count, job_.kept},
        (count + ScatterDifference::kThreads - 1) / ScatterDifference::kThreads);
  }

  Queue& queue_;
  BucketJob job_;
  uint64_t buckets_;
};

/// Adds a gradient, selects the k largest of every bucket, codes them and keeps the rest. On the host these are the
/// steps of an accumulator, `bucket_topk`, `qsgd` with buckets of k values, and error feedback.
///
/// Order    increasing positions; ties: lower index first; zeros are not selected.
/// Cost     one read of each array and one write, where every bucket has k entries that are not 0. Otherwise the
///          selected
///          are moved and coded once more. Waits for the queue.
/// Errors   unsupported: bucket_size over 4,096, or k over 256. invalid_argument: bucket_size or k of 0, or bits.
///          non_finite: NaN or infinity among the sums; `kept` is unspecified then.
/// Source   [SparCML19, 8.3].
template <class Queue>
Result<BucketSelection<Queue>> bucket_top_k(Queue& queue, const BucketJob& job) {
  if (job.bucket_size == 0 || job.k == 0) return fail(ErrorCode::kInvalidArgument, "a bucket holds at least 1 index");
  if (job.bits != 0 && (job.bits < kQsgdBitsMin || job.bits > kQsgdBitsMax)) {
    return fail(ErrorCode::kInvalidArgument, "qsgd has 2 to 8 bits, not " + std::to_string(job.bits));
  }
  if (job.bucket_size > BucketTopK::kBucketMax || job.k > BucketTopK::kListed) {
    return fail(ErrorCode::kUnsupported, "cuda: bucket_topk has buckets of up to 4096 entries, 256 of them selected");
  }
  if (job.n > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  return BucketSelector<Queue>(queue, job).select();
}

}  // namespace millrace::cuda
