#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/clock.h"

namespace millrace::server {

/// What arrived over one connection so far.
struct ConnectionSample {
  int descriptor = -1;
  TimeNs accepted_at = 0;
  uint64_t unread_bytes = 0;  ///< since the last whole message that the owner has taken
  uint32_t messages = 0;      ///< taken by the owner
  bool was_admitted = false;  ///< it has a session, or had one
  bool has_session = false;   ///< an admitted worker or shard speaks over it
  TimeNs hello_at = 0;        ///< of its last Hello; 0: none
  std::string address = {};   ///< of the other end; needed without a session
};

/// Decides which connections to end: those that stay without a session, and those whose unfinished messages take too
/// much memory. Pure.
///
/// Session  A connection without one has `silent_max` from its begin, and from each Hello. Others may be silent.
/// Guilt    One look does not distinguish unfinished frames from whole messages that wait for the owner. Guilty are
///          connections that two looks in a row find over a limit, without a message taken in between.
class ConnectionJudge {
 public:
  /// Whether the owner has taken all messages that had arrived.
  enum class Inbox : uint8_t { kDrained = 1, kNotDrained = 2 };
  struct Limits {
    uint64_t unread_each_max = 0;   ///< bytes of one unfinished message, as received
    uint64_t unread_first_max = 0;  ///< the same of a connection that never had a session: it sends Hellos alone
    uint64_t unread_total_max = 0;  ///< of all connections without a session; beyond it the largest are ended
    TimeNs silent_max = 0;
    /// Connections without a session that one address may keep for longer than kNewFor.
    uint32_t without_session_max = 0;
  };
  /// A connection that is younger has not had the time for a Hello.
  static constexpr TimeNs kNewFor = 2 * kNsPerS;
  struct Verdict {
    int descriptor = -1;
    TimeNs accepted_at = 0;
    /// "never_spoke", "no_session", "too_many_of_address", "unfinished_message", "unfinished_messages"; static storage
    std::string_view why;
  };

  explicit ConnectionJudge(Limits limits) : limits_(limits) {}
  void set_without_session_max(uint32_t count) { limits_.without_session_max = count; }

  /// Judges open connections. `now` never decreases. While the inbox is not drained a connection whose bytes grew since
  /// the last look is not silent: its Hello may wait there. Looks are then as far apart as ZeroMQ's turns.
  std::vector<Verdict> look(std::span<const ConnectionSample> samples, Inbox inbox, TimeNs now);

 private:
  /// A connection as the last look saw it.
  struct Seen {
    TimeNs accepted_at = 0;
    uint64_t unread_bytes = 0;
    uint32_t messages = 0;
    bool was_silent = false;
  };
  using Others = std::unordered_map<std::string, std::vector<const ConnectionSample*>>;
  bool is_silent(const ConnectionSample& one, TimeNs now) const;
  void judge_addresses(Others& by_address, std::vector<Verdict>& verdicts) const;

  Limits limits_;
  std::unordered_map<int, Seen> seen_;  ///< those that had bytes unread, or no session
};

}  // namespace millrace::server
