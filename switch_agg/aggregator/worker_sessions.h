#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/replay_window.h"

namespace millrace::switch_agg {

/// Holds keys, replay windows and addresses of one job's workers, under the job's present incarnation.
/// protocol/wire/datagram_keys.md, "Handshake", defines the handshake. A CHALREQ leaves no state here. A HELLO that
/// verifies under the nonces of its own challenge begins a session and ends the worker's former one.
///
/// Memory   fixed: kSwitchWorkersMax sessions, and one a rack.
class WorkerSessions {
 public:
  enum class Verdict : uint8_t {
    kGood,
    kNoSession,
    kBadMac,
    kReplay,
    kOtherSession,  ///< authentic, of another session than the one that stands, which stays
  };
  /// Says the effect of another session's HELLO on the present session.
  enum class Former : uint8_t { kEnds, kStays };

  /// racks  of a decider whose workers come through racks: rack r is worker kRackWorkers | r.
  WorkerSessions(uint32_t job, const protocol::JobKey& key, uint32_t racks);
  /// Says whether it is a worker's number, or that of an existing rack.
  bool knows(uint16_t worker) const { return place(worker) < sessions_.size(); }

  /// Begins an incarnation: all sessions end, and the key of packets to all changes.
  void begin_incarnation(uint64_t incarnation);
  uint64_t incarnation() const { return incarnation_; }

  /// Checks that a packet of a worker is authentic and new. REQUIRES: its incarnation is incarnation(), knows(its
  /// worker).
  Verdict check(const protocol::Datagram& datagram);
  /// Checks a HELLO, which may begin a session. Answers go to `from` then, and where it is the latest packet of the
  /// present session.
  Verdict check_hello(const protocol::Datagram& datagram, const protocol::HelloTerms& hello,
                      const protocol::Endpoint& from, Former former);
  /// Says whether it is the present session.
  bool is_session(uint16_t worker, const protocol::Nonce& worker_nonce) const {
    const Session& session = sessions_[place(worker)];
    return session.begun && session.worker_nonce == worker_nonce;
  }
  /// Says whether a packet without a session (sequence 0) is of a holder of the job key. It may be a replay.
  bool check_handshake(const protocol::Datagram& datagram) const;
  protocol::Nonce challenge_for(uint16_t worker, const protocol::Nonce& worker_nonce) const;

  /// Returns the lost packets of that worker, as ReplayWindow has them.
  protocol::LostSequences take_lost(uint16_t worker) { return sessions_[place(worker)].replay.take_lost(); }

  bool has_session(uint16_t worker) const { return sessions_[place(worker)].begun; }
  const protocol::Endpoint& endpoint(uint16_t worker) const { return sessions_[place(worker)].endpoint; }

  /// Each sets header.sequence and header.worker, signs in place, and returns the datagram's bytes.
  /// REQUIRES: extension and payload are in `packet`; a session of that worker.
  size_t seal_to_worker(uint16_t worker, protocol::DatagramHeader header, std::span<uint8_t> packet);
  size_t seal_to_all(protocol::DatagramHeader header, std::span<uint8_t> packet);
  size_t seal_handshake(uint16_t worker, protocol::DatagramHeader header, std::span<uint8_t> packet) const;

  /// Returns true once per worker, code and `gap`: notices are limited in rate.
  bool may_notice(uint16_t worker, protocol::NoticeCode code, TimeNs now, TimeNs gap);

 private:
  static constexpr size_t kNoticeCodes = 8;

  struct Session {
    bool begun = false;  ///< otherwise the keys belong to no worker
    protocol::DatagramKey from_worker;
    protocol::DatagramKey to_worker;
    protocol::ReplayWindow replay;
    protocol::Nonce worker_nonce{};
    uint64_t sent = 0;  ///< the last sequence number of ours
    /// Sessions begun in this incarnation: the number goes into challenges.
    uint64_t sessions = 0;
    protocol::Endpoint endpoint;
    std::array<TimeNs, kNoticeCodes> notice_after{};
  };

  /// Returns the index in sessions_: workers, then racks; beyond its end for others.
  static constexpr size_t place(uint16_t worker) {
    if (worker < protocol::kSwitchWorkersMax) return worker;
    return worker >= protocol::kRackWorkers ? protocol::kSwitchWorkersMax + size_t{worker} - protocol::kRackWorkers
                                            : SIZE_MAX;
  }

  uint32_t job_;
  protocol::JobKey key_;
  uint64_t incarnation_ = 0;
  uint64_t sent_to_all_ = 0;
  protocol::DatagramKey to_all_;
  protocol::DatagramKey tried_;                   ///< the key that verifies a HELLO of new nonces
  std::vector<protocol::DatagramKey> handshake_;  ///< as sessions_
  std::vector<Session> sessions_;                 ///< by place()
};

}  // namespace millrace::switch_agg
