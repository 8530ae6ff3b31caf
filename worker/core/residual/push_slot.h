#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/stream/stream.h"
#include "protocol/job/layout.h"
#include "worker/core/residual/audit_account.h"
#include "worker/core/residual/device_residual.h"

namespace millrace::worker {

class Bucket;

/// Holds one tensor's gradient of one step. A caller's thread fills it, then hands it to SessionCore::commit_push().
/// Slots of different tensors may be filled at the same time, and while the core runs. The core does not touch a slot's
/// memory until the commit.
class PushSlot {
 public:
  PushSlot(Bucket& bucket, uint32_t tensor, uint64_t offset, uint64_t dimension);

  /// Adds weight * gradient. gradient [dimension], weight finite and positive. With weights of 0 the update of a
  /// weighted mean could have values (of residuals) and no divisor.
  ///
  /// Cost    one pass that looks for NaN and infinity (where the job refuses them), one pass that adds.
  /// Errors  invalid_argument: wrong size, such a weight, or filled twice. non_finite (where the job refuses): nothing
  ///         is taken.
  /// Throws  std::bad_alloc: nothing is taken or counted, and the slot can be filled again.
  Status add_dense(std::span<const float> gradient, float weight);

  /// Does the same for entries in any order; duplicates are added up in the order given.
  ///
  /// Errors  also invalid_argument: sizes differ, an index out of range.
  Status add_sparse(IndexSpan indices, std::span<const float> values, float weight);

  /// Does the same for rows of a table (kernels/stream/rows.h), in any order.
  Status add_rows(uint32_t width, std::span<const uint32_t> rows, std::span<const float> values, float weight);

  /// Does the same for a gradient in a device's memory. The residual is there from the first such gradient on.
  ///
  /// make    called for the first gradient.
  /// Errors  also those of takes_device(), of `make` and of the device.
  Status add_device(const DeviceGradient& gradient, float weight, const MakeDeviceResidual& make);
  /// Says whether add_device() may be called.
  ///
  /// Errors  unsupported: a rule of the job needs the values in the host's memory.
  Status takes_device() const;
  /// Returns the device's first error: the bucket's residual() and state() lack the values on it since then.
  Status device_status() const;

  /// Adds entries to the residual, which count as entered; sparse, indices of the tensor.
  /// REQUIRES  the bucket is idle (Bucket::take_residual()).
  void restore(const StreamView& residual);

  uint32_t tensor() const { return tensor_; }
  uint64_t offset() const { return offset_; }
  uint64_t dimension() const { return dimension_; }
  bool filled() const { return filled_; }
  float weight() const { return weight_; }
  uint64_t non_finite_dropped() const { return non_finite_dropped_; }
  /// Returns the squared L2 norm of the last gradient, before its weight; 0 where the job does not clip.
  double squared_norm() const { return squared_norm_; }

 private:
  friend class Bucket;

  Status check(float weight) const;
  /// Returns a stream of the slot with room for the entries.
  Stream stream_for(size_t entries);
  /// Takes checked entries.
  void enter(Stream&& stream, float weight);
  void add_whole(std::span<const float> gradient, float weight);
  /// Adds into a dense form of the residual itself, of a lone tensor, and accounts it.
  void add_audited(const StreamView& stream, float weight);
  /// Accounts the values that enter with this push, weighted, for the audit; a stream of the slot.
  void book_entered(const StreamView& entering);
  void uncount_entered(const StreamView& taken);
  void measure(const StreamView& gradient);
  /// Returns the part's range, in indices of the slot.
  std::pair<uint64_t, uint64_t> within(const protocol::PartLayout& part) const;

  Bucket& bucket_;
  uint32_t tensor_ = 0;
  uint64_t offset_ = 0;  ///< of the tensor in the bucket
  uint64_t dimension_ = 0;
  bool filled_ = false;  ///< for the step that is not committed or not selected yet
  float weight_ = 1;
  double squared_norm_ = 0;
  Stream staged_;  ///< local to the tensor; dimension 0: nothing is staged (it is in the residual already)
  uint64_t non_finite_dropped_ = 0;
  std::vector<EnteredAccount> books_;  ///< audit: what entered each part of the bucket; empty: the job does not audit
};

}  // namespace millrace::worker
