#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/window/window_code.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/aggregator/outbox.h"
#include "switch_agg/aggregator/worker_sessions.h"
#include "switch_agg/slot/slot.h"

namespace millrace::switch_agg {

/// Holds memory that all jobs of an aggregator share: used within one call.
struct Scratch {
  explicit Scratch(uint32_t window_indices_max, uint32_t packet_bytes_max);

  std::vector<uint16_t> entry_indices;  ///< [kFragmentEntriesMax] of the packet at hand
  std::vector<int32_t> entry_values;
  std::vector<uint16_t> indices;  ///< [window_indices_max] of the turn that closes
  std::vector<int32_t> values;
  std::vector<int32_t> decoded;
  std::vector<uint8_t> packet;  ///< [packet_bytes_max]
};

/// Runs one job of an aggregator, in any role: the checks of incoming packets (sender, authenticity, incarnation), its
/// slots, its lease.
///
/// Threads  one at a time, the aggregator's.
class JobMachine {
 public:
  using Phase = SwitchPhase;

  /// options, pool, scratch  outlive this.
  JobMachine(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch);
  virtual ~JobMachine();
  JobMachine(const JobMachine&) = delete;
  JobMachine& operator=(const JobMachine&) = delete;

  const SwitchJob& job() const { return job_; }
  bool has_slots() const { return !slots_.empty(); }
  /// Reserves the job's slots. Returns false where the pool has fewer.
  bool reserve_slots();
  /// Returns the slots to the pool.
  void free_slots();
  /// Says that the job has slots, and that no authentic packet of its epoch arrived for the lease's time (S6.10).
  bool lease_is_over(TimeNs now) const;
  /// Says that receive()'s last packet is of another job of this number, and that the job before is over. The caller
  /// then calls begin_incarnation(), and receive() with that packet again.
  bool needs_incarnation() const { return needs_incarnation_; }
  uint64_t incarnation() const { return sessions_.incarnation(); }
  uint32_t epoch() const { return epoch_; }
  Phase phase() const { return phase_; }
  uint64_t live() const { return live_; }
  uint64_t greeted() const { return greeted_; }
  const std::array<SwitchDoor, protocol::kSwitchWorkersMax>& doors() const { return doors_; }
  virtual SwitchWaiting waiting() const = 0;

  /// Begins an incarnation: forgets all state of the one before; slots stay reserved.
  void begin_incarnation(uint64_t incarnation, TimeNs now);
  virtual void receive(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) = 0;
  virtual void tick(const Outbox& out) = 0;
  /// Returns the number of slots with an open turn; of a rack's aggregator, of those with an incomplete sum.
  virtual uint32_t slots_in_use() const;
  /// Returns the status of a rack's aggregator; empty for others.
  virtual std::optional<RackStatus> rack_status() const { return std::nullopt; }

 protected:
  virtual void forget() = 0;
  /// Says whether a HELLO can be of this machine's present job and of no other. A job's number can be used again, and
  /// epochs and incarnations begin low.
  virtual bool fits(const protocol::DatagramHeader& header, const protocol::HelloTerms& hello) const = 0;
  /// Says that the job has ended (S6.9.1), as far as the machine can know: another one may have the number.
  virtual bool has_ended(TimeNs now) const = 0;
  /// Says that no packet of the job came for kQuiet. A live worker that waits sends more often: kQuiet is twice its
  /// longest time-out.
  bool is_quiet(TimeNs now) const { return now - heard_ >= kQuiet; }
  static constexpr TimeNs kQuiet = kNsPerS;

  void challenge(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  bool has_the_length(const protocol::Datagram& request, const Outbox& out) const;
  bool admit(const protocol::Datagram& datagram, const Outbox& out);
  /// Checks a HELLO, which may begin a session. Empty: it is dropped, or is of another job; then its sender gets a
  /// notice.
  std::optional<protocol::HelloTerms> admit_hello(const protocol::Datagram& datagram, const protocol::Endpoint& from,
                                                  const Outbox& out);
  void back_off(const protocol::Datagram& datagram, const protocol::HelloTerms& hello, WorkerSessions::Verdict verdict,
                const protocol::Endpoint& from, const Outbox& out);
  void note(WorkerSessions::Verdict verdict, uint16_t worker, const Outbox& out);
  void reject(uint16_t worker, const Outbox& out);
  void note_mark(const Outbox& out);
  void notice(uint16_t worker, protocol::NoticeCode code, const Outbox& out);
  /// Notifies a worker of its missing packets, so that it need not wait for a time-out (S4.19). Sends at most one
  /// answer for each of the worker's own packets.
  void tell_lost(uint16_t worker, const Outbox& out);
  void say_notice(uint16_t worker, const protocol::Notice& said, const Outbox& out);
  void notice_stranger(const protocol::Datagram& datagram, protocol::NoticeCode code, const protocol::Nonce& nonce,
                       const protocol::Endpoint& from, const Outbox& out);
  /// epoch  of the HELLO that it answers: its sender takes no WELCOME of another one.
  void send_welcome(uint16_t worker, uint32_t epoch, const protocol::WelcomeTerms& said, const Outbox& out);
  protocol::DatagramHeader header_of(protocol::DatagramType type) const;
  /// Decodes into the scratch's entries, to which `entries` points then.
  bool decode(const protocol::DatagramHeader& header, ByteSpan payload, protocol::WindowEntries& entries,
              const Outbox& out) const;
  Slot& slot(uint32_t number) { return (*pool_)[slots_[number]]; }
  const Slot& slot(uint32_t number) const { return (*pool_)[slots_[number]]; }

  SwitchJob job_;
  const AggregatorOptions* options_;
  SlotPool* pool_;
  Scratch* scratch_;
  int32_t headroom_;
  WorkerSessions sessions_;
  std::vector<uint16_t> slots_;  ///< of the pool, by the job's own number; empty: none reserved
  TimeNs heard_ = 0;             ///< the last authentic packet of the epoch
  bool needs_incarnation_ = false;
  /// Records a congestion mark of an authentic packet: the next result carries it (switch_agg/packet_io/DESIGN.md).
  bool marked_ = false;

  Phase phase_ = Phase::kClosed;
  uint32_t epoch_ = 0;
  uint64_t live_ = 0;
  uint64_t membership_hash_ = 0;
  uint64_t greeted_ = 0;    ///< workers whose HELLO is in
  TimeNs waits_since_ = 0;  ///< since when the result of waiting() is unchanged.
  /// Over all incarnations: a wrong key knows none.
  std::array<SwitchDoor, protocol::kSwitchWorkersMax> doors_{};
};

/// Says whether a unit's fields are possible, as far as they can be checked without state. Of a CONTRIB, and of a
/// PARTIAL in front of it.
/// slots  of the job.
bool is_unit_well_formed(const protocol::DatagramHeader& header, uint32_t slots);
/// Says whether LAST or `next` contradicts an earlier fragment of this worker.
bool contradicts(const Slot::Part& part, const protocol::DatagramHeader& header);
/// Returns codecs for these values. Values of at most 15 bits and a sign are sent as 16 bits: exact, and half as long.
protocol::WindowCodecs exact_codecs(protocol::WindowCodecs codecs, uint32_t magnitude_or);

}  // namespace millrace::switch_agg
