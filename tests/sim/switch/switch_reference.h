#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/replay_window.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::testing {

/// A rule that the reference decider breaks on purpose: the simulation has to see it.
enum class SwitchMutation : uint8_t {
  kNone,
  kIgnoreFragments,     ///< a worker's first fragment completes its contribution
  kAddTwice,            ///< a duplicate is added again
  kOpenWithoutAll,      ///< opens when all but one hello are in
  kKeepSumsOverEpochs,  ///< open sums survive a change of epoch
  kNoFetch,             ///< no worker is asked for the result that a laggard lacks: the turn is computed again
  kNoKeptResult,        ///< closed turns are not answered again
  kSeldomKeptResult,    ///< they are, to every 32nd packet that asks: nothing hangs, it only takes long
};

/// The decider of role reduce, slow and obvious: keeps every entry of every packet, adds up when a turn closes. Tests
/// compare the production slot machine with it; it also replaces the shard. S4, S6.
class SwitchReference {
 public:
  struct Job {
    uint32_t job = 0;
    protocol::JobKey key{};
    uint32_t window_indices = 0;
    uint32_t slots = 0;  ///< reserved; an epoch may use fewer (S6.3.3)
    TimeNs lease_ns = 10 * kNsPerS;
  };

  SwitchReference(uint64_t incarnation_seed, size_t packet_bytes_max, SwitchMutation mutation = SwitchMutation::kNone)
      : random_(RandomKey::from(incarnation_seed)), packet_bytes_max_(packet_bytes_max), mutation_(mutation) {}

  void add_job(const Job& job, TimeNs now);
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink);
  void tick(TimeNs now, protocol::PacketSink& sink);

  /// Contributions that no honest worker of this epoch and incarnation sends, positions too far apart: must stay 0.
  uint64_t impossible() const { return impossible_; }
  uint64_t closed() const { return closed_; }
  uint64_t fetched() const { return fetched_; }
  uint64_t incarnations() const { return lives_; }

 private:
  struct Piece {
    std::vector<uint16_t> indices;
    std::vector<int32_t> values;
  };
  struct Packet {
    protocol::DatagramHeader header;
    ByteBuffer extension;
    ByteBuffer payload;
  };
  struct Turn {
    std::optional<protocol::DatagramHeader> binding;
    std::map<uint16_t, std::map<uint8_t, Piece>> pieces;
    std::map<uint16_t, uint8_t> last;
    std::map<uint16_t, uint32_t> next;
    std::map<uint16_t, bool> fin;
    bool closed = false;
    std::vector<Packet> result;
    std::map<uint16_t, uint32_t> asked;  ///< how often, by worker
  };
  struct Slot {
    uint64_t current = 0;  ///< the largest turn; closed or not
    std::map<uint64_t, Turn> turns;
  };
  struct Session {
    protocol::Nonce nonce{};
    protocol::DatagramKey up;
    protocol::DatagramKey down;
    protocol::ReplayWindow seen;
    protocol::Endpoint at;
    uint64_t sequence = 0;
  };
  enum class Phase : uint8_t { kClosed, kCollecting, kFetching, kOpen };
  struct JobState {
    Job job;
    uint64_t incarnation = 0;
    uint32_t epoch = 0;
    bool has_epoch = false;
    uint64_t live = 0;
    uint64_t membership_hash = 0;
    Phase phase = Phase::kClosed;
    std::map<uint16_t, protocol::HelloTerms> hellos;
    std::vector<Slot> slots;  ///< of the epoch
    std::vector<uint64_t> opening;
    std::map<uint16_t, std::map<uint8_t, Packet>> fetched;  ///< by slot
    std::map<uint16_t, Session> sessions;
    std::map<uint16_t, uint64_t> sessions_accepted;
    uint64_t sequence = 0;
    TimeNs heard_at = 0;
  };

  void new_life(JobState& job);
  void on_challenge_request(JobState& job, const protocol::Datagram& datagram, const protocol::ReceivedPacket& packet,
                            protocol::PacketSink& sink);
  bool authentic(JobState& job, const protocol::Datagram& datagram, const protocol::Endpoint& from);
  void on_hello(JobState& job, const protocol::Datagram& datagram, protocol::PacketSink& sink);
  void look_at_hellos(JobState& job, protocol::PacketSink& sink);
  void ask_for_results(JobState& job, protocol::PacketSink& sink);
  bool lacks_results(const JobState& job) const;
  void on_retained(JobState& job, const protocol::Datagram& datagram, protocol::PacketSink& sink);
  void open(JobState& job, protocol::PacketSink& sink);
  void welcome(JobState& job, uint16_t worker, protocol::PacketSink& sink);
  void on_contribution(JobState& job, const protocol::Datagram& datagram, protocol::PacketSink& sink);
  void add(JobState& job, Slot& slot, const protocol::Datagram& datagram, protocol::PacketSink& sink);
  bool whole(const JobState& job, const Turn& turn) const;
  void close(JobState& job, uint16_t number, uint64_t at, protocol::PacketSink& sink);
  std::vector<Packet> encode(const JobState& job, const Turn& turn) const;
  void send_result(JobState& job, const Turn& turn, uint16_t worker, protocol::PacketSink& sink);
  void notice(JobState& job, uint16_t worker, protocol::NoticeCode code, const protocol::Endpoint& to,
              protocol::PacketSink& sink);
  /// bytes_least  zeros behind the datagram make it as long.
  void write(const protocol::DatagramHeader& header, ByteSpan extension, ByteSpan payload,
             const protocol::DatagramKey& key, const protocol::Endpoint& to, protocol::PacketSink& sink,
             size_t bytes_least = 0) const;
  void to_worker(JobState& job, uint16_t worker, protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload,
                 protocol::PacketSink& sink);

  RandomSequence random_;
  size_t packet_bytes_max_;
  SwitchMutation mutation_;
  std::map<uint32_t, JobState> jobs_;
  uint64_t impossible_ = 0;
  uint64_t closed_ = 0;
  uint64_t fetched_ = 0;
  uint64_t lives_ = 0;
};

}  // namespace millrace::testing
