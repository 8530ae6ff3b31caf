#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kernels/base/clock.h"
#include "server/base/audit_event.h"

namespace millrace::server {

/// Returns "join", "refuse", ... Stable: the words of the audit log.
std::string_view audit_word(AuditEvent::What what);

/// The events before a line that have no line of their own.
struct AuditGap {
  uint64_t refusals_left_out = 0;  ///< RefusalLimit
  uint64_t lines_lost = 0;         ///< they could not be written
};

/// Returns one line of the audit log, a JSON object and a newline. Fields without a value are left out; text of peers
/// is valid UTF-8 afterwards.
///
/// key_name  of event.by.key; empty: it has none.
/// shard     empty: a spare that waits.
/// wall_ms   milliseconds since 1970.
std::string audit_line(const AuditEvent& event, const std::string& key_name, std::optional<uint32_t> shard,
                       const AuditGap& gap, int64_t wall_ms);

/// Bounds the refusals and the ended connections in an audit log: any process that reaches the port can cause them.
/// Equal ones within a minute are one. Of different ones each key with a name has kPerSecondOfKey at most; all other
/// senders together have kPerSecond. So a stranger cannot hide the lines of a key. A member that repeats its Hello has
/// one line, too.
///
/// Memory   kRemembered signatures of some hundred bytes for strangers, and as many for keys.
class RefusalLimit {
 public:
  static constexpr TimeNs kSameWithin = 60 * kNsPerS;
  static constexpr uint32_t kPerSecond = 20;
  static constexpr uint32_t kPerSecondOfKey = 5;
  static constexpr size_t kRemembered = 1'024;

  /// Returns whether this event gets a line. key_name: of event.by.key; empty: it has none.
  bool admit(const AuditEvent& event, const std::string& key_name, TimeNs now);
  /// Returns whether a join gets a line: not within kSameWithin after an equal one.
  bool admit_act(const AuditEvent& event, TimeNs now);
  /// Counts events that got no line elsewhere.
  void count_left_out(uint64_t events) { left_out_ += events; }
  /// Returns how many got none since the last call.
  uint64_t take_left_out();

 private:
  /// The lines of a second.
  struct Budget {
    TimeNs second_begun = 0;
    uint32_t in_second = 0;
  };
  bool admit_by(std::unordered_map<std::string, TimeNs>& last, Budget& budget, uint32_t per_second,
                const AuditEvent& event, TimeNs now);
  std::unordered_map<std::string, TimeNs> last_of_strangers_;  ///< line of each signature
  std::unordered_map<std::string, TimeNs> last_of_keys_;       ///< the same
  std::unordered_map<std::string, TimeNs> last_acts_;          ///< the same
  Budget strangers_;
  std::unordered_map<std::string, Budget> keys_;  ///< by name: as many as keys have names
  uint64_t left_out_ = 0;
};

}  // namespace millrace::server
