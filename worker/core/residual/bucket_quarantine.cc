#include <utility>

#include "kernels/base/check.h"
#include "worker/core/residual/bucket.h"

/// The quarantined residual of a rejoining worker (R9): apart from values pushed meanwhile, until each of its parts is
/// settled.
namespace millrace::worker {

bool Bucket::quarantine_residual() {
  if (quarantine_) return true;
  MILLRACE_CHECK(parts_left_ == 0, parts_left_);
  // A lone tensor is filled straight into the residual.
  const std::unique_lock<std::mutex> no_fill(fill_, std::try_to_lock);
  if (!no_fill.owns_lock()) return false;
  while (resolve_one_deferred()) {
  }
  auto quarantine = std::make_unique<Quarantine>();
  quarantine->shares.assign(parts_.size(), ShareState::kInBooks);
  quarantine->residual = residual_.take_all();
  quarantine_ = std::move(quarantine);
  for (ReturnedPiece& piece : returned_) {
    quarantine_->returned.push_back({piece.at, std::move(std::get<Stream>(piece.what))});
  }
  returned_.clear();
  resolved_to_ = 0;
  return true;
}

void Bucket::quarantine_loaded(Stream&& residual) {
  MILLRACE_CHECK(!quarantine_ && residual.dimension == dimension_, residual.dimension, dimension_);
  quarantine_ = std::make_unique<Quarantine>();
  quarantine_->residual = std::move(residual);
  quarantine_->shares.assign(parts_.size(), ShareState::kLoaded);
}

Stream Bucket::share_of(size_t at) const {
  return slice_of(quarantine_->residual.view(), parts_[at].begin, parts_[at].end);
}

void Bucket::return_to_quarantine(size_t at, Stream&& stream) {
  if (!quarantine_) return give_back(at, std::move(stream));
  if (stream.count() == 0) return;
  if (!spec_.unbiased) counters_.entries_returned += stream.count();
  quarantine_->returned.push_back({at, std::move(stream)});
}

void Bucket::return_uncarried_to_quarantine(size_t at, SharedStream&& sent, const SharedStream& carried) {
  if (sent.view.count() == 0) return;
  const ReturnedPiece piece{at, Uncarried{std::move(sent), carried}};
  return_to_quarantine(at, resolve(piece).back);
}

void Bucket::accept_quarantined(size_t at) {
  if (!quarantine_ || quarantine_->shares[at] != ShareState::kLoaded) return;
  quarantine_->shares[at] = ShareState::kInBooks;
  if (ledger_.takes_openings()) ledger_.open(at, share_of(at).view());
}

double Bucket::drop_quarantined(size_t at) {
  if (!quarantine_) return 0;
  double sum = 0;
  if (quarantine_->shares[at] != ShareState::kGone) {
    const Stream share = share_of(at);
    const bool in_books = quarantine_->shares[at] == ShareState::kInBooks;
    sum += (in_books ? ledger_.lose(at, share.view()) : mass_of(share.values)).magnitude;
  }
  quarantine_->shares[at] = ShareState::kGone;
  for (const Quarantine::Piece& piece : quarantine_->returned) {
    if (piece.at != at) continue;
    sum += ledger_.lose(at, piece.stream.view()).magnitude;
  }
  std::erase_if(quarantine_->returned, [at](const Quarantine::Piece& piece) { return piece.at == at; });
  return sum;
}

void Bucket::merge_quarantined() {
  if (!quarantine_) return;
  for (size_t at = 0; at < parts_.size(); ++at) {
    MILLRACE_CHECK(quarantine_->shares[at] != ShareState::kLoaded, at);
    if (quarantine_->shares[at] == ShareState::kGone) continue;
    merge_piece(at, share_of(at));
  }
  for (Quarantine::Piece& piece : quarantine_->returned) merge_piece(piece.at, std::move(piece.stream));
  quarantine_.reset();
}

void Bucket::merge_piece(size_t at, Stream&& stream) {
  if (stream.count() == 0) return;
  // An unbiased job keeps no residual: the contributions in flight have missed their step.
  if (spec_.unbiased) return ledger_.discard(at, stream.view());
  returned_.push_back({at, std::move(stream)});
}

void Bucket::append_quarantined(std::vector<Stream>& streams) const {
  if (!quarantine_) return;
  for (size_t at = 0; at < parts_.size(); ++at) {
    if (quarantine_->shares[at] != ShareState::kInBooks) continue;
    streams.push_back(rebased(share_of(at).view(), parts_[at].begin, dimension_));
  }
  for (const Quarantine::Piece& piece : quarantine_->returned) {
    streams.push_back(rebased(piece.stream.view(), parts_[piece.at].begin, dimension_));
  }
}

std::vector<Stream> Bucket::loaded_quarantined() const {
  std::vector<Stream> streams;
  for (size_t at = 0; quarantine_ && at < parts_.size(); ++at) {
    if (quarantine_->shares[at] != ShareState::kLoaded) continue;
    streams.push_back(rebased(share_of(at).view(), parts_[at].begin, dimension_));
  }
  return streams;
}

}  // namespace millrace::worker
