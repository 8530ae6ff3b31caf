#include "worker/core/residual/bucket.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"

namespace millrace::worker {
namespace {

// Sets a selection's random numbers apart from those of the codec, whose keys are of part and step as well.
constexpr uint64_t kDrawsOfSelection = uint64_t{1} << 63;

Stream must_sum_bucket(const StreamView& a, const StreamView& b) {
  auto sum = sum_two(a, b);
  MILLRACE_CHECK(sum.has_value(), a.dimension, b.dimension);
  return std::move(*sum);
}

}  // namespace

Stream rebased(const StreamView& stream, uint64_t base, uint64_t dimension) {
  Stream out = stream.dense ? to_sparse(stream) : Stream::empty(dimension);
  out.dimension = dimension;
  if (!stream.dense) {
    out.indices.assign(stream.indices.begin(), stream.indices.end());
    out.values.assign(stream.values.begin(), stream.values.end());
  }
  for (uint32_t& index : out.indices) index += static_cast<uint32_t>(base);
  return out;
}

Bucket::Bucket(const protocol::JobSpec& spec, const protocol::BucketLayout& layout,
               std::span<const protocol::PartLayout> parts, LedgerObserver* observer)
    : spec_(spec),
      dimension_(layout.dimension),
      select_spec_(layout.select),
      codec_(layout.codec_up),
      parts_(parts.begin(), parts.end()),
      update_(layout.reselect.reselect == protocol::Reselect::kNone ? protocol::UpdateCarries::kWholeSum
                                                                    : protocol::UpdateCarries::kReselected),
      ledger_(spec, parts, observer) {
  if (select_spec_.selection != SelectionId::kNone) {
    auto selector = make_selector(select_spec_, dimension_);
    MILLRACE_CHECK(selector.has_value(), selector.error().message);
    selector_ = std::move(*selector);
  }
  if (spec_.momentum.momentum != protocol::Momentum::kNone) velocity_.emplace(spec_.momentum, dimension_);
  if (spec_.reproducible && spec_.path == protocol::Path::kServer) grid_.emplace(spec_, parts_);
  residual_ = Stream::empty(dimension_);
  selected_ = Stream::empty(dimension_);
  coded_.assign(parts_.size(), 1);
  for (const protocol::BucketMember& member : layout.members) {
    slots_.push_back(
        std::make_unique<PushSlot>(*this, member.tensor, member.offset, spec.tensors[member.tensor].dimension));
  }
}

Bucket::~Bucket() = default;

void Bucket::add_to_residual(Stream&& stream) {
  if (residual_.dense) {
    if (spec_.audit) return add_all_in_f32(residual_.values, stream.view());
    add_scaled(residual_.values, stream.view(), 1);
  } else if (residual_.count() == 0) {
    residual_ = std::move(stream);
  } else if (stream.dense) {
    if (spec_.audit) {
      add_all_in_f32(stream.values, residual_.view());
    } else {
      add_scaled(stream.values, residual_.view(), 1);
    }
    residual_ = std::move(stream);
  } else {
    if (spec_.audit) book_rounding(residual_.view(), stream.view());
    residual_ = must_sum_bucket(residual_.view(), stream.view());
  }
}

void Bucket::take_staged() {
  if (slots_.size() == 1) {
    Stream& staged = slots_[0]->staged_;
    if (staged.dimension != 0) add_to_residual(std::exchange(staged, {}));
    return;
  }
  add_to_residual(join_staged());
}

Stream Bucket::join_staged() {
  if (slots_.size() == 1) return std::exchange(slots_[0]->staged_, {});
  const bool all_dense = std::ranges::all_of(slots_, [](const auto& slot) { return slot->staged_.dense; });
  std::vector<StreamView> views;
  for (auto& slot : slots_) {
    // A dense piece among sparse ones must not bring its zeros along.
    if (!all_dense && slot->staged_.dense) slot->staged_ = to_sparse(slot->staged_.view());
    views.push_back(slot->staged_.view());
  }
  auto joined = concatenate(views);
  MILLRACE_CHECK(joined.has_value() && joined->dimension == dimension_, dimension_);
  for (auto& slot : slots_) slot->staged_ = {};
  return std::move(*joined);
}

/// Says whether the selection's input is one sparse push and nothing else: its values were checked on arrival.
bool Bucket::staged_alone() const {
  const auto nothing = [](const ReturnedPiece& piece) {
    return !piece.is_deferred() && std::get<Stream>(piece.what).count() == 0;
  };
  return slots_.size() == 1 && !enters_in_select() && slots_[0]->staged_.dimension != 0 && slots_[0]->weight_ == 1 &&
         residual_.count() == 0 && std::ranges::all_of(returned_, nothing);
}

void Bucket::drop_zeros() {
  if (residual_.dense) return;
  size_t kept = 0;
  for (size_t i = 0; i < residual_.values.size(); ++i) {
    residual_.indices[kept] = residual_.indices[i];
    residual_.values[kept] = residual_.values[i];
    kept += residual_.values[i] != 0.0f;
  }
  residual_.indices.resize(kept);
  residual_.values.resize(kept);
}

Status Bucket::select(uint64_t step, float clip, uint64_t draws) {
  MILLRACE_CHECK(parts_left_ == 0, parts_left_);
  MILLRACE_CHECK(std::ranges::all_of(slots_, [](const auto& slot) { return slot->filled_; }));
  const bool known_finite = staged_alone();
  if (enters_in_select()) {
    let_enter(clip);
  } else {
    take_staged();
  }
  take_returned();
  // Entries that a Bloom filter took along cancel out exactly; they must not stay stored.
  if (!find_index_codec(codec_.index)->lossless()) drop_zeros();
  uncompressed_ = protocol::step_sends(select_spec_, dimension_, step) == protocol::StepSends::kUncompressed;
  if (selector_ == nullptr || uncompressed_) {
    if (!known_finite && !all_finite(residual_.values)) {
      return fail(ErrorCode::kNonFinite, "the gradients pushed so far add up to infinity");
    }
    selected_ = std::exchange(residual_, Stream::empty(dimension_));
  } else {
    const uint64_t bucket = parts_.empty() ? 0 : parts_[0].bucket;
    const SelectContext context{step, random_key(spec_.seed, bucket, step, draws ^ kDrawsOfSelection)};
    if (auto done = take_selection(context); !done) return done;
  }
  round_to_grid();
  for (auto& slot : slots_) slot->filled_ = false;
  coded_.assign(parts_.size(), 0);
  parts_left_ = parts_.size();
  entries_in_step_ = 0;
  return {};
}

Status Bucket::take_selection(const SelectContext& context) {
  if (spec_.unbiased) return draw(context);
  IndexBuffer positions;
  if (residual_.count() > 0) {
    if (auto done = selector_->select(residual_.view(), context, positions); !done) return done;
  }
  split_off(positions);
  return {};
}

void Bucket::split_off(const IndexBuffer& positions) {
  selected_ = Stream::empty(dimension_);
  selected_.values.resize(positions.size());
  if (residual_.dense) {
    selected_.indices.assign(positions.begin(), positions.end());
    for (size_t i = 0; i < positions.size(); ++i) {
      selected_.values[i] = std::exchange(residual_.values[positions[i]], 0.0f);
    }
    return;
  }
  selected_.indices.resize(positions.size());
  size_t kept = 0;
  size_t next = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    // What lies between two selected entries moves down as a block.
    const size_t run = positions[i] - next;
    std::copy_n(residual_.indices.begin() + static_cast<std::ptrdiff_t>(next), run,
                residual_.indices.begin() + static_cast<std::ptrdiff_t>(kept));
    std::copy_n(residual_.values.begin() + static_cast<std::ptrdiff_t>(next), run,
                residual_.values.begin() + static_cast<std::ptrdiff_t>(kept));
    kept += run;
    selected_.indices[i] = residual_.indices[positions[i]];
    selected_.values[i] = residual_.values[positions[i]];
    next = positions[i] + 1;
  }
  const size_t rest = residual_.indices.size() - next;
  std::copy_n(residual_.indices.begin() + static_cast<std::ptrdiff_t>(next), rest,
              residual_.indices.begin() + static_cast<std::ptrdiff_t>(kept));
  std::copy_n(residual_.values.begin() + static_cast<std::ptrdiff_t>(next), rest,
              residual_.values.begin() + static_cast<std::ptrdiff_t>(kept));
  residual_.indices.resize(kept + rest);
  residual_.values.resize(kept + rest);
}

Stream Bucket::take_residual(uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(parts_left_ == 0 && begin < end && end <= dimension_, parts_left_, begin, end);
  take_returned();
  drop_zeros();
  Stream taken;
  if (begin == 0 && end == dimension_) {
    taken = std::exchange(residual_, Stream::empty(dimension_));
    if (taken.dense) taken = to_sparse(taken.view());
  } else {
    taken = slice_of(residual_.view(), begin, end);
    if (taken.dense) taken = to_sparse(taken.view());
    IndexBuffer indices;
    Buffer<float> values;
    const Stream kept = residual_.dense ? to_sparse(residual_.view()) : std::move(residual_);
    for (size_t i = 0; i < kept.indices.size(); ++i) {
      if (kept.indices[i] >= begin && kept.indices[i] < end) continue;
      indices.push_back(kept.indices[i]);
      values.push_back(kept.values[i]);
    }
    residual_ = Stream{dimension_, false, std::move(indices), std::move(values)};
  }
  for (auto& slot : slots_) {
    if (slot->offset_ == begin) slot->uncount_entered(taken.view());
  }
  return taken;
}

}  // namespace millrace::worker
