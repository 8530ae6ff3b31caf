#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/datagram/header.h"

/// Authenticity of datagrams. Keys derive from a pre-shared job key and both sides' nonces and are never sent. There is
/// one per (job, incarnation, worker, both nonces, direction), and one per (job, incarnation) for datagrams to all.
/// Every process with the job key is trusted with the job: its workers and its aggregators. The handshake is in
/// protocol/wire/datagram_keys.md.
namespace millrace::protocol {

using JobKey = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, kDatagramMacBytes>;

/// The purpose of a key. It enters the key's derivation, so that no key serves two directions.
enum class KeyUse : uint8_t {
  kWorkerToAggregator = 1,
  kAggregatorToWorker = 2,
  kAggregatorToAll = 3,  ///< worker kAllWorkers, no nonces: every worker derives it from the incarnation
  kHandshake = 4,        ///< incarnation 0, no nonces: both directions, before there is a session
};

/// The scope of a key: the inputs of its derivation beside the job key.
struct KeyScope {
  KeyUse use = KeyUse::kHandshake;
  uint32_t job = 0;
  uint64_t incarnation = 0;
  uint16_t worker = 0;
  Nonce worker_nonce{};
  Nonce aggregator_nonce{};

  static KeyScope handshake(uint32_t job, uint16_t worker) { return {.job = job, .worker = worker}; }
  static KeyScope to_all(uint32_t job, uint64_t incarnation) {
    return {.use = KeyUse::kAggregatorToAll, .job = job, .incarnation = incarnation, .worker = kAllWorkers};
  }
};

/// A key ready for use: made once per session, then no allocation and no set-up per packet beyond the sequence number.
///
/// Session keys (all but kHandshake) sign with a MAC that takes the sequence number as its nonce. Two different
/// datagrams signed under one key with one number would reveal the key. So a number is never used twice under a key,
/// and a key never by two senders. A sender that has forgotten its numbers makes a new key (a fresh nonce, another
/// incarnation). A handshake key has no such condition: it lives as long as the job key, and its MAC is a keyed hash
/// without the number.
/// Threads  one at a time.
class DatagramKey {
 public:
  /// Makes room for a key: call derive() before any use.
  DatagramKey();
  DatagramKey(const JobKey& job_key, const KeyScope& scope);
  DatagramKey(DatagramKey&&) noexcept;
  DatagramKey& operator=(DatagramKey&&) noexcept;
  ~DatagramKey();

  /// Turns into another key, in place: no allocation.
  void derive(const JobKey& job_key, const KeyScope& scope);
  /// Returns the MAC of `bytes`, whose header's sequence number is `sequence`.
  Mac sign(ByteSpan bytes, uint64_t sequence) const;
  /// Verifies a MAC in constant time.
  bool verify(ByteSpan bytes, uint64_t sequence, ByteSpan mac) const;
  /// Signs a datagram whose extension and payload are in `packet` already: writes header and MAC around them. Returns
  /// the number of the datagram's bytes.
  /// REQUIRES: packet.size() >= datagram_bytes(header).
  size_t seal(const DatagramHeader& header, std::span<uint8_t> packet) const;
  bool verify(const Datagram& datagram) const {
    return verify(datagram.signed_bytes, datagram.header.sequence, datagram.mac);
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the aggregator's nonce of a handshake, a pure function. An aggregator that answers a CHALREQ keeps no state,
/// and finds the same nonce again when the HELLO arrives.
///
/// sessions  how many sessions of this worker the aggregator has accepted in its present incarnation: a replayed old
///           HELLO fits no nonce any longer.
Nonce challenge_nonce(const JobKey& job_key, uint32_t job, uint64_t incarnation, uint16_t worker,
                      const Nonce& worker_nonce, uint64_t sessions);

/// Returns a fresh nonce from the system's generator. State machines get theirs from the caller, so that simulations
/// repeat.
Nonce random_nonce();

/// Returns the library that computes the MACs of sessions in this build: "libipsec-mb", or "OpenSSL" (the same bytes,
/// four times the time).
std::string_view datagram_mac_library();

}  // namespace millrace::protocol
