#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "worker/core/residual/bucket.h"

/// The quarantined residual of a rejoining worker (R9): apart from values pushed meanwhile, until each of its parts is
/// settled.
namespace millrace::worker {
namespace {

double sum_of_magnitudes(const StreamView& stream) {
  double sum = 0;
  for (const float value : stream.values) sum += std::abs(static_cast<double>(value));
  return sum;
}

}  // namespace

bool Bucket::set_aside() {
  if (aside_) return true;
  MILLRACE_CHECK(parts_left_ == 0, parts_left_);
  // A lone tensor is filled straight into the residual.
  const std::unique_lock<std::mutex> no_fill(fill_, std::try_to_lock);
  if (!no_fill.owns_lock()) return false;
  while (settle_one()) {
  }
  aside_ = std::make_unique<Aside>();
  aside_->residual = std::exchange(residual_, Stream::empty(dimension_));
  aside_->shares.assign(parts_.size(), Share::kInBooks);
  for (Returning& piece : returning_) {
    aside_->returned.push_back({piece.at, std::move(std::get<Stream>(piece.what))});
  }
  returning_.clear();
  settled_to_ = 0;
  return true;
}

void Bucket::set_aside_loaded(Stream&& residual) {
  MILLRACE_CHECK(!aside_ && residual.dimension == dimension_, residual.dimension, dimension_);
  aside_ = std::make_unique<Aside>();
  aside_->residual = std::move(residual);
  aside_->shares.assign(parts_.size(), Share::kLoaded);
}

Stream Bucket::share_of(size_t at) const { return cut(aside_->residual.view(), parts_[at].begin, parts_[at].end); }

void Bucket::return_aside(size_t at, Stream&& stream) {
  if (!aside_) return give_back(at, std::move(stream));
  if (stream.count() == 0) return;
  if (!spec_.unbiased) counters_.entries_returned += stream.count();
  aside_->returned.push_back({at, std::move(stream)});
}

void Bucket::return_rest_aside(size_t at, HeldStream&& sent, const HeldStream& carried) {
  if (sent.view.count() == 0) return;
  const Returning piece{at, Rest{std::move(sent), carried}};
  return_aside(at, work_out(piece).back);
}

void Bucket::take_over_aside(size_t at) {
  if (!aside_ || aside_->shares[at] != Share::kLoaded) return;
  aside_->shares[at] = Share::kInBooks;
  if (ledger_ != LedgerMode::kPerIndex && !spec_.audit) return;
  const Stream share = share_of(at);
  book_opening(at, share);
  if (ledger_ != LedgerMode::kPerIndex) return;
  for (size_t i = 0; i < share.values.size(); ++i) {
    opening_[parts_[at].begin + (share.dense ? i : share.indices[i])] += static_cast<double>(share.values[i]);
  }
}

double Bucket::drop_aside(size_t at) {
  if (!aside_) return 0;
  double sum = 0;
  if (aside_->shares[at] != Share::kGone) {
    const Stream share = share_of(at);
    sum += sum_of_magnitudes(share.view());
    if (aside_->shares[at] == Share::kInBooks) lose_all(at, share.view());
  }
  aside_->shares[at] = Share::kGone;
  for (const Aside::Piece& piece : aside_->returned) {
    if (piece.at != at) continue;
    sum += sum_of_magnitudes(piece.stream.view());
    lose_all(at, piece.stream.view());
  }
  std::erase_if(aside_->returned, [at](const Aside::Piece& piece) { return piece.at == at; });
  return sum;
}

double Bucket::lose_all(size_t at, const StreamView& stream) {
  for (size_t i = 0; i < stream.values.size(); ++i) {
    lose(at, stream.dense ? i : stream.indices[i], static_cast<double>(stream.values[i]));
  }
  return sum_of_magnitudes(stream);
}

void Bucket::merge_aside() {
  if (!aside_) return;
  for (size_t at = 0; at < parts_.size(); ++at) {
    MILLRACE_CHECK(aside_->shares[at] != Share::kLoaded, at);
    if (aside_->shares[at] == Share::kGone) continue;
    merge_piece(at, share_of(at));
  }
  for (Aside::Piece& piece : aside_->returned) merge_piece(piece.at, std::move(piece.stream));
  aside_.reset();
}

void Bucket::merge_piece(size_t at, Stream&& stream) {
  if (stream.count() == 0) return;
  // An unbiased job keeps no residual: the contributions in flight have missed their step.
  if (spec_.unbiased) return discard(at, stream.view());
  returning_.push_back({at, std::move(stream)});
}

void Bucket::add_aside(std::vector<Stream>& streams) const {
  if (!aside_) return;
  for (size_t at = 0; at < parts_.size(); ++at) {
    if (aside_->shares[at] != Share::kInBooks) continue;
    streams.push_back(rebased(share_of(at).view(), parts_[at].begin, dimension_));
  }
  for (const Aside::Piece& piece : aside_->returned) {
    streams.push_back(rebased(piece.stream.view(), parts_[piece.at].begin, dimension_));
  }
}

std::vector<Stream> Bucket::loaded_aside() const {
  std::vector<Stream> streams;
  for (size_t at = 0; aside_ && at < parts_.size(); ++at) {
    if (aside_->shares[at] != Share::kLoaded) continue;
    streams.push_back(rebased(share_of(at).view(), parts_[at].begin, dimension_));
  }
  return streams;
}

}  // namespace millrace::worker
