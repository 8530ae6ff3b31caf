#include "worker/core/residual/push_slot.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/stream/rows.h"
#include "kernels/stream/stream_scan.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/local_clip.h"

namespace millrace::worker {
namespace {

/// The entries with a finite value; returns how many were left out.
uint64_t copy_only_finite(IndexSpan indices, std::span<const float> values, Stream& out) {
  out.indices.clear();
  out.values.clear();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    out.indices.push_back(indices[i]);
    out.values.push_back(values[i]);
  }
  return values.size() - out.values.size();
}

Error index_out_of_range(IndexSpan indices, uint64_t dimension) {
  const auto at = std::find_if(indices.begin(), indices.end(), [&](uint32_t index) { return index >= dimension; });
  const uint32_t index = at == indices.end() ? 0 : *at;
  return {ErrorCode::kInvalidArgument,
          "index " + std::to_string(index) + " is out of range of a tensor of dimension " + std::to_string(dimension)};
}

}  // namespace

PushSlot::PushSlot(Bucket& bucket, uint32_t tensor, uint64_t offset, uint64_t dimension)
    : bucket_(bucket), tensor_(tensor), offset_(offset), dimension_(dimension) {
  if (bucket_.spec_.audit) books_.resize(bucket_.parts_.size());
}

Status PushSlot::check(float weight) const {
  if (filled_) return fail(ErrorCode::kInvalidArgument, "this tensor's gradient of the step was pushed already");
  if (!std::isfinite(weight) || weight <= 0) {
    return fail(ErrorCode::kInvalidArgument, "the weight of a gradient must be finite and positive");
  }
  return {};
}

Status PushSlot::add_dense(std::span<const float> gradient, float weight) {
  if (auto valid = check(weight); !valid) return valid;
  if (gradient.size() != dimension_) {
    return fail(ErrorCode::kInvalidArgument, "a gradient of " + std::to_string(gradient.size()) +
                                                 " values for a tensor of dimension " + std::to_string(dimension_));
  }
  Buffer<float> clean;
  uint64_t dropped = 0;
  if (!all_finite_on_threads(gradient)) {
    if (bucket_.spec_.non_finite == protocol::NonFinite::kRefuse) {
      return fail(ErrorCode::kNonFinite, "the gradient holds NaN or infinity; nothing of it was taken");
    }
    clean.assign(gradient.begin(), gradient.end());
    for (float& value : clean) {
      if (std::isfinite(value)) continue;
      value = 0;
      ++dropped;
    }
    gradient = clean;
  }
  const StreamView whole{dimension_, true, {}, gradient};
  measure(whole);
  std::unique_lock<std::mutex> fill(bucket_.fill_, std::defer_lock);
  if (bucket_.slots_.size() == 1) fill.lock();
  add_whole(gradient, weight);
  // Allocates nothing from here on: a slot that ran out of memory has counted nothing.
  if (!bucket_.enters_in_select()) bucket_.ledger_.enter(offset_, whole, weight);
  weight_ = weight;
  filled_ = true;
  non_finite_dropped_ += dropped;
  return {};
}

void PushSlot::add_whole(std::span<const float> gradient, float weight) {
  const bool lone = bucket_.enters_in_slot();
  ResidualSum& residual = bucket_.residual_;
  if (lone && residual.form() != ResidualSum::Form::kEmpty) {
    const StreamView whole{dimension_, true, {}, gradient};
    return books_.empty() ? residual.add_to_dense(whole, weight, bucket_.largest_wanted()) : add_audited(whole, weight);
  }
  // Nothing to add to: the array of the step before, if there is one, is written over.
  Buffer<float> values = lone ? std::exchange(bucket_.spare_, {}).values : Buffer<float>{};
  values.resize(dimension_);
  scale_on_threads(gradient, weight, values);
  Stream entering{dimension_, true, {}, std::move(values)};
  if (!bucket_.enters_in_select()) book_entered(entering.view());
  if (lone) return residual.add(std::move(entering));
  staged_ = std::move(entering);
}

void PushSlot::add_audited(const StreamView& stream, float weight) {
  bucket_.residual_.entries().make_dense();
  const std::span<float> residual = bucket_.residual_.entries().values();
  // All of it before the first part is added: the residual must not keep some parts of a gradient when memory runs out.
  std::vector<Stream> cuts;
  if (!stream.dense) {
    cuts.reserve(bucket_.parts_.size());
    for (const protocol::PartLayout& part : bucket_.parts_) {
      const auto [begin, end] = within(part);
      cuts.push_back(slice_of(stream, begin, end));
    }
  }
  for (size_t at = 0; at < bucket_.parts_.size(); ++at) {
    const auto [begin, end] = within(bucket_.parts_[at]);
    const StreamView piece = stream.dense ? StreamView{end - begin, true, {}, stream.values.subspan(begin, end - begin)}
                                          : std::as_const(cuts[at]).view();
    const Accumulated done = accumulate(residual.subspan(begin, end - begin), piece, weight);
    books_[at].entered.add(done.taken);
    books_[at].rounded_off.add_rounded(done.rounded);
  }
}

