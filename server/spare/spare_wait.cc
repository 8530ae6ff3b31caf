#include "server/spare/spare_wait.h"

#include <fmt/format.h>
#include <poll.h>

#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "server/spare/shard_probe.h"
#include "server/spare/spare_watch.h"

namespace millrace::server {
namespace {

/// Interval at which a spare reads the table.
constexpr int kSpareLooksEveryMs = 50;
/// Interval between log lines about a table that a spare cannot read.
constexpr TimeNs kSaySpareEvery = 10 * kNsPerS;

/// Interval between two checks whether this process can serve a number.
constexpr TimeNs kMayTakeAgain = kNsPerS;

/// Returns whether the table may work again while the spare waits. The disk or the quota may be full, the role may be
/// missing for a moment, or etcd may be without a leader.
bool may_pass(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kIo || code == ErrorCode::kMalformed;
}

class Vacancies {
 public:
  Vacancies(protocol::MembershipTable& table, const std::string& address, const std::string& datagrams,
            const std::function<Result<bool>(uint32_t)>& may_take)
      : table_(table), address_(address), datagrams_(datagrams), may_take_(may_take) {}

  /// Says whether the last error of take() ends the wait.
  bool is_over(const Error& error) const { return cannot_serve_ || !may_pass(error.code); }

  /// Takes a number that is free. Empty: none is, or another spare was faster.
  Result<std::optional<TakenNumber>> take() {
    if (const Status held = table_.hold_spare_lease(); !held) return std::unexpected(held.error());
    // A spare of a lost table must not take a number of the next one.
    const Result<uint64_t> counter = table_.polled_change_counter();
    const ErrorCode code = counter ? ErrorCode::kTimeout : counter.error().code;
    if (code == ErrorCode::kConflict || code == ErrorCode::kStale) return std::unexpected(counter.error());
    Result<protocol::ClusterView> view = table_.read_cluster();
    if (!view) return std::unexpected(view.error());
    if (std::optional<TakenNumber> taken = taken_without_answer(view->shards)) return taken;
    const TimeNs now = monotonic_now_ns();
    const std::vector<bool> refuses = probe_.look(view->shards, now);
    for (size_t shard = 0; shard < refuses.size(); ++shard) {
      if (refuses[shard]) view->shards[shard].held = false;  // the lease of a process that is gone has some time left
    }
    const std::optional<SpareWatch::Vacancy> vacancy = watch_.look(view->shards, now);
    if (!vacancy || now < may_take_at_) return std::nullopt;
    const Result<bool> may = may_take_(static_cast<uint32_t>(view->shards.size()));
    if (!may) {
      cannot_serve_ = true;
      return std::unexpected(may.error());
    }
    if (!*may) {  // it has said why
      may_take_at_ = now + kMayTakeAgain;
      return std::nullopt;
    }
    const Result<uint64_t> taken = table_.take_over_shard(vacancy->shard, vacancy->incarnation, address_, datagrams_);
    if (!taken) {
      tried_ = vacancy;
      return std::unexpected(taken.error());
    }
    if (*taken == 0) return std::nullopt;
    return TakenNumber{vacancy->shard, static_cast<uint32_t>(view->shards.size()), *taken};
  }

 private:
  /// Returns the number that a take-over without an answer has taken. No other process has this one's address.
  std::optional<TakenNumber> taken_without_answer(const std::vector<protocol::ClusterView::Shard>& shards) const {
    if (!tried_ || tried_->shard >= shards.size()) return std::nullopt;
    const protocol::ShardEntry own{address_, tried_->incarnation + 1, datagrams_};
    if (shards[tried_->shard].entry != own) return std::nullopt;
    return TakenNumber{tried_->shard, static_cast<uint32_t>(shards.size()), own.incarnation};
  }

  protocol::MembershipTable& table_;
  const std::string& address_;
  const std::string& datagrams_;
  const std::function<Result<bool>(uint32_t)>& may_take_;
  TimeNs may_take_at_ = 0;
  bool cannot_serve_ = false;                 ///< the last error is that of may_take_()
  std::optional<SpareWatch::Vacancy> tried_;  ///< by the last take-over that ended with an error
  SpareWatch watch_;
  ShardProbe probe_;
};

}  // namespace

Result<std::optional<TakenNumber>> wait_for_number(protocol::MembershipTable& table, const std::string& address,
                                                   const std::string& datagrams, const SpareCallbacks& callbacks) {
  Vacancies vacancies(table, address, datagrams, callbacks.may_take);
  bool waits = false;
  TimeNs say_again_at = 0;
  while (!callbacks.is_over()) {
    Result<std::optional<TakenNumber>> taken = vacancies.take();
    const TimeNs now = monotonic_now_ns();
    // A table that has never worked has a permanent fault, except for a time-out: the caller reports it at once.
    const bool never_worked = !taken && !waits && taken.error().code != ErrorCode::kTimeout;
    if (never_worked || (!taken && vacancies.is_over(taken.error()))) return taken;
    if (!taken && now >= say_again_at) {
      callbacks.say(Severity::kError, fmt::format("spare: {}", taken.error().message));
      say_again_at = now + kSaySpareEvery;
    }
    if (taken && !std::exchange(waits, true)) callbacks.on_waiting();
    callbacks.on_look(now);
    if (taken && *taken) return taken;
    ::poll(nullptr, 0, kSpareLooksEveryMs);
  }
  return std::nullopt;
}

}  // namespace millrace::server
