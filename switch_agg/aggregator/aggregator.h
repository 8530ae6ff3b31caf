#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/window/window_code.h"
#include "switch_agg/aggregator/aggregator_counters.h"

namespace millrace::switch_agg {

/// Says the role of an aggregator in a job (S1.1, S7).
enum class Role : uint8_t {
  kReduce = 1,   ///< decides: closes turns, re-selects, sends results
  kCombine = 2,  ///< a rack's: only adds up, the shard decides
};

/// Describes one job of the switch's configuration. No packet changes it.
struct SwitchJob {
  uint32_t job = 0;
  /// Number of lanes. Over 1, the job has as many numbers, from `job` on, each a job of its own here
  /// (split_by_lanes()).
  uint32_t lanes = 1;
  std::string name;
  protocol::JobKey key{};
  Role role = Role::kReduce;
  uint32_t workers = 0;  ///< of the whole job, not of the rack: the headroom of sums, |q| <= (2^31 - 1) / workers
  uint32_t window_indices = 0;  ///< a multiple of 64, <= options.window_indices_max.
  /// Reserved for the job, <= kSlotsMax. The switch refuses the job where fewer slots are left. Role reduce: the job
  /// may use fewer (S6.3.3).
  uint32_t slots = 0;
  /// Exact ones only: kRaw, kGap or kBitmap; kFixed32 (16 bits where a result's values fit).
  protocol::WindowCodecs result_codecs{.index = protocol::WindowIndexCodec::kGap,
                                       .value = protocol::WindowValueCodec::kFixed32};
  /// Longest datagram of the job, at least 1200: `switch_packet_bytes` of its workers. Workers of another length
  /// get no answer (S5.6). 0: 1472, or options.packet_bytes_max where that is less.
  uint32_t packet_bytes = 0;
  uint64_t reselect_k = 0;  ///< entries of a step's update (kCombine: of the rack's sums); 0: the whole sum.
  /// Silence of all its workers for this time frees its slots (a new incarnation).
  TimeNs lease_ns = 10 * kNsPerS;
  protocol::Endpoint shard{};     ///< kCombine: where sums go
  uint64_t rack = 0;              ///< kCombine: workers of this rack, a bit each
  uint16_t rack_number = 0;       ///< kCombine: its place in the shard's `racks`
  std::vector<uint64_t> racks{};  ///< kReduce, where racks add up in front of it: workers of each, disjoint; at most 64
};

/// The least packet_bytes and packet_bytes_max: a WELCOME of kSlotsMax slots fits.
inline constexpr uint32_t kAggregatorPacketBytesMin = 1200;

/// The most slots_max: numbers of slots are u16.
inline constexpr uint32_t kAggregatorSlotsMax = UINT16_MAX;

struct AggregatorOptions {
  uint32_t jobs_max = 64;
  uint32_t slots_max = 512;  ///< of all jobs together, at most kAggregatorSlotsMax
  /// A multiple of 64; memory: slots_max x (5.5 B + 2 bit) x this.
  uint32_t window_indices_max = protocol::kWindowIndicesMax;
  /// Of all jobs: at least 1200. Memory is of this size, results of the job's.
  uint32_t packet_bytes_max = 1472;
  /// Retained results: one per worker and slot in this time.
  TimeNs answer_gap_ns = kNsPerMs;
};

/// Returns whether an aggregator of these options can serve the job of one lane (split_by_lanes()), free slots apart.
/// Errors   invalid_argument, with the job's number.
Status judge_job(const SwitchJob& job, const AggregatorOptions& options);

enum class SwitchPhase : uint8_t { kClosed, kCollecting, kFetching, kOpen };

/// State of a rack's session with the aggregator that decides.
enum class RackUplink : uint8_t {
  kNone,  ///< no worker has come yet
  kAsking,
  kHello,
  /// The rack sums units up; in the other states it directs workers past this rack.
  kWelcome,
};

/// Holds the status of a job in role `combine`.
struct RackStatus {
  RackUplink uplink = RackUplink::kNone;
  uint32_t gathering = 0;  ///< slots whose sum is not whole yet
  uint32_t in_flight = 0;  ///< partial sums that were sent up, and whose slot has had no newer turn here
  uint32_t raw = 0;        ///< slots whose present turn is sent up unit by unit
};

/// Says which event a job is blocked on, as its aggregator sees it.
enum class SwitchWait : uint8_t {
  kNothing,
  kGreetings,      ///< HELLOs of this epoch
  kKeptResults,    ///< results that some worker lacks, from one that has them
  kContributions,  ///< to an open turn
  kDecider,        ///< role combine: the session with the aggregator that decides
};
struct SwitchWaiting {
  SwitchWait what = SwitchWait::kNothing;
  uint64_t workers = 0;  ///< waited for, a bit each
  TimeNs since = 0;      ///< of the aggregator's clock
};

/// Counts the packets that name one worker. Only a packet's MAC proves that the worker sent it.
struct SwitchDoor {
  TimeNs heard_at = 0;     ///< the last authentic one; 0: none
  uint64_t rejected = 0;   ///< their MAC was wrong
  TimeNs rejected_at = 0;  ///< the last of those
  /// Longest datagram of the worker where it is not the job's (S5.6); 0: no CHALREQ showed that.
  uint32_t other_bytes = 0;
  TimeNs other_bytes_at = 0;  ///< the last of those CHALREQs
};

/// Holds the present status of a job at its aggregator.
struct SwitchJobStatus {
  uint32_t job = 0;
  uint32_t packet_bytes = 0;  ///< longest datagram of the job
  uint32_t slots = 0;         ///< reserved at present
  uint32_t slots_in_use = 0;  ///< of them: with an open turn; role combine: whose sum is not whole yet
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  SwitchPhase phase = SwitchPhase::kClosed;
  uint64_t live = 0;
  std::optional<RackStatus> rack = {};  ///< role combine
  uint64_t greeted = 0;                 ///< workers of the epoch whose HELLO came, a bit each
  SwitchWaiting waiting = {};
  std::array<SwitchDoor, protocol::kSwitchWorkersMax> doors = {};  ///< by worker
};

class JobMachine;

/// A job that is not served yet, and its memory. Shared, so that its owners need not know the machine.
using PreparedJob = std::shared_ptr<JobMachine>;

/// Runs the slot machine: pure, one thread, no allocation after add_job(). Takes packets in any order, hostile ones
/// among them, and writes its packets into a sink. Normative: S3, S4, S6, S7; DESIGN.md decides the points that they
/// leave open.
///
/// Several cores: one Aggregator each, with slots, an incarnation and jobs of its own (lane_of_datagram.h).
class Aggregator {
 public:
  /// Creates an aggregator without jobs. `incarnation_seed`: random; incarnations are drawn from it.
  Aggregator(const AggregatorOptions& options, uint64_t incarnation_seed);
  ~Aggregator();
  Aggregator(Aggregator&&) noexcept;

