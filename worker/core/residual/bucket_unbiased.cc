#include <utility>

#include "kernels/reduce/audit_sums.h"
#include "worker/core/residual/bucket.h"

/// Unbiased jobs with a selection: the entries to send are drawn. The values that drawing adds or omits count as lost.
namespace millrace::worker {

Status Bucket::draw(const SelectContext& context) {
  IndexBuffer positions;
  Buffer<float> values;
  if (!residual_.is_empty()) {
    if (auto done = selector_->draw(residual_.view(), context, positions, values); !done) return done;
  }
  IndexBuffer indices(positions.size());
  Buffer<float> beyond(positions.size());
  const StreamView all = residual_.view();
  const std::span<float> held = residual_.values();
  for (size_t i = 0; i < positions.size(); ++i) {
    indices[i] = all.dense ? positions[i] : all.indices[positions[i]];
    const Rounded<float> left = rounded_sum(held[positions[i]], -values[i]);
    held[positions[i]] = left.sum;
    beyond[i] = left.off;
  }
  selected_ = {dimension_, false, std::move(indices), std::move(values)};
  // The residual now has entered - sent, entry by entry.
  ledger_.lose_of_bucket(residual_.view());
  ledger_.lose_of_bucket({dimension_, false, selected_.indices, beyond});
  Stream done = residual_.take_all();
  if (slots_.size() == 1) spare_ = std::move(done);
  return {};
}

}  // namespace millrace::worker
