#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/messages/peer_id.h"
#include "server/connections/connection_judge.h"

namespace millrace::server {

/// The size of a received message.
struct MessageSize {
  uint64_t bytes = 0;                          ///< of all frames, the routing identity among them
  std::optional<uint64_t> payload_bytes = {};  ///< of the frame behind the envelope; empty: it cannot be read
};

/// Ends connections that stay without a session, that leave messages unfinished, or that the loop is done with.
///
/// Limit    The number of a closed connection may be used again before the loop has taken its first message. Its
///          messages then count for the new one.
/// Memory   one entry for each connection that has spoken, that has a session, or that was closed in the last ten
///          seconds.
/// Threads  one at a time (the loop's).
class ConnectionWatch {
 public:
  using Inbox = ConnectionJudge::Inbox;
  /// Returns whether an admitted worker or shard speaks over the connection.
  using HasSession = std::function<bool(const protocol::PeerId&)>;
  /// Interval between two looks, and the longest time without one while messages keep coming. ZeroMQ takes messages of
  /// all connections in turns: within that time it has come to each that has a whole message.
  static constexpr TimeNs kLookEvery = 200 * kNsPerMs;
  static constexpr TimeNs kLookAtLeastEvery = 2 * kNsPerS;
  static constexpr uint32_t kClosedLooks = 3;
  /// A worker sends its Hello as soon as it is connected.
  static constexpr TimeNs kSilentMax = 15 * kNsPerS;
  /// Of all connections, those without a session that one address may keep: one part in kAddressShare, at least
  /// kOfAddressMin.
  static constexpr uint32_t kAddressShare = 4;
  static constexpr uint32_t kOfAddressMin = 64;

  /// port               of the listener.
  /// message_bytes_max  of one message, with its envelope.
  /// first_bytes_max    of a message before the connection's first session.
  /// total_bytes_max    that all connections without a session hold, when a look has ended the largest.
  ConnectionWatch(uint16_t port, uint64_t message_bytes_max, uint64_t first_bytes_max, uint64_t total_bytes_max);

  /// Says how many connections the process may have.
  void set_room(uint64_t connections);
  enum class Spoken : uint8_t { kHello = 1, kOther = 2 };
  /// Notes a message that the loop has taken.
  void on_message(const protocol::PeerId& peer, int descriptor, Spoken spoken, TimeNs now, MessageSize size = {});
  /// Notes that the peer has a session: its connection is no stranger's (connection_ledger.h). Called before the
  /// answer to its Hello, after which it may send large messages.
  void on_session(const protocol::PeerId& peer);
  /// Calls `report` for each connection that has received bytes of an unfinished message since the last call. Whole
  /// messages show by themselves that their peer lives.
  void report_arriving(const std::function<void(const protocol::PeerId&, uint64_t bytes)>& report);
  /// Returns whether the connection of a peer with a session has ended, and kClosedLooks looks have found it so. While
  /// the loop stalls, a peer's new connection may wait for it: time alone says nothing.
  bool is_closed(const protocol::PeerId& peer) const;
  /// Ends a connection at a later look. Its last messages may leave until then. Returns false: its end was decided
  /// before, or it is not known.
  ///
  /// why  static storage
  bool end_later(const protocol::PeerId& peer, std::string_view why, TimeNs at);
  /// The same for all that `which` says, among those that have spoken.
  void end_later(const std::function<bool(const protocol::PeerId&)>& which, std::string_view why, TimeNs at);

  /// Connections that were ended.
  struct Ended {
    protocol::PeerId by;       ///< with the address alone where it has sent no message; empty for several
    std::string_view why;      ///< static storage
    uint64_t connections = 1;  ///< more: of several peers, which are not known
  };
  /// Bytes of a message that a connection has not ended before its close.
  struct Unfinished {
    protocol::PeerId by;
    uint64_t bytes = 0;
  };
  /// Returns what connections have left since the last call, of those that have spoken. A number that is used again
  /// within kLookEvery hides the last bytes.
  std::vector<Unfinished> take_unfinished() { return std::exchange(unfinished_, {}); }
  /// Ends connections, if it is time. Returns those that were ended, by recv() as well.
  ///
  /// inbox  of the listener, just now.
  std::vector<Ended> look(Inbox inbox, const HasSession& has_session, TimeNs now);

 private:
  struct Peer {
    int descriptor = -1;
    TimeNs accepted_at = 0;  ///< of the connection that had this number at the first message
    TimeNs hello_at = 0;
    TimeNs gone_at = 0;         ///< when its number was found to be free or another's; 0: it was not
    bool spoke = false;         ///< since the last look
    uint64_t unread = 0;        ///< bytes behind its last message, as reported
    uint32_t closed_looks = 0;  ///< with a session: looks that found it closed
    TimeNs end_at = 0;          ///< 0: never
    std::string_view why_end = {};
  };
  std::vector<ConnectionSample> samples(Inbox inbox, const HasSession& has_session, TimeNs now);
  std::unordered_map<int, const protocol::PeerId*> speakers() const;
  void add_cut(std::vector<Ended>& ended) const;

  uint16_t port_;
  ConnectionJudge judge_;
  std::unordered_map<protocol::PeerId, Peer> peers_;
  std::vector<Unfinished> unfinished_;
  TimeNs looked_at_ = 0;
};

}  // namespace millrace::server
