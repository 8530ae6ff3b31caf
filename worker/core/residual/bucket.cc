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
      codec_(layout.codec_up),
      parts_(parts.begin(), parts.end()),
      velocity_(spec.momentum.momentum == protocol::Momentum::kNone
                    ? std::nullopt
                    : std::optional<Velocity>(std::in_place, spec.momentum, layout.dimension)),
      update_(layout.reselect.reselect == protocol::Reselect::kNone ? protocol::UpdateCarries::kWholeSum
                                                                    : protocol::UpdateCarries::kReselected),
      residual_(layout.select, layout.dimension, velocity_ ? &*velocity_ : nullptr),
      ledger_(spec, parts, observer) {
  if (spec_.reproducible && spec_.path == protocol::Path::kServer) grid_.emplace(spec_, parts_);
  selected_ = Stream::empty(dimension_);
  coded_.assign(parts_.size(), 1);
  for (const protocol::BucketMember& member : layout.members) {
    slots_.push_back(
        std::make_unique<PushSlot>(*this, member.tensor, member.offset, spec.tensors[member.tensor].dimension));
  }
}

Bucket::~Bucket() = default;

void Bucket::add_to_residual(Stream&& stream) {
  if (spec_.audit && residual_.form() != ResidualSum::Form::kEmpty) {
    if (stream.dense && residual_.form() == ResidualSum::Form::kDense) return add_audited(stream.view());
    book_rounding(stream.view());
  }
  residual_.add(std::move(stream));
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
  return enters_in_slot() && slots_[0]->staged_.dimension != 0 && slots_[0]->weight_ == 1 &&
         residual_.form() == ResidualSum::Form::kEmpty && std::ranges::all_of(returned_, nothing);
}

Status Bucket::select(uint64_t step_of_job, float clip, uint64_t draws) {
  MILLRACE_CHECK(parts_left_ == 0, parts_left_);
  MILLRACE_CHECK(std::ranges::all_of(slots_, [](const auto& slot) { return slot->filled_; }));
  // A worker whose first step is a later one has joined a running job, and follows its numbers.
  if (resumes_at_ && (steps_ > 0 || step_of_job == 0)) steps_before_ = *resumes_at_ - step_of_job;
  resumes_at_.reset();
  const uint64_t step = steps_before_ + step_of_job;
  steps_ = step + 1;
  const auto values = staged_alone() ? ResidualSum::Values::kKnownFinite : ResidualSum::Values::kUnknown;
  if (enters_in_select()) {
    if (auto entered = let_enter(clip); !entered) return entered;
  } else {
    take_staged();
  }
  take_returned();
  // Entries that a Bloom filter took along cancel out exactly; they must not stay stored.
  if (!find_index_codec(codec_.index)->lossless()) residual_.entries().drop_zeros();
  uncompressed_ = protocol::step_sends(residual_.spec(), dimension_, step) == protocol::StepSends::kUncompressed;
  if (auto done = take_selection(step, draws, values); !done) return done;
  round_to_grid();
  for (auto& slot : slots_) slot->filled_ = false;
  coded_.assign(parts_.size(), 0);
  parts_left_ = parts_.size();
  entries_in_step_ = 0;
  return {};
}

Status Bucket::take_selection(uint64_t step, uint64_t draws, ResidualSum::Values values) {
  const uint64_t bucket = parts_.empty() ? 0 : parts_[0].bucket;
  const SelectContext context{step, random_key(spec_.seed, bucket, step, draws ^ kDrawsOfSelection)};
  const bool takes_all = residual_.selector() == nullptr || uncompressed_;
  if (spec_.unbiased && !takes_all) return draw(context);
  auto taken = takes_all ? residual_.take_finite(values) : residual_.take_selected(context, spare_, keeps());
  if (!taken) return std::unexpected(taken.error());
  selected_ = std::move(*taken);
  return {};
}

Stream Bucket::take_residual(uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(parts_left_ == 0, parts_left_);
  take_returned();
  Stream taken = residual_.take_range(begin, end);
  for (auto& slot : slots_) {
    if (slot->offset_ == begin) slot->uncount_entered(taken.view());
  }
  return taken;
}

}  // namespace millrace::worker
