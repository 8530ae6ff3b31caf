#include "worker/core/residual/ledger.h"

#include <cmath>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::worker {

Ledger::Ledger(const protocol::JobSpec& spec, std::span<const protocol::PartLayout> parts, LedgerObserver* observer)
    : parts_(parts.begin(), parts.end()),
      bucket_(parts.empty() ? 0 : parts.front().bucket),
      audits_(spec.audit),
      observer_(observer),
      accounts_(spec.audit ? parts.size() : 0) {}

Ledger Ledger::reporting_to(LedgerObserver* observer) const {
  Ledger copy = *this;
  copy.observer_ = observer;
  return copy;
}

void Ledger::enter(uint64_t begin, const StreamView& gradient, float weight) const {
  if (observer_ != nullptr) observer_->entered(bucket_, begin, gradient, weight);
}

void Ledger::open(size_t at, const StreamView& share) {
  if (audits_) accounts_[at].opened.add(mass_of(share.values));
  if (observer_ != nullptr) observer_->opened(bucket_, parts_[at].begin, share);
}

Mass Ledger::lose(size_t at, const StreamView& values) {
  const Mass mass = mass_of(values.values);
  count_dropped(at, mass);
  if (observer_ != nullptr) observer_->lost(bucket_, parts_[at].begin, values);
  return mass;
}

void Ledger::lose(size_t at, uint64_t index, double amount) {
  if (amount == 0) return;
  count_dropped(at, {amount, std::abs(amount)});
  if (observer_ != nullptr) observer_->lost(bucket_, parts_[at].begin + index, amount);
}

void Ledger::lose_sums(size_t at, const Mass& mass) {
  MILLRACE_CHECK(!is_observed(), at);
  count_dropped(at, mass);
}

void Ledger::lose_of_bucket(const StreamView& values) {
  for (size_t at = 0; at < parts_.size(); ++at) {
    const protocol::PartLayout& part = parts_[at];
    const auto [first, last] =
        values.dense ? std::pair<size_t, size_t>(part.begin, part.end) : range_of(values.indices, part.begin, part.end);
    count_dropped(at, mass_of(values.values.subspan(first, last - first)));
  }
  if (observer_ != nullptr) observer_->lost(bucket_, uint64_t{0}, values);
}

void Ledger::discard(size_t at, const StreamView& values) {
  const Mass mass = mass_of(values.values);
  losses_.entries_discarded += values.count();
  losses_.discarded += mass.sum;
  book_lost(at, mass);
  if (observer_ != nullptr) observer_->lost(bucket_, parts_[at].begin, values);
}

void Ledger::round_off(size_t at, const Mass& errors) {
  if (audits_) accounts_[at].rounded_off.add_rounded(errors);
}

Account Ledger::lost(size_t at) const {
  Account all = audits_ ? accounts_[at].lost : Account();
  all.add(rounded_off(at));
  return all;
}

void Ledger::count_dropped(size_t at, const Mass& mass) {
  losses_.dropped_error += mass.sum;
  losses_.dropped_magnitude += mass.magnitude;
  book_lost(at, mass);
}

void Ledger::book_lost(size_t at, const Mass& mass) {
  if (audits_) accounts_[at].lost.add(mass);
}

}  // namespace millrace::worker
