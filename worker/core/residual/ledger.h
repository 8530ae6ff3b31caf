#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reduce/audit_sums.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "worker/core/residual/audit_account.h"
#include "worker/core/residual/ledger_observer.h"

namespace millrace::worker {

/// Holds the sums of a bucket's lost values, with their signs.
struct Losses {
  double dropped_error = 0;        ///< selected - decoded, entered - drawn
  double dropped_magnitude = 0;    ///< the same, of their magnitudes: never falls
  uint64_t entries_discarded = 0;  ///< unbiased jobs: sent, or to be sent, into a step that was decided without them
  double discarded = 0;
};

/// Books the values that a bucket loses, and those of a loaded state. Keeps sums, by part for the audit, and reports
/// single entries to an observer. Slots book the entered values themselves, each on its caller's thread.
class Ledger {
 public:
  /// spec      accounts by part are kept in jobs that audit; in others they stay 0.
  /// observer  null in programs; outlives the ledger.
  Ledger(const protocol::JobSpec& spec, std::span<const protocol::PartLayout> parts, LedgerObserver* observer);

  /// Returns a copy that reports to another observer: of bookings that are not due yet.
  Ledger reporting_to(LedgerObserver* observer) const;

  /// Say whether enter() and open() have a reader.
  bool is_observed() const { return observer_ != nullptr; }
  bool takes_openings() const { return audits_ || is_observed(); }

  /// Reports weight * gradient, indices from `begin` in the bucket.
  void enter(uint64_t begin, const StreamView& gradient, float weight) const;
  /// Takes over a share of a loaded residual; indices local to part `at`, here and below.
  void open(size_t at, const StreamView& share);
  /// Books values as dropped, and returns their sums.
  Mass lose(size_t at, const StreamView& values);
  void lose(size_t at, uint64_t index, double amount);
  /// Does the same for values of which the sums alone are known. REQUIRES: !is_observed().
  void lose_sums(size_t at, const Mass& mass);
  /// Does the same for values of several parts; indices of the bucket.
  void lose_of_bucket(const StreamView& values);
  void discard(size_t at, const StreamView& values);
  /// Books the rounding errors of f32 additions. They are in no array: the accounts alone have them.
  void round_off(size_t at, const Mass& errors);

  const Losses& losses() const { return losses_; }
  Account opened(size_t at) const { return audits_ ? accounts_[at].opened : Account(); }
  Account rounded_off(size_t at) const { return audits_ ? accounts_[at].rounded_off : Account(); }
  /// Returns the lost values with the rounding errors.
  Account lost(size_t at) const;

 private:
  struct PartBooks {
    Account opened;
    Account lost;
    Account rounded_off;
  };
  void count_dropped(size_t at, const Mass& mass);
  void book_lost(size_t at, const Mass& mass);

  std::vector<protocol::PartLayout> parts_;
  uint32_t bucket_ = 0;
  bool audits_ = false;
  LedgerObserver* observer_ = nullptr;
  Losses losses_;
  std::vector<PartBooks> accounts_;  ///< audit, by part
};

}  // namespace millrace::worker