  /// Reserves the slots of a job of one lane (split_by_lanes()).
  /// Errors   those of judge_job(); limit_exceeded: too many jobs, or no slots left. Without slots the job is known all
  ///          the same. Its workers get NO_SLOTS, and slots where they ask again and some are free.
  Status add_job(PreparedJob prepared, TimeNs now);
  /// Prepares the job, and adds it.
  Status add_job(const SwitchJob& job, TimeNs now);
  /// Takes the memory of a job of one lane: with racks up to a GB. Throws std::bad_alloc where the system
  /// refuses memory; one that promises more than it has ends the process instead. The result is for add_job()
  /// of this aggregator, which outlives it.
  /// Errors   those of judge_job().
  /// Threads  may run beside all other calls, one prepare() at a time.
  Result<PreparedJob> prepare(const SwitchJob& job);
  /// Frees the job's slots; packets of it are of a wrong job from now on. Returns the rest of its memory, for another
  /// thread to free while this aggregator exists; nullptr: there is no such job.
  PreparedJob remove_job(uint32_t job);

  /// Handles one packet: whole before the call returns, its answers in `sink`.
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink);
  /// Ends leases, drops old soft state, and repeats requests without an answer. Call it every millisecond or so.
  void tick(TimeNs now, protocol::PacketSink& sink);

  const AggregatorCounters& counters() const;
  /// Returns the counters of one job; nullptr: there is none of that number. Valid until remove_job().
  const AggregatorCounters* counters(uint32_t job) const;
  std::vector<SwitchJobStatus> status() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::switch_agg
