#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "worker/core/session_core_impl.h"

/// Checks the conservation law at run time (R13), for jobs that ask for it: in every part, entered = held + in flight +
/// carried + lost. The carried sum is the log's (in the summary of every update), not this worker's: so both are
/// checked.
namespace millrace::worker {
namespace {

constexpr uint64_t kCreditLeast = 1024;  ///< entries checked in a selection, however few are selected
constexpr uint64_t kCreditShare = 4;     ///< ... and this share of the entries that a selection itself reads
constexpr uint32_t kLinesMax = 16;       ///< of the log, a session

std::string digits(double value) {
  std::string text(32, '\0');
  text.resize(static_cast<size_t>(std::snprintf(text.data(), text.size(), "%.9g", value)));
  return text;
}

}  // namespace

const protocol::SummaryEntry* SessionCore::Impl::counted_in(const PartRun& part) const {
  const auto& workers = part.summary_of_n().workers;
  const auto own = std::ranges::find(workers, config.worker, &protocol::SummaryEntry::worker);
  return own == workers.end() ? nullptr : &*own;
}

double SessionCore::Impl::carried_in(const PartRun& part) const {
  if (by_switch()) return part.account.carried_by_switch.value();
  const protocol::SummaryEntry* own = counted_in(part);
  return own == nullptr ? 0 : own->carried;
}

// Neither a codec nor a draw makes values larger than the sum of what entered.
bool SessionCore::Impl::sends_what_entered(const PartRun& part) const {
  const CodecSpec& up = layout.buckets[part.layout.bucket].codec_up;
  return !config.spec.unbiased && find_value_codec(up.value)->lossless(up);
}

// The sums before this process are the log's sums of its predecessors. Values that they held are lost, but for those
// that this process loaded.
void SessionCore::Impl::open_account(PartRun& part) {
  if (!config.spec.audit) return;
  const protocol::SummaryEntry* own = counted_in(part);
  const double opened = buckets[part.layout.bucket].bucket->ledger().opened(part.at).value();
  part.account.loaded = false;
  part.account.entered_before = (own == nullptr ? 0 : own->entered) - (loaded_of_this_job ? opened : 0);
  part.account.carried_before = own == nullptr ? 0 : own->carried;
  part.account.has_unaudited_state = buckets[part.layout.bucket].bucket->has_opening_share(part.at);
  part.account.doubt = 0;
  part.account.unknown = false;
  tell_account(part);
}

void SessionCore::Impl::read_slots(PartRun& part) {
  const EnteredAccount pushed = buckets[part.layout.bucket].bucket->pushed_in(part.at);
  part.account.pushed = pushed.entered.value();
  part.account.rounded_in_slots = pushed.rounded_off.value();
}

void SessionCore::Impl::tell_account(PartRun& part) {
  const Bucket& bucket = *buckets[part.layout.bucket].bucket;
  PartAccount& account = part.account;
  account.entered = account.entered_before + bucket.ledger().opened(part.at).value() + account.pushed;
  account.lost = account.entered_before - account.carried_before + bucket.ledger().lost(part.at).value() +
                 account.rounded_in_slots;
}

// Accounts an applied update; `before` is the log's sum of this worker until then. A contribution of another process
// that was still counted is not this one's: all of it goes into the sums of earlier processes. Where this process had
// loaded that process's values, they have counted twice, and the audit shows a mismatch.
void SessionCore::Impl::account_update(PartRun& part, const protocol::Update& update,
                                       const std::optional<protocol::SummaryEntry>& before) {
  if (!config.spec.audit) return;
  const std::vector<OwnContribution> own = own_contributions(update);
  PartAccount& account = part.account;
  account.doubt += 0x1p-53 * static_cast<double>(own.size()) * std::abs(carried_in(part));
  const protocol::SummaryEntry* now = counted_in(part);
  const auto of_others = std::ranges::count_if(
      own, [this](const OwnContribution& one) { return !own_incarnations.contains(one.id.incarnation); });
  if (of_others == 0 || account.has_unaudited_state || now == nullptr) return;
  // Merged steps of both processes: their share is the audit's mismatch.
  if (static_cast<size_t>(of_others) < own.size()) {
    account.others = true;
    return;
  }
  account.entered_before += now->entered - (before ? before->entered : 0);
  account.carried_before += now->carried - (before ? before->carried : 0);
}

void SessionCore::Impl::audit_part(PartRun& part, Actions& actions) {
  if (part.account.loaded) return;
  const PartAccounts books = buckets[part.layout.bucket].bucket->audit(part.at);
  PartAccount& account = part.account;
  Account in_flight;
  for (const Outstanding& out : part.outstanding) in_flight.add(mass_of(out.sent.view.values));
  const double carried = carried_in(part);
  Account rest = books.entered;
  rest.subtract(books.in_residual);
  rest.subtract(books.lost);
  rest.subtract(in_flight);
  rest.add_number(-carried);
  rest.add_number(account.carried_before);
  rest.doubt(account.doubt);
  // Of the shards' sums of carried values.
  if (sends_what_entered(part)) rest.doubt(books.entered.uncertainty());
  if (account.unknown) {
    // No process here knows the carried values of an unreturnable contribution; the log's sum includes them.
    account.carried_before -= rest.value();
    account.unknown = false;
    rest = {};
  }
  if (account.others) {
    // The other processes account for their entered and lost values; here only the carried values count.
    account.carried_before -= rest.value();
    account.entered_before -= rest.value();
    account.others = false;
    rest = {};
  }
  account.in_residual = books.in_residual.value();
  account.in_flight = in_flight.value();
  account.rounded_off = books.rounded_off.value();
  ++audit_checks;
  const double before = account.imbalance;
  const double off = rest.value();
  account.imbalance = std::abs(off) <= rest.uncertainty() ? 0 : off;
  if (!std::isfinite(account.imbalance)) account.imbalance = std::numeric_limits<double>::max();
  if (account.imbalance == 0 || before != 0 || audit_lines >= kLinesMax) return;
  ++audit_lines;
  log(actions, Severity::kError,
      "audit: mismatch of part " + std::to_string(part.layout.part) + " of " + shard_text(part.layout.shard) +
          ", step " + std::to_string(part.n) + ": " + digits(off) + (off > 0 ? " is missing" : " is too much") +
          " (entered " + digits(books.entered.value()) + ", held " + digits(account.in_residual) + ", in flight " +
          digits(account.in_flight) + ", carried " + digits(carried - account.carried_before) + ", lost " +
          digits(books.lost.value()) + "): please report it as a bug");
}

// After a selection, when the bucket is this thread's alone. Parts take turns, so that a step costs little more than
// without.
void SessionCore::Impl::audit_some(BucketRun& run, Actions& actions) {
  if (!config.spec.audit) return;
  uint64_t all = 0;
  for (uint32_t at = 0; at < run.part_count; ++at) all += run.bucket->residual_entries(at);
  run.audit_credit = std::min(run.audit_credit + kCreditLeast + all / kCreditShare, all + kCreditLeast);
  for (uint32_t checked = 0; checked < run.part_count; ++checked) {
    const uint64_t cost = run.bucket->residual_entries(run.audit_next);
    if (cost > run.audit_credit) break;
    run.audit_credit -= cost;
    audit_part(parts[run.first_part + run.audit_next], actions);
    run.audit_next = (run.audit_next + 1) % run.part_count;
  }
  for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part) {
    read_slots(parts[part]);
    tell_account(parts[part]);
  }
}

AuditSums SessionCore::Impl::audit_sums() const {
  AuditSums sums;
  sums.audits = config.spec.audit;
  sums.checks = audit_checks;
  if (!sums.audits) return sums;
  for (const PartRun& part : parts) {
    const PartAccount& account = part.account;
    sums.entered += account.entered;
    sums.in_residual += account.in_residual;
    sums.in_flight += account.in_flight;
    sums.carried += account.loaded ? 0 : carried_in(part);
    sums.lost += account.lost;
    sums.rounded_off += account.rounded_off;
    sums.imbalance += std::abs(account.imbalance);
  }
  return sums;
}

AuditSums SessionCore::audit(Actions& actions) {
  impl_->resolve_switch_step();
  for (PartRun& part : impl_->parts) {
    if (!impl_->config.spec.audit) break;
    impl_->audit_part(part, actions);
    impl_->read_slots(part);
    impl_->tell_account(part);
  }
  return impl_->audit_sums();
}

AuditSums SessionCore::audit_sums() const { return impl_->audit_sums(); }

}  // namespace millrace::worker
