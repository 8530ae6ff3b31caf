#include "worker/core/residual/bucket_grid.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/stream/drop_zeros.h"
#include "worker/core/residual/bucket.h"

/// Jobs with `reproducible`: rounding between selection and code, and the returned remainders.
namespace millrace::worker {

BucketGrid::BucketGrid(const protocol::JobSpec& spec, std::span<const protocol::PartLayout> parts)
    : grid_(spec.grid.block_indices, spec.grid.exponent_initial, spec.workers),
      parts_(parts.begin(), parts.end()),
      rounded_(parts.size()) {}

void BucketGrid::round(Stream& selected) {
  const Buffer<float> whole(selected.values.begin(), selected.values.end());
  grid_.round(std::as_const(selected).view(), selected.values);
  const StreamView before{selected.dimension, selected.dense, selected.indices, whole};
  for (size_t at = 0; at < parts_.size(); ++at) {
    const protocol::PartLayout& part = parts_[at];
    Rounded& rounded = rounded_[at];
    MILLRACE_CHECK(!rounded.is_open(), part.part);
    rounded.selected = slice_of(before, part.begin, part.end);
    const Stream sent = slice_of(std::as_const(selected).view(), part.begin, part.end);
    rounded.back.resize(sent.values.size());
    rounded.beyond.resize(sent.values.size());
    grid_remainders(rounded.selected.values, sent.values, rounded.back, rounded.beyond);
  }
  drop_zeros(selected);
}

void BucketGrid::observe(size_t at, const StreamView& sums) {
  grid_.observe(sums, parts_[at].begin);
  if (++observed_ < parts_.size()) return;
  observed_ = 0;
  grid_.end_step();
}

Status BucketGrid::restore_retained(std::span<const uint64_t> retained, uint64_t dimension) {
  return grid_.restore_retained(retained, (dimension + grid_.block_indices() - 1) / grid_.block_indices());
}

Stream grid_returns(const BucketGrid::Rounded& rounded, const StreamView* carried, std::vector<size_t>& lost_again) {
  const Stream& selected = rounded.selected;
  Stream back = Stream::empty(selected.dimension);
  const bool all = carried == nullptr || carried->dense;
  size_t next = 0;
  for (size_t i = 0; i < selected.values.size(); ++i) {
    const uint32_t index = selected.dense ? static_cast<uint32_t>(i) : selected.indices[i];
    while (!all && next < carried->indices.size() && carried->indices[next] < index) ++next;
    const bool applied = all || (next < carried->indices.size() && carried->indices[next] == index);
    const float value = applied ? rounded.back[i] : selected.values[i];
    if (!applied && rounded.beyond[i] != 0) lost_again.push_back(i);
    if (value == 0) continue;
    back.indices.push_back(index);
    back.values.push_back(value);
  }
  return back;
}

void Bucket::round_to_grid() {
  if (!grid_) return;
  grid_->round(selected_);
  for (size_t at = 0; at < parts_.size(); ++at) {
    const BucketGrid::Rounded& rounded = grid_->of(at);
    for (size_t i = 0; i < rounded.beyond.size(); ++i) {
      ledger_.lose(at, rounded.index_of(i), static_cast<double>(rounded.beyond[i]));
    }
  }
}

void Bucket::resolve_on_grid(size_t at, const StreamView* carried) {
  MILLRACE_CHECK(grid_.has_value());
  const BucketGrid::Rounded rounded = grid_->take(at);
  std::vector<size_t> lost_again;
  Stream back = grid_returns(rounded, carried, lost_again);
  for (const size_t i : lost_again) ledger_.lose(at, rounded.index_of(i), -static_cast<double>(rounded.beyond[i]));
  if (back.count() > 0) returned_.push_back({at, std::move(back)});
}

void Bucket::observe_update(size_t at, const StreamView& sums) {
  if (grid_) grid_->observe(at, sums);
}

/// Returns the rounding remainders that wait for the update.
Stream Bucket::remainder_in_flight(size_t at) const {
  Stream back = Stream::empty(parts_[at].end - parts_[at].begin);
  if (!grid_ || !grid_->of(at).is_open()) return back;
  std::vector<size_t> none;
  return grid_returns(grid_->of(at), nullptr, none);
}

}  // namespace millrace::worker
