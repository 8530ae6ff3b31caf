#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "worker/core/residual/bucket.h"

/// Entries that leave the residual and that return to it, and the values lost on the way.
namespace millrace::worker {
namespace {

/// Holds the computed entries that return to part `at`.
struct Returned {
  size_t at = 0;
  Stream stream;
};

/// had - gone, entry by entry: `stays` in f32, and in `beyond` what f32 does not hold of it. Their sum is the
/// difference exactly (TwoSum: [Knuth97, 4.2.2]), where it does not overflow.
void subtract_exactly(std::span<const float> had, std::span<const float> gone, Buffer<float>& stays,
                      Buffer<float>& beyond) {
  stays.resize(had.size());
  beyond.resize(had.size());
  for (size_t i = 0; i < had.size(); ++i) {
    const float difference = had[i] - gone[i];
    const float taken = difference - had[i];
    stays[i] = difference;
    beyond[i] = (had[i] - (difference - taken)) - (gone[i] + taken);
  }
}

StreamView with_values(const StreamView& where, std::span<const float> values) {
  return {where.dimension, where.dense, where.indices, values};
}

/// `values` at the indices of `where`, without the zeros; sparse.
Stream nonzero_of(const StreamView& where, std::span<const float> values) {
  Stream out = Stream::empty(where.dimension);
  // One slot more: a zero is written too, and overwritten.
  out.indices.resize(values.size() + 1);
  out.values.resize(values.size() + 1);
  size_t kept = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    out.indices[kept] = where.dense ? static_cast<uint32_t>(i) : where.indices[i];
    out.values[kept] = values[i];
    kept += values[i] != 0 ? 1 : 0;
  }
  out.indices.resize(kept);
  out.values.resize(kept);
  return out;
}

}  // namespace

void Bucket::give_back(size_t at, Stream&& stream) {
  if (grid_) {
    const auto none = StreamView{parts_[at].end - parts_[at].begin, false, {}, {}};
    counters_.entries_returned += stream.count();
    return resolve_on_grid(at, &none);
  }
  if (stream.count() == 0) return;
  if (spec_.unbiased) return ledger_.discard(at, stream.view());
  counters_.entries_returned += stream.count();
  returned_.push_back({at, std::move(stream)});
}

void Bucket::resolve_offer(size_t at, Stream&& back, uint64_t whole) {
  counters_.entries_returned += whole;
  if (back.count() > 0) returned_.push_back({at, std::move(back)});
}

void Bucket::return_uncarried(size_t at, SharedStream&& sent, const SharedStream& carried) {
  if (sent.view.count() == 0) return;
  // An unbiased job gets the whole sum. Entries that a shard omits all the same must not be sent a second time.
  if (spec_.unbiased) return ledger_.discard(at, not_carried(sent.view, carried.view).view());
  put_off({at, Uncarried{std::move(sent), carried}});
}

void Bucket::put_off(ReturnedPiece&& piece) {
  returned_.push_back(std::move(piece));
  ++deferred_;
}

Bucket::Resolved Bucket::resolve(const ReturnedPiece& piece) {
  if (const auto* rest = std::get_if<Uncarried>(&piece.what))
    return {not_carried(rest->sent.view, rest->carried.view), {}};
  const auto& recoded = std::get<Recoded>(piece.what);
  Buffer<float> error;
  Resolved found;
  subtract_exactly(recoded.selected.values, recoded.sent.view.values, error, found.beyond);
  const bool returns = recoded.errors == ErrorsOf::kPiece;
  found.back = returns ? nonzero_of(recoded.selected.view(), error) : Stream::empty(recoded.selected.dimension);
  return found;
}

/// Books the outcome of a postponed piece.
void Bucket::book(const ReturnedPiece& piece, const Resolved& found, BucketCounters& counters, Ledger& ledger) {
  const auto* recoded = std::get_if<Recoded>(&piece.what);
  if (recoded == nullptr) {
    counters.entries_returned += found.back.count();
  } else {
    ledger.lose(piece.at, with_values(recoded->selected.view(), found.beyond));
  }
}

bool Bucket::resolve_one_deferred() {
  if (deferred_ == 0) return velocity_ && velocity_->resolve_one_deferred();
  while (!returned_[resolved_to_].is_deferred()) ++resolved_to_;
  ReturnedPiece& oldest = returned_[resolved_to_];
  Resolved found = resolve(oldest);
  book(oldest, found, counters_, ledger_);
  oldest.what = std::move(found.back);
  --deferred_;
  return true;
}

