#include <utility>

#include "kernels/reduce/audit_sums.h"
#include "worker/core/residual/bucket.h"

/// Unbiased jobs with a selection: the entries to send are drawn. The values that drawing adds or omits count as lost.
namespace millrace::worker {

Status Bucket::draw(const SelectContext& context) {
  IndexBuffer positions;
  Buffer<float> values;
  if (residual_.count() > 0) {
    if (auto done = selector_->draw(residual_.view(), context, positions, values); !done) return done;
  }
  IndexBuffer indices(positions.size());
  Buffer<float> beyond(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    indices[i] = residual_.dense ? positions[i] : residual_.indices[positions[i]];
    const Rounded<float> left = rounded_sum(residual_.values[positions[i]], -values[i]);
    residual_.values[positions[i]] = left.sum;
    beyond[i] = left.off;
  }
  selected_ = {dimension_, false, std::move(indices), std::move(values)};
  // The residual now has entered - sent, entry by entry.
  lose_stream(residual_.view());
  lose_stream({dimension_, false, selected_.indices, beyond});
  Stream done = std::exchange(residual_, Stream::empty(dimension_));
  if (slots_.size() == 1) spare_ = std::move(done);
  return {};
}

void Bucket::lose_stream(const StreamView& stream) {
  for (size_t at = 0; at < parts_.size(); ++at) {
    const protocol::PartLayout& part = parts_[at];
    const auto [first, last] =
        stream.dense ? std::pair<size_t, size_t>(part.begin, part.end) : range_of(stream.indices, part.begin, part.end);
    const Mass mass = mass_of(stream.values.subspan(first, last - first));
    counters_.dropped_error += mass.sum;
    counters_.dropped_magnitude += mass.magnitude;
    book_lost(at, mass);
  }
  if (ledger_ != LedgerMode::kPerIndex) return;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    lost_[stream.dense ? i : stream.indices[i]] += static_cast<double>(stream.values[i]);
  }
}

}  // namespace millrace::worker
