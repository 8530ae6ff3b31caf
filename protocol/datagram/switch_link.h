#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/random.h"
#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/replay_window.h"

namespace millrace::protocol {

/// Holds the keys of a worker, or of a rack, towards one aggregator at a time. They are the challenge that carries the
/// aggregator's incarnation, the session's keys, sequence numbers, and replay windows. Only the aggregator itself tells
/// its incarnation, in answer to a nonce that was never used before (S6.6).
/// Threads  one at a time; no allocation after the constructor.
class SwitchLink {
 public:
  struct Identity {
    uint32_t job = 0;
    JobKey key{};
    uint16_t worker = 0;
    uint64_t nonce_seed = 0;  ///< random: nonces are drawn from it
    /// A CHALREQ is filled up with zeros to this length (S5.6): the job's longest datagram. 0: it is not.
    uint32_t packet_bytes = 0;
  };
  explicit SwitchLink(const Identity& identity);

  /// Sends packets to this aggregator from now on. If it is another one than before, its incarnation has to be
  /// requested.
  void aim(const Endpoint& aggregator);
  const Endpoint& aggregator() const { return aggregator_; }
  bool has_session() const { return incarnation_.has_value(); }
  uint64_t incarnation() const { return incarnation_.value_or(0); }
  const Nonce& session_nonce() const { return session_nonce_; }

  /// Sends a CHALREQ, under one nonce until it is answered.
  void request_challenge(uint32_t epoch, PacketSink& sink);

  enum class Challenge : uint8_t {
    kRefused,          ///< not ours, not authentic, or of an incarnation that was left before
    kSameIncarnation,  ///< the aggregator has not restarted
    kNewIncarnation,   ///< the aggregator has started again
  };
  /// Says when the keys of a received CHALLENGE become the session's. They always do for another incarnation. A worker
  /// that has not been welcomed with its present keys wants it as well.
  enum class Renew : uint8_t { kNewIncarnationOnly, kAlways };
  /// Returns whether it names the nonce that is out: a client of several aggregators finds the challenged link by it.
  bool expects(const Datagram& challenge) const;
  Challenge take_challenge(const Datagram& datagram, Renew renew);

  /// Returns whether a NOTICE to a worker without a session answers the CHALREQ that is out: no replay of an earlier
  /// one.
  bool answers_request(const Notice& notice) const;

  /// Signs and sends one packet; incarnation, sequence, magic, job, worker and the lengths are set here.
  /// Returns  its sequence number; 0: the sink had no room.
  uint64_t send(DatagramHeader header, ByteSpan extension, ByteSpan payload, const Endpoint& to, PacketSink& sink);

  enum class Verdict : uint8_t { kGood, kForged, kReplayed };
  /// Judges a WELCOME, FETCH or RESULT of the session's incarnation, or a NOTICE.
  Verdict judge(const Datagram& datagram);
  /// Returns how many of the packets to all are lost, as ReplayWindow counts them; each is counted once.
  uint32_t take_lost();
  /// Returns whether a NOTICE is signed with the handshake key, which never changes: it is then a hint only.
  static bool is_hint(const Datagram& datagram);

 private:
  static constexpr size_t kIncarnationsLeftMax = 16;

  uint64_t write(DatagramHeader header, ByteSpan extension, ByteSpan payload, const DatagramKey& key,
                 const Endpoint& to, PacketSink& sink);
  void begin_session(uint64_t incarnation, const Nonce& theirs);

  Identity identity_;
  RandomSequence random_;
  Endpoint aggregator_{};
  std::optional<Nonce> pending_;  ///< of the CHALREQ that is not answered
  std::optional<uint64_t> incarnation_;
  Nonce session_nonce_{};
  // Of the session, if there is one: a new session derives its keys in place.
  DatagramKey up_;
  DatagramKey down_;
  DatagramKey all_;
  DatagramKey handshake_;
  ReplayWindow down_seen_;
  ReplayWindow all_seen_;
  uint64_t sequence_ = 0;
  struct Left {
    Endpoint aggregator;
    uint64_t incarnation = 0;  ///< no incarnation is 0
    bool operator==(const Left&) const = default;
  };
  /// The latest ended incarnations. A challenge answers a nonce that was drawn after all of them were left, so that
  /// none can return. If one does all the same, it is refused.
  std::array<Left, kIncarnationsLeftMax> left_{};
  size_t incarnations_left_ = 0;
};

}  // namespace millrace::protocol
