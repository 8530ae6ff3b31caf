#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/log_line.h"
#include "kernels/base/result.h"
#include "protocol/keys/allowed_keys.h"
#include "protocol/messages/messages.h"
#include "protocol/messages/peer_id.h"
#include "protocol/transport/key_gate.h"
#include "protocol/transport/transport.h"
#include "server/access/access_rules.h"
#include "server/access/audit_log.h"
#include "server/access/hello_limit.h"
#include "server/access/policy.h"
#include "server/access/rate_limit.h"
#include "server/base/join_request.h"
#include "server/base/reader_rights.h"

namespace millrace::server {

/// The files of a server's flags; empty: none.
struct AccessFiles {
  std::string key;           ///< --key
  std::string allowed_keys;  ///< --allowed-keys
  std::string policy;        ///< --policy
  std::string audit_log;     ///< --audit-log
};

/// Holds a server's key, its rules and its audit log, and reads their files again on request.
///
/// Secrets  the secret key is in memory alone; no log, line or report has it.
/// Threads  one at a time (the loop's); the functions of reader_rights(): any.
class Access {
 public:
  using Log = std::function<void(Severity, const std::string&)>;

  /// Errors  of the files. REQUIRES: key and allowed_keys are both given, or neither.
  static Result<std::unique_ptr<Access>> open(const AccessFiles& files);

  /// Returns the keys of the transport; empty: it has none.
  std::optional<protocol::TransportKeys> transport_keys() const;
  /// Begins to write to this log.
  void set_log(Log log) { log_ = std::move(log); }
  /// Begins to record, for this shard.
  void begin(uint32_t shard, TimeNs now);
  /// Answers the gate: whether the key may connect. A refusal is recorded and logged.
  bool admits(const protocol::KeyGate::Caller& caller, TimeNs now);

  /// The treatment of a message.
  struct Intake {
    /// The refusal for its sender: the core may not see the message. Empty: it may, unless it is malformed.
    std::optional<protocol::Message> refusal = {};
    std::string_view label = {};  ///< of the refusal, for the metrics; static storage
    /// Why its connection ends: over_rate, or key_revoked where the key is not allowed any more. Empty: it does not.
    std::string_view ends_because = {};
    TimeNs ends_after = 0;
  };
  /// A connection ends this long after the reason was sent: its last messages may leave.
  static constexpr TimeNs kEndsAfterReason = kNsPerS;
  /// The label of a refusal, and the reason of an end, by a key's rate.
  static constexpr std::string_view kOverRate = "over_rate";
  /// Counts a message, refused or not, against the rate of its key, and judges it. A refusal by the AccessRules is
  /// recorded and logged; one by the key's rate is not. Where the key floods, contributions can come again over a new
  /// connection. Heartbeats and the like have no pace: their refusal ends the sender's session. Messages that the
  /// protocol requires now (first weights, returns, a Goodbye) always pass.
  Intake take(const protocol::Received& received, TimeNs now);
  /// Counts the bytes of a message that a closed connection has left unfinished. They lengthen no debt.
  void charge_unfinished(const protocol::PeerId& peer, uint64_t bytes, TimeNs now);
  /// Returns whether this connection's key may speak here at all.
  bool may_speak(const protocol::PeerId& peer) const { return !own_ || rules_.may_connect(peer.key); }
  /// Returns the questions that the core asks about keys that join. Refers to this object.
  Rights rights();
  /// Returns the rights of named tokens. Refers to this object.
  ReaderRights reader_rights();
  /// Records the events that ReaderRights::record() took.
  void record_waiting(TimeNs now);
  void record(const AuditEvent& event, TimeNs now);
  /// Reads the allowed keys and the policy again and opens the audit log again. A file that cannot be read changes
  /// nothing, and the log says why. The own key needs a restart.
  ///
  /// Errors  of the keys or the policy: those from before hold.
  Status reload(TimeNs now);
  /// Takes away the allowed keys that have ended by this day, UTC; the log and the audit log have each. Returns whether
  /// there were any.
  bool end_keys(std::chrono::sys_days today, TimeNs now);
  void end(TimeNs now);
  /// Returns the keys that may connect; nullptr: there are no keys.
  const protocol::AllowedKeys* allowed_keys() const { return own_ ? &rules_.allowed() : nullptr; }
  /// Returns whether there are keys, and none of a worker is allowed: the folder is probably wrong.
  bool allows_nobody() const { return own_ && rules_.allowed().count() == 0; }

 private:
  Access() = default;
  void refuse(const protocol::PeerId& by, const protocol::Message* message, const Error& why, TimeNs now);
  /// Records an event of the key, or of the named token, that has this name.
  void record_as(const std::string& name, const AuditEvent& event, TimeNs now);
  void say(Severity severity, const std::string& text) const;
  void say_problems() const;
  std::string changes_to(const AccessRules& next) const;
  Intake flood(const protocol::Received& received) const;
  RateLimit::Verdict count(const protocol::Received& received, TimeNs now);
  void set_rate(const protocol::PublicKey& key, TimeNs now);
  /// Returns whether messages of the key count. Sets its rate before the first one.
  bool has_rate(const protocol::PublicKey& key, TimeNs now);
  Status reload_keys(TimeNs now);
  Status reload_policy(TimeNs now);

  AccessFiles files_;
  std::optional<protocol::KeyPair> own_;
  AccessRules rules_;
  std::vector<protocol::EndedKey> ended_;  ///< their files were read after their end
  std::mutex readers_mutex_;               ///< guards changes of the policy, waiting_ and refusals_left_out_
  Policy policy_;
  std::vector<AuditEvent> waiting_;
  uint64_t refusals_left_out_ = 0;
  RateLimit rates_;
  HelloLimit hellos_;
  std::unique_ptr<AuditLog> audit_;
  Log log_;
  std::optional<uint32_t> shard_;  ///< empty: a spare that waits
};

}  // namespace millrace::server
