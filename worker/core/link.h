#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/base/arriving_bytes.h"
#include "protocol/messages/messages.h"

namespace millrace::worker {

/// Time for an attempt at one of two addresses until it is connected, and again until Hello is answered. A host may be
/// down, and a process may have stopped.
inline constexpr TimeNs kAttemptOfTwoMax = 2 * kNsPerS;

enum class LinkState : uint8_t {
  kDown = 1,        ///< to be connected at `next_attempt`
  kConnecting = 2,  ///< the core asked the shell to connect
  kGreeting = 3,    ///< connected; Hello is sent, or waits for `next_attempt`
  kWelcomed = 4,
};

/// Holds the state of the connection to one shard.
struct Link {
  std::string address;     ///< of the attempt, or of the connection
  std::string configured;  ///< the address in the list of shards
  std::string named;       ///< the membership's; empty: none is known
  LinkState state = LinkState::kDown;
  bool ever_welcomed = false;
  bool recovers = false;  ///< the shard has begun no log branch since its restart, or since a cut (R8e)
  bool accepted = false;  ///< a process accepted the present attempt's connection; it may be no shard
  uint64_t shard_incarnation = 0;
  TimeNs next_attempt = 0;
  TimeNs retry_interval = 0;
  uint32_t attempts = 0;
  /// By address, since the last Welcome: why the last attempt failed, or the sentence of a Refuse.
  std::map<std::string, Error> troubles;
  bool refused_for_now = false;        ///< the last trouble is the shard's temporary Refuse: it is alive
  std::optional<TimeNs> asked_since;   ///< time of the first Hello without any answer since
  std::optional<TimeNs> in_use_since;  ///< first Refuse with identity_in_use since the last Welcome
  TimeNs last_heard = 0;
  TimeNs sending_at = INT64_MIN / 2;    ///< when bytes last left for the shard, with more queued behind them
  TimeNs receiving_at = INT64_MIN / 2;  ///< when more bytes came than those of heartbeats
  TimeNs answering_at = INT64_MIN / 2;  ///< ... that may be of the answer to this worker's State
  protocol::ArrivingBytes arriving;     ///< since the last message of such an answer
  bool missed_answer = false;           ///< some of it was dropped since the last State
  TimeNs next_heartbeat = 0;
  uint64_t heartbeats = 0;
  size_t next_digest = 0;  ///< index among all parts at which the next heartbeat's digests begin
  uint64_t message_bytes_max = 0;
  uint32_t version = protocol::kProtocolVersionMin;  ///< of its Welcome
  uint64_t last_reported_epoch = 0;                  ///< of the latest membership that it sent
  std::vector<protocol::Ack::Entry> acks;
  std::vector<protocol::Message> deferred_messages;  ///< updates of an epoch that this worker has not seen yet
  std::vector<uint32_t> waited_for;
  /// Returns the next attempt's address at a shard that has not welcomed this worker. Empty: the same one.
  std::string other_address() const;
  /// Returns the trouble at an address. An empty message: none.
  const Error& trouble_at(const std::string& at) const;
  const Error& trouble() const { return trouble_at(address); }
  /// Returns "; at ADDRESS: SENTENCE" of the other address. Empty: there is none, or no trouble there.
  std::string other_trouble_text() const;
  TimeNs moved_at() const { return sending_at < receiving_at ? receiving_at : sending_at; }
};

}  // namespace millrace::worker
