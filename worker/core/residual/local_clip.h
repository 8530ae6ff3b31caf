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

/// Returns the L2 norm that one worker's gradient may have: `clip` limits the norm of all contributions combined.
///
/// The sum of N independent gradients of norm r has a norm of about r * sqrt(N), and their mean of r / sqrt(N). So the
/// limit is clip / sqrt(N) for sums and clip * sqrt(N) for means. Weighted means: exact where all weights are equal.
///
/// contributors  N, the number of contributions to a step; positive.
/// Source        [RedSync19, appendix B], after [DGC18], which adds up gradients: "N^-1/2 of original".
double local_clip_norm(double clip, protocol::Combine combine, uint32_t contributors);

/// Clips locally: scales the gradients of one push of all tensors together to local_clip_norm() at most. N is the
/// number of workers that a step expects, also while fewer are there. So a push enters only when every tensor has been
/// pushed. Shards do not know the factor.
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
