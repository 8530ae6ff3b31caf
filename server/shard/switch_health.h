#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/clock.h"
#include "protocol/messages/messages.h"
#include "server/base/actions.h"
#include "server/status/status_report.h"

namespace millrace::server {

/// A job of path switch, at shard 0: what its members say of the switch in the present epoch, and which path follows.
/// The table is ShardCore's to change, by the usual swap on that epoch: a path is a function of the epoch (S6.1, S6.7).
///
/// To the shard    one synced member that the switch is silent to is enough: its turns wait for everybody.
/// Back            when all synced members have had answers for the hold time: one that has not would stop them all
///                 again.
class SwitchWords {
 public:
  using Word = protocol::Heartbeat::Switch;
  struct Change {
    protocol::Path path = protocol::Path::kServer;
    std::string because;  ///< half a sentence: who said what
  };
  /// The shard that hears, decides, and stands in for the switch: one of them, so that two do not decide against each
  /// other.
  static constexpr uint32_t kShard = 0;

  explicit SwitchWords(std::string job) : job_(std::move(job)) {}

  /// What was said before is not true any more: who said it was in another epoch.
  void begin_epoch() { words_.clear(); }
  /// REQUIRES: said by a synced member, in the epoch of `view`. The last word of a member counts.
  void on_word(const protocol::Member& from, Word word, const protocol::JobView& view, Actions& actions);
  /// The path that the words ask for, where it is another one than the view's. Empty also where nobody could stand in.
  std::optional<Change> wanted(const protocol::JobView& view, std::span<const protocol::Member> synced) const;
  void changed(std::string because, TimeNs now);
  /// What a member waits for, and how many steps are over there. REQUIRES: as on_word().
  void on_progress(const protocol::Member& from, protocol::Heartbeat::SwitchWait wait, uint64_t steps, TimeNs now);

  void add_status(SwitchPathStatus& status, const protocol::JobView& view, TimeNs now) const;

 private:
  bool is_stuck(const protocol::JobView& view) const;
  void add_progress(SwitchPathStatus& status, const protocol::JobView& view, TimeNs now) const;

  std::string job_;
  struct Progress {
    protocol::Heartbeat::SwitchWait wait = protocol::Heartbeat::SwitchWait::kNotSaid;
    uint64_t life = 0;  ///< that said so: the steps of another process are others
    uint64_t steps = 0;
    TimeNs moved_at = 0;     ///< its steps have changed
    TimeNs waits_since = 0;  ///< since then its wait and its step are unchanged
  };

  std::map<uint32_t, Word> words_;         ///< by worker; those that have something to say
  std::map<uint32_t, Progress> progress_;  ///< by worker; also those that are no members any more
  std::string because_;
  TimeNs changed_at_ = 0;
  uint64_t changes_ = 0;
  bool said_ = false;  ///< that nobody can stand in
};

}  // namespace millrace::server