Stream PushSlot::stream_for(size_t entries) {
  // The arrays of the step before are written over: fresh ones would be paid for page by page.
  Stream stream = bucket_.slots_.size() == 1 ? std::exchange(bucket_.spare_, {}) : Stream{};
  stream.dimension = dimension_;
  stream.dense = false;
  stream.indices.resize(entries);
  stream.values.resize(entries);
  return stream;
}

Status PushSlot::add_rows(uint32_t width, std::span<const uint32_t> rows, std::span<const float> values, float weight) {
  if (auto valid = check(weight); !valid) return valid;
  if (auto valid = check_rows(width, rows, values.size(), dimension_); !valid) return valid;
  if (!strictly_increasing(rows.data(), rows.size())) {
    IndexBuffer indices;
    indices.resize(values.size());
    indices_of_rows(width, rows, indices);
    return add_sparse(indices, values, weight);
  }
  Stream stream = stream_for(values.size());
  indices_of_rows(width, rows, stream.indices);
  if (!copy_finite(values.data(), stream.values)) return add_sparse(stream.indices, values, weight);
  enter(std::move(stream), weight);
  return {};
}

Status PushSlot::add_sparse(IndexSpan indices, std::span<const float> values, float weight) {
  if (auto valid = check(weight); !valid) return valid;
  if (indices.size() != values.size()) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(indices.size()) + " indices and " + std::to_string(values.size()) + " values");
  }
  Stream stream = stream_for(indices.size());
  uint64_t dropped = 0;
  bool increasing = copy_increasing(indices.data(), stream.indices);
  if (!copy_finite(values.data(), stream.values)) {
    if (bucket_.spec_.non_finite == protocol::NonFinite::kRefuse) {
      return fail(ErrorCode::kNonFinite, "the gradient holds NaN or infinity; nothing of it was taken");
    }
    dropped = copy_only_finite(indices, values, stream);
    increasing = false;  // coalesce() checks the remaining entries
  }
  if (!increasing) {
    auto coalesced =
        dropped == 0 ? coalesce(dimension_, indices, values) : coalesce(dimension_, stream.indices, stream.values);
    if (!coalesced) return std::unexpected(coalesced.error());
    stream = std::move(*coalesced);
    if (!all_finite(stream.values)) return fail(ErrorCode::kNonFinite, "duplicate entries add up to infinity");
  } else if (!stream.indices.empty() && stream.indices.back() >= dimension_) {
    return std::unexpected(index_out_of_range(stream.indices, dimension_));
  }
  enter(std::move(stream), weight);
  non_finite_dropped_ += dropped;
  return {};
}

void PushSlot::enter(Stream&& stream, float weight) {
  measure(stream.view());
  scale(stream, weight);
  const bool lone = bucket_.slots_.size() == 1;
  std::unique_lock<std::mutex> fill(bucket_.fill_, std::defer_lock);
  if (lone) fill.lock();
  const bool joins_residual = bucket_.enters_in_slot() && bucket_.residual_.form() == ResidualSum::Form::kDense;
  if (joins_residual) {
    books_.empty() ? bucket_.residual_.add_to_dense(stream.view(), 1, 0) : add_audited(stream.view(), 1);
  }
  // Allocates nothing from here on, as in add_dense().
  if (!bucket_.enters_in_select()) {
    bucket_.ledger_.enter(offset_, stream.view(), 1);
    if (!joins_residual) book_entered(stream.view());
  }
  if (!joins_residual) staged_ = std::move(stream);
  weight_ = weight;
  filled_ = true;
}

void PushSlot::measure(const StreamView& gradient) {
  if (bucket_.spec_.clip != 0) squared_norm_ = squared_norm_of(gradient.values);
}

std::pair<uint64_t, uint64_t> PushSlot::within(const protocol::PartLayout& part) const {
  return {std::clamp(part.begin, offset_, offset_ + dimension_) - offset_,
          std::clamp(part.end, offset_, offset_ + dimension_) - offset_};
}

void PushSlot::book_entered(const StreamView& entering) {
  for (size_t at = 0; at < books_.size(); ++at) {
    const auto [begin, end] = within(bucket_.parts_[at]);
    const auto [first, last] =
        entering.dense ? std::pair<size_t, size_t>(begin, end) : range_of(entering.indices, begin, end);
    books_[at].entered.add(mass_of(entering.values.subspan(first, last - first)));
  }
}

void PushSlot::restore(const StreamView& residual) {
  bucket_.take_returned();
  book_entered(residual);
  bucket_.ledger_.enter(offset_, residual, 1);
  bucket_.add_to_residual(rebased(residual, offset_, bucket_.dimension_));
}

void PushSlot::uncount_entered(const StreamView& taken) {
  Stream negated{
      taken.dimension, false, {taken.indices.begin(), taken.indices.end()}, {taken.values.begin(), taken.values.end()}};
  for (float& value : negated.values) value = -value;
  book_entered(negated.view());
  bucket_.ledger_.enter(offset_, negated.view(), 1);
}

}  // namespace millrace::worker
