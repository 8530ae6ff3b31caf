#include <algorithm>

#include "kernels/base/check.h"
#include "worker/core/residual/bucket.h"

/// The accounts of the audit: the values that entered each part, the values that it holds, and the lost ones.
namespace millrace::worker {
namespace {

/// Returns the mass of the stream's entries in [begin, end).
Mass mass_within(const StreamView& stream, uint64_t begin, uint64_t end) {
  if (stream.dense) return stream.values.empty() ? Mass{} : mass_of(stream.values.subspan(begin, end - begin));
  const auto [first, last] = range_of(stream.indices, begin, end);
  return mass_of(stream.values.subspan(first, last - first));
}

uint64_t count_within(const StreamView& stream, uint64_t begin, uint64_t end) {
  if (stream.dense) return stream.values.empty() ? 0 : end - begin;
  const auto [first, last] = range_of(stream.indices, begin, end);
  return last - first;
}

/// The entries in [begin, end), counted from there.
class AuditPiece {
 public:
  AuditPiece(const StreamView& stream, uint64_t begin, uint64_t end) {
    const auto [first, last] =
        stream.dense ? std::pair<size_t, size_t>(begin, end) : range_of(stream.indices, begin, end);
    view_ = {end - begin, stream.dense, {}, stream.values.subspan(first, last - first)};
    if (stream.dense) return;
    for (const uint32_t index : stream.indices.subspan(first, last - first)) {
      indices_.push_back(static_cast<uint32_t>(index - begin));
    }
    view_.indices = indices_;
  }
  const StreamView& view() const { return view_; }

 private:
  IndexBuffer indices_;
  StreamView view_;
};

}  // namespace

EnteredAccount Bucket::pushed_in(size_t at) const {
  EnteredAccount pushed;
  for (const auto& slot : slots_) {
    pushed.entered.add(slot->books_[at].entered);
    pushed.rounded_off.add(slot->books_[at].rounded_off);
  }
  return pushed;
}

PartAccounts Bucket::audit(size_t at) {
  MILLRACE_CHECK(spec_.audit);
  std::unique_lock<std::mutex> no_fill(fill_, std::defer_lock);
  if (slots_.size() == 1) no_fill.lock();
  while (resolve_one_deferred()) {
  }
  PartAccounts books{ledger_.opened(at), residual_account(at), ledger_.lost(at), ledger_.rounded_off(at)};
  const EnteredAccount pushed = pushed_in(at);
  books.entered.add(pushed.entered);
  books.lost.add(pushed.rounded_off);
  books.rounded_off.add(pushed.rounded_off);
  return books;
}

uint64_t Bucket::residual_entries(size_t at) const {
  const protocol::PartLayout& part = parts_[at];
  Stream copied;
  return count_within(residual_.view(copied), part.begin, part.end) +
         count_within(selected_.view(), part.begin, part.end);
}

Account Bucket::residual_account(size_t at) const {
  const protocol::PartLayout& part = parts_[at];
  Account held;
  Stream copied;
  held.add(mass_within(residual_.view(copied), part.begin, part.end));
  if (parts_left_ > 0 && coded_[at] == 0) held.add(mass_within(selected_.view(), part.begin, part.end));
  for (const auto& slot : slots_) {
    if (slot->staged_.dimension == 0 || enters_in_select()) continue;
    const auto [begin, end] = slot->within(part);
    if (begin < end) held.add(mass_within(slot->staged_.view(), begin, end));
  }
  for (const ReturnedPiece& piece : returned_) {
    if (piece.at == at) held.add(mass_of(std::get<Stream>(piece.what).values));
  }
  if (grid_) held.add(mass_of(remainder_in_flight(at).values));
  if (!quarantine_) return held;
  if (quarantine_->shares[at] == ShareState::kInBooks) {
    held.add(mass_within(quarantine_->residual.view(), part.begin, part.end));
  }
  for (const Quarantine::Piece& piece : quarantine_->returned) {
    if (piece.at == at) held.add(mass_of(piece.stream.values));
  }
  return held;
}

void Bucket::add_audited(const StreamView& stream) {
  const std::span<float> sum = residual_.entries().values();
  for (size_t at = 0; at < parts_.size(); ++at) {
    const auto [begin, count] = std::pair(parts_[at].begin, parts_[at].end - parts_[at].begin);
    const StreamView piece{count, true, {}, stream.values.subspan(begin, count)};
    ledger_.round_off(at, accumulate(sum.subspan(begin, count), piece, 1).rounded);
  }
}

void Bucket::book_rounding(const StreamView& stream) {
  for (size_t at = 0; at < parts_.size(); ++at) {
    book_rounding(at, AuditPiece(stream, parts_[at].begin, parts_[at].end).view());
  }
}

void Bucket::book_rounding(size_t at, const StreamView& piece) {
  if (residual_.form() == ResidualSum::Form::kEmpty) return;
  Stream copied;
  const AuditPiece here(residual_.view(copied), parts_[at].begin, parts_[at].end);
  ledger_.round_off(at, rounded_off(here.view(), piece));
}

}  // namespace millrace::worker