void Bucket::take_returned() {
  while (deferred_ > 0) resolve_one_deferred();
  std::vector<Returned> returned;
  returned.reserve(returned_.size());
  for (ReturnedPiece& piece : returned_) {
    auto& stream = std::get<Stream>(piece.what);
    if (stream.count() > 0) returned.push_back({piece.at, std::move(stream)});
  }
  returned_.clear();
  resolved_to_ = 0;
  had_returned_ = !returned.empty();
  if (returned.empty()) return;
  // Pieces of different parts are disjoint: all of them are added at once. A part has two where its code changed values
  // and its update came since, and where steps ran ahead.
  std::ranges::stable_sort(returned, {}, &Returned::at);
  while (!returned.empty()) {
    std::vector<PlacedStream> pieces;
    std::vector<Returned> now;
    std::vector<Returned> later;
    for (Returned& piece : returned) {
      const bool second = !now.empty() && now.back().at == piece.at;
      (second ? later : now).push_back(std::move(piece));
    }
    for (const Returned& piece : now) {
      if (spec_.audit) book_rounding(piece.at, piece.stream.view());
      pieces.push_back({parts_[piece.at].begin, piece.stream.view()});
    }
    residual_.add(pieces);
    returned = std::move(later);
  }
}

std::vector<Stream> Bucket::beside_sum() const {
  std::vector<Stream> more;
  for (const auto& slot : slots_) {
    if (slot->staged_.dimension != 0 && !enters_in_select())
      more.push_back(rebased(slot->staged_.view(), slot->offset_, dimension_));
  }
  for (const ReturnedPiece& piece : returned_) {
    const auto* known = std::get_if<Stream>(&piece.what);
    const Stream found = known == nullptr ? resolve(piece).back : Stream{};
    more.push_back(rebased(known == nullptr ? found.view() : known->view(), parts_[piece.at].begin, dimension_));
  }
  append_quarantined(more);
  for (size_t at = 0; at < parts_.size() && grid_; ++at) {
    more.push_back(rebased(remainder_in_flight(at).view(), parts_[at].begin, dimension_));
  }
  for (size_t at = 0; at < parts_.size() && parts_left_ > 0; ++at) {
    if (coded_[at] != 0) continue;
    more.push_back(
        rebased(slice_of(selected_.view(), parts_[at].begin, parts_[at].end).view(), parts_[at].begin, dimension_));
  }
  return more;
}

Stream Bucket::residual() const {
  const std::vector<Stream> more = beside_sum();
  Stream copied;
  std::vector<StreamView> views{residual_.view(copied)};
  for (const Stream& stream : more) views.push_back(stream.view());
  auto sum = sum_many(views);
  MILLRACE_CHECK(sum.has_value(), dimension_);
  return std::move(*sum);
}

double Bucket::residual_norm() const {
  const std::vector<Stream> more = beside_sum();
  std::vector<StreamView> views;
  for (const Stream& stream : more) views.push_back(stream.view());
  if (views.empty()) return residual_.norm({dimension_, false, {}, {}});
  const auto together = sum_many(views);
  MILLRACE_CHECK(together.has_value(), dimension_);
  return residual_.norm(together->view());
}

Ledger Bucket::with_postponed(BucketCounters& counters, LedgerObserver* observer) const {
  Ledger ledger = ledger_.reporting_to(observer);
  for (const ReturnedPiece& piece : returned_) {
    if (piece.is_deferred()) book(piece, resolve(piece), counters, ledger);
  }
  return ledger;
}

BucketCounters Bucket::counters() const {
  BucketCounters all = counters_;
  if (const CodecChoice* choice = chooser_.choice()) all.codec_choice = choice->text();
  const Losses losses = deferred_ == 0 ? ledger_.losses() : with_postponed(all, nullptr).losses();
  static_cast<Losses&>(all) = losses;
  return all;
}

void Bucket::report_postponed(LedgerObserver& observer) const {
  BucketCounters all = counters_;
  with_postponed(all, &observer);
}

void Bucket::lose_difference(size_t at, const StreamView& selected, const StreamView& sent) {
  Buffer<float> error;
  Buffer<float> beyond;
  subtract_exactly(selected.values, sent.values, error, beyond);
  ledger_.lose(at, with_values(selected, beyond));
  if (spec_.codec_error == protocol::CodecError::kDrop) ledger_.lose(at, with_values(selected, error));
}

}  // namespace millrace::worker
