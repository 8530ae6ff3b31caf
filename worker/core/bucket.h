#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"
#include "protocol/job_spec.h"
#include "protocol/layout.h"

namespace millrace::worker {

class Bucket;

/// One tensor's place for one step's gradient, lent by SessionCore::begin_push() and filled on the caller's thread. Slots of
/// different tensors may be filled at the same time; nothing else touches what a lent slot touches.
class PushSlot {
 public:
  /// Adds weight * gradient to the residual. gradient [dimension].
  /// Errors  invalid_argument: size. non_finite (where the job refuses): nothing is taken.
  Status add_dense(std::span<const float> gradient, double weight);
  /// The same for entries in any order, duplicates added up in the order given.
  /// Errors  invalid_argument: sizes differ, index out of range. non_finite: nothing is taken.
  Status add_sparse(IndexSpan indices, std::span<const float> values, double weight);

  uint32_t tensor() const { return tensor_; }

 private:
  friend class Bucket;
  Bucket* bucket_ = nullptr;
  uint32_t tensor_ = 0;
  uint64_t offset_ = 0;
  uint64_t dimension_ = 0;
  bool lent_ = false;
  bool committed_ = false;         ///< for the bucket's next step
  double weight_ = 1;
  Stream<float> staged_;           ///< sparse, local to the tensor; empty dimension: nothing staged
  uint64_t steps_ = 0;             ///< committed so far
  uint64_t non_finite_dropped_ = 0;
};

struct BucketCounters {
  uint64_t entries_sent = 0;
  uint64_t entries_sent_last = 0;
  uint64_t entries_received = 0;
  uint64_t entries_returned = 0;
  uint64_t false_positives = 0;
  uint64_t non_finite_dropped = 0;
  double dropped_error = 0;
};

}  // namespace millrace::worker
