#include "worker/core/residual/local_clip.h"

#include <cmath>
#include <numeric>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/check.h"
#include "kernels/magnitude/tail_sums.h"

namespace millrace::worker {

double squared_norm_of(std::span<const float> values) {
  const TailSums sums = tail_sums(values, kInfinityKey);
  if (sums.above == 0) return sums.squares;
  double all = 0;
  for (const float value : values) all += static_cast<double>(value) * static_cast<double>(value);
  return all;
}

void scale(Stream& stream, float factor) {
  if (factor == 1) return;
  scale_on_threads(stream.values, factor, stream.values);
}

double local_clip_norm(double clip, protocol::Combine combine, uint32_t contributors) {
  MILLRACE_CHECK(contributors > 0, contributors);
  const double root = std::sqrt(static_cast<double>(contributors));
  return combine == protocol::Combine::kSum ? clip / root : clip * root;
}

LocalClip::LocalClip(const protocol::JobSpec& spec) : tensors_(spec.tensors.size()) {
  const bool alone = spec.mode == protocol::Mode::kAsynchronous;  // a step is one worker's
  const uint32_t expected = alone ? 1 : spec.participants != 0 ? spec.participants : spec.workers;
  norm_max_ = local_clip_norm(spec.clip, spec.combine, expected);
}

const LocalClip::Push* LocalClip::find(uint64_t push) const {
  return push < first_ || push - first_ >= pushes_.size() ? nullptr : &pushes_[push - first_];
}

void LocalClip::pushed(uint64_t push, uint32_t tensor, double squared_norm) {
  if (!on()) return;
  MILLRACE_CHECK(push >= first_, push, first_);
  while (push - first_ >= pushes_.size()) pushes_.push_back({std::vector<double>(tensors_, 0.0), 0, 0});
  Push& own = pushes_[push - first_];
  own.squared_norms[tensor] = squared_norm;
  ++own.tensors;
}

bool LocalClip::complete(uint64_t push) const {
  if (!on()) return true;
  const Push* own = find(push);
  return own != nullptr && own->tensors == tensors_;
}

float LocalClip::factor(uint64_t push) const {
  const Push* own = on() ? find(push) : nullptr;
  if (own == nullptr) return 1;
  // In the order of the tensors: the same bits for any order of the pushes.
  const double norm = std::sqrt(std::accumulate(own->squared_norms.begin(), own->squared_norms.end(), 0.0));
  return norm > norm_max_ ? static_cast<float>(norm_max_ / norm) : 1;
}

void LocalClip::taken(uint64_t push, size_t buckets) {
  if (!on()) return;
  MILLRACE_CHECK(complete(push), push, first_);
  ++pushes_[push - first_].buckets_taken;
  while (!pushes_.empty() && pushes_.front().buckets_taken == buckets) {
    pushes_.pop_front();
    ++first_;
  }
}

}  // namespace millrace::worker
