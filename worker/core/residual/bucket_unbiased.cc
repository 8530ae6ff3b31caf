#include <utility>

#include "kernels/reduce/audit_sums.h"
#include "worker/core/residual/bucket.h"

/// Unbiased jobs with a selection: the entries to send are drawn. The values that drawing adds or omits count as lost.
namespace millrace::worker {

Status Bucket::draw(const SelectContext& context) {
  IndexBuffer positions;
  Buffer<float> values;
  Accumulator& sum = residual_.entries();
  if (!sum.is_empty()) {
    if (auto done = residual_.selector()->draw(sum.view(), context, positions, values); !done) return done;
  }
  IndexBuffer indices(positions.size());
  Buffer<float> beyond(positions.size());
  const StreamView all = sum.view();
  const std::span<float> held = sum.values();
  for (size_t i = 0; i < positions.size(); ++i) {
    indices[i] = all.dense ? positions[i] : all.indices[positions[i]];
    const Rounded<float> left = rounded_sum(held[positions[i]], -values[i]);
    held[positions[i]] = left.sum;
    beyond[i] = left.off;
  }
  selected_ = {dimension_, false, std::move(indices), std::move(values)};
  // The residual now has entered - sent, entry by entry.
  ledger_.lose_of_bucket(sum.view());
  ledger_.lose_of_bucket({dimension_, false, selected_.indices, beyond});
  Stream done = sum.take_all();
  if (slots_.size() == 1) spare_ = std::move(done);
  return {};
}

}  // namespace millrace::worker
