#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/clock.h"
#include "monitoring/status/shard_status.h"
#include "protocol/messages/messages.h"
#include "server/base/actions.h"

namespace millrace::server {

/// A job of path switch, at shard 0: the members' reports about the switch in the present epoch, and the path that
/// follows. ShardCore changes the table, by the usual swap on that epoch: a path is a function of the epoch (S6.1,
/// S6.7).
///
/// To the shard    one synced member without answers from the switch is enough: its turns wait for all members.
/// Back            when all synced members have had answers for the hold time: one without answers would stop them all
///                 again.
class SwitchHealth {
 public:
  using Report = protocol::Heartbeat::Switch;
  struct Change {
    protocol::Path path = protocol::Path::kServer;
    std::string because;  ///< half a sentence: the member, and its report
  };
  /// The shard that hears, decides, and replaces the switch: only one, so that two shards never decide against each
  /// other.
  static constexpr uint32_t kShard = 0;

  explicit SwitchHealth(std::string job) : job_(std::move(job)) {}

  /// Forgets earlier reports: they were made in another epoch and may be outdated.
  void begin_epoch() { reports_.clear(); }
  /// Records a member's report; its last one counts. REQUIRES: sent by a synced member, in the epoch of `view`.
  void on_report(const protocol::Member& from, Report word, const protocol::Membership& membership, Actions& actions);
  /// Returns the path that the reports require, if it differs from the membership's. Empty also where no shard could
  /// replace the switch.
  std::optional<Change> wanted(const protocol::Membership& membership, std::span<const protocol::Member> synced) const;
  void changed(std::string because, TimeNs now);
  /// Records why a member is blocked, and how many steps it has finished. REQUIRES: as on_report().
  void on_progress(const protocol::Member& from, protocol::Heartbeat::SwitchWait wait, uint64_t steps, TimeNs now);

  void add_status(SwitchPathStatus& status, const protocol::Membership& membership, TimeNs now) const;

 private:
  bool is_stuck(const protocol::Membership& membership) const;
  void add_progress(SwitchPathStatus& status, const protocol::Membership& membership, TimeNs now) const;

  std::string job_;
  struct Progress {
    protocol::Heartbeat::SwitchWait wait = protocol::Heartbeat::SwitchWait::kNotReported;
    uint64_t incarnation = 0;  ///< of the process that reported it: another process has steps of its own
    uint64_t steps = 0;
    TimeNs moved_at = 0;     ///< its steps have changed
    TimeNs waits_since = 0;  ///< since then its wait and its step are unchanged
  };

  std::map<uint32_t, Report> reports_;     ///< by worker; those with a report
  std::map<uint32_t, Progress> progress_;  ///< by worker; also those that are no members any more
  std::string because_;
  TimeNs changed_at_ = 0;
  uint64_t changes_ = 0;
  bool said_ = false;  ///< that no shard can replace the switch
};

}  // namespace millrace::server
