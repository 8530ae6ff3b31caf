#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"

namespace millrace::worker {

/// Returns the sum of the squares, in the order of tail_sums(). Equal values in equal places have the same bits on
/// every path and device. NaN or infinity, where a value is.
double squared_norm_of(std::span<const float> values);

/// Multiplies the values.
void scale(Stream& stream, float factor);

/// Clips locally: scales the gradients of one push of all tensors together to an L2 norm of clip / sqrt(N) at most. N
/// is the number of workers that a step expects. So a push enters only when every tensor has been pushed.
///
/// Source   [RedSync19, appendix B], after [DGC18]: the threshold of a dense job, times N^-1/2.
class LocalClip {
 public:
  explicit LocalClip(const protocol::JobSpec& spec);

  bool on() const { return norm_max_ > 0; }
  /// Notes that a tensor's gradient of push number `push` is filled in.
  void pushed(uint64_t push, uint32_t tensor, double squared_norm);
  /// Says whether every tensor has made push number `push`.
  bool complete(uint64_t push) const;
  /// Returns the factor for the push's gradients: 1 where their norm is below the limit. Of the tensors pushed so far.
  float factor(uint64_t push) const;
  /// Notes that a bucket's gradients of that push have entered. REQUIRES: complete(push).
  void taken(uint64_t push, size_t buckets);

 private:
  struct Push {
    std::vector<double> squared_norms;  ///< by tensor
    size_t tensors = 0;
    size_t buckets_taken = 0;
  };
  const Push* find(uint64_t push) const;

  double norm_max_ = 0;
  size_t tensors_ = 0;
  uint64_t first_ = 0;  ///< the oldest push that a bucket has not taken
  std::deque<Push> pushes_;
};

}  // namespace millrace::worker
