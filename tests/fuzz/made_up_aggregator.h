#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"

namespace millrace::testing {

/// The aggregator's side of one worker's session, or of a rack's: right keys, and no state machine. Every field is the
/// test's to choose.
class MadeUpAggregator {
 public:
  MadeUpAggregator(uint32_t job, const protocol::JobKey& key, uint16_t peer, uint64_t incarnation)
      : job_(job),
        key_(key),
        peer_(peer),
        incarnation_(incarnation),
        handshake_(key, protocol::KeyScope::handshake(job, peer)) {}

  uint64_t incarnation() const { return incarnation_; }
  /// It has started again: all keys are void.
  void restart() { ++incarnation_; }

  /// Receives a packet of the peer. After a CHALREQ, the aggregator can answer; a HELLO carries the keys.
  void hear(const protocol::Datagram& datagram) {
    if (datagram.header.type == protocol::DatagramType::kChallengeRequest) {
      const auto request = protocol::read_challenge_request(datagram.extension);
      if (request) asked_ = request->worker_nonce;
    }
    if (datagram.header.type != protocol::DatagramType::kHello) return;
    const auto made = std::ranges::find_if(made_, [&](const Keys& keys) { return keys.up.verify(datagram); });
    if (made != made_.end()) down_ = &made->down;
  }
  bool may_challenge() const { return asked_.has_value(); }
  /// The answer to the last CHALREQ. REQUIRES: may_challenge().
  ByteBuffer challenge() {
    protocol::Nonce own{};
    own[0] = static_cast<uint8_t>(++nonces_);
    own[1] = static_cast<uint8_t>(nonces_ >> 8);
    protocol::KeyScope scope{.use = protocol::KeyUse::kWorkerToAggregator,
                             .job = job_,
                             .incarnation = incarnation_,
                             .worker = peer_,
                             .worker_nonce = *asked_,
                             .aggregator_nonce = own};
    Keys& keys = made_.emplace_back();
    keys.up.derive(key_, scope);
    scope.use = protocol::KeyUse::kAggregatorToWorker;
    keys.down.derive(key_, scope);
    if (down_ == nullptr) down_ = &keys.down;
    ByteBuffer extension(protocol::kExtensionBytesMax);
    extension.resize(protocol::put_challenge({*asked_, own}, extension));
    return as_hint(header(protocol::DatagramType::kChallenge), extension, {});
  }

  protocol::DatagramHeader header(protocol::DatagramType type) const {
    protocol::DatagramHeader header;
    header.type = type;
    header.job = job_;
    header.incarnation = incarnation_;
    header.worker = peer_;
    return header;
  }
  /// Signed with the session's key; with the handshake's where there is none.
  ByteBuffer sealed(protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload) {
    if (down_ == nullptr) return as_hint(header, extension, payload);
    header.sequence = ++sequence_;
    return seal(header, extension, payload, *down_);
  }
  ByteBuffer to_all(protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload) {
    header.worker = protocol::kAllWorkers;
    header.sequence = ++sequence_to_all_;
    if (std::exchange(all_life_, header.incarnation) != header.incarnation)
      all_.derive(key_, protocol::KeyScope::to_all(job_, header.incarnation));
    return seal(header, extension, payload, all_);
  }
  ByteBuffer as_hint(protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload) {
    header.sequence = 0;
    return seal(header, extension, payload, handshake_);
  }
  /// Whether the peer signed it, with keys of any session that there may have been.
  bool verifies(const protocol::Datagram& datagram) const {
    if (datagram.header.sequence == 0) return handshake_.verify(datagram);
    // The last ones first: they are it, mostly.
    return std::any_of(made_.rbegin(), made_.rend(), [&](const Keys& keys) { return keys.up.verify(datagram); });
  }

 private:
  struct Keys {
    protocol::DatagramKey up;
    protocol::DatagramKey down;
  };
  static ByteBuffer seal(protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload,
                         const protocol::DatagramKey& key) {
    header.extension_words = static_cast<uint8_t>(extension.size() / 8);
    header.payload_bytes = static_cast<uint16_t>(payload.size());
    ByteBuffer packet(protocol::datagram_bytes(header));
    const auto body = packet.begin() + protocol::kDatagramHeaderBytes;
    std::ranges::copy(payload, std::ranges::copy(extension, body).out);
    key.seal(header, packet);
    return packet;
  }

  uint32_t job_;
  protocol::JobKey key_;
  uint16_t peer_;
  uint64_t incarnation_;
  protocol::DatagramKey handshake_;
  std::optional<protocol::Nonce> asked_;
  uint32_t nonces_ = 0;
  std::deque<Keys> made_;  ///< addresses hold
  const protocol::DatagramKey* down_ = nullptr;
  protocol::DatagramKey all_;
  uint64_t all_life_ = 0;  ///< of all_; 0: none
  uint64_t sequence_ = 0;
  uint64_t sequence_to_all_ = 0;
};

}  // namespace millrace::testing
