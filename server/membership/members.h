#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job/job_spec.h"
#include "protocol/messages/messages.h"
#include "protocol/messages/peer_id.h"
#include "server/base/actions.h"
#include "server/membership/membership_changes.h"

namespace millrace::server {

/// Holds the members of one job as this shard sees them: the adopted membership, the connection of each member, and
/// when each was last heard.
class Members {
 public:
  /// Whether a member can give snapshots (R9d).
  enum class Weights : uint8_t {
    kNone,
    kAttached,
    kTakeMerged,  ///< it can, and takes several steps in one update
  };

  /// The facts that a member's Hello states about its process.
  struct Process {
    Weights weights = Weights::kNone;
    bool returns = false;  ///< it asks to take the place of an earlier process of its worker, or has been in the job
  };

  struct Link {
    std::optional<protocol::PeerId> peer = std::nullopt;  ///< empty: none to send to until its next Hello
    /// The connection of this incarnation's latest Hello to this shard, also after its end.
    std::optional<protocol::PeerId> last_peer = std::nullopt;
    TimeNs heard = 0;
    TimeNs message_at = 0;  ///< when its last whole message came, or it connected
    /// Until then the member's messages of unknown epochs do not make the shard read the table. Not of its session: a
    /// repeated Hello begins another one.
    TimeNs next_epoch_look = 0;
    uint64_t incarnation = 0;
    bool finishing = false;  ///< reported that it pushes nothing more
    Weights weights = Weights::kNone;
    bool returns = false;     ///< asked to, under this incarnation
    bool was_synced = false;  ///< under this incarnation
  };
  struct Adopted {
    /// members of the old membership that are none now (or under another incarnation)
    std::vector<protocol::Member> gone;
    std::vector<protocol::Member> gone_connected;  ///< those of them that sent Hello here
    std::vector<protocol::PeerId> gone_peers;      ///< and their connections, in the same order
    std::vector<protocol::Member> before;          ///< the old members
  };

  /// Says whether a member may see the nonces of other processes. Workers of path switch compute the hash of their
  /// datagrams from them.
  enum class Nonces : uint8_t { kHidden = 1, kShown = 2 };

  /// Returns the bytes that wait to be sent to a connection. Empty: none does.
  using QueuedBytes = std::function<uint64_t(const protocol::PeerId&)>;

  Members(uint32_t shard, uint64_t shard_incarnation, Nonces nonces, QueuedBytes queued_bytes = {})
      : shard_(shard), shard_incarnation_(shard_incarnation), nonces_(nonces), queued_bytes_(std::move(queued_bytes)) {}

  const protocol::Membership& membership() const { return membership_; }
  const std::vector<protocol::Member>& all() const { return membership_.members; }

  /// R7a: Takes over a newer membership. Members without a link count as heard now: silence is measured from here.
  Adopted adopt(protocol::Membership membership, TimeNs now);

  /// Records that a member sent Hello over `peer`; returns the connection that this one replaces.
  std::optional<protocol::PeerId> connect(uint32_t worker, protocol::PeerId peer, Process process, TimeNs now);
  /// Stops sending to this member until its next Hello.
  void disconnect(uint32_t worker);
  void heard(uint32_t worker, TimeNs now);
  /// Records that the table does not have the epoch of the member's message, and is not read for another one before
  /// `next`.
  void epoch_unknown(uint32_t worker, TimeNs next);
  /// Records that bytes of an unfinished message came since the last look. They count as a sign of life where they are
  /// more than those of heartbeats, and for at most this time after a whole message.
  void heard_bytes(uint32_t worker, uint64_t bytes, TimeNs at_most, TimeNs now);
  /// Records that this member pushes nothing more. False: that is not new.
  bool finishes(uint32_t worker);
  /// Returns the members that take part: all but the joining ones (R9).
  const std::vector<protocol::Member>& synced() const { return synced_; }
  /// Returns the synced members whose contributions may still be expected.
  const std::vector<protocol::Member>& pushing() const { return pushing_; }
  const Link* link(uint32_t worker) const;
  /// Returns the bytes that wait to be sent to the member.
  uint64_t queued_bytes(uint32_t worker) const;
  /// Returns whether all members that have sent Hello here take merged updates; false where one has not sent Hello.
  bool all_take_merged() const { return all_take_merged_; }

  /// Returns the members not heard for `silence`.
  std::vector<protocol::Member> silent(TimeNs now, TimeNs silence) const;
  /// Returns for how long no member has been heard; 0 without members.
  TimeNs silence_of_all(TimeNs now) const;
  /// Returns whether a member may begin the log again from its own state (R10b). It took part, or is its worker's first
  /// process, or asked to return. A process that joined a running job has no state of that job.
  bool any_may_carry_on() const;
  /// R10c: Returns whether a cut may choose the member's state. It may not in a job that begins with worker 0's weights
  /// where the member was not given them.
  bool has_weights_of(const protocol::JobSpec& spec, uint32_t worker, const protocol::State& state) const;
  /// Extends the deadlines by a time in which this process itself did not run: no member is to blame for it.
  void extend_deadlines(TimeNs paused);

  protocol::Header header(uint32_t worker, uint64_t incarnation) const;
  /// Returns whether a connection with this key may speak for the member: its process has one key for its whole life.
  bool is_key_of(uint32_t worker, const protocol::PublicKey& key) const;
  /// Returns the membership as one member may see it. Where nonces are hidden and its connection has a key, those of
  /// other processes are 0. A Hello with a member's nonce takes the place of that member's connection.
  protocol::Membership view_of(protocol::Membership membership, uint32_t worker, uint64_t incarnation,
                               const protocol::PeerId& to) const;
  /// Sends to a member that is connected; does nothing for others. A membership goes out as view_of().
  void send(const protocol::Member& member, protocol::Body body, SharedBytes payload, Actions& actions) const;
  void send(const protocol::Member& member, protocol::Body body, Actions& actions) const;

 private:
  uint32_t shard_;
  uint64_t shard_incarnation_;
  Nonces nonces_;
  QueuedBytes queued_bytes_;
  protocol::Membership membership_;
  void gather_pushing();
  void look_at_weights();

  std::map<uint32_t, Link> links_;         ///< of members only
  std::vector<protocol::Member> synced_;   ///< by worker, ascending
  std::vector<protocol::Member> pushing_;  ///< the same
  bool all_take_merged_ = false;
};

}  // namespace millrace::server
