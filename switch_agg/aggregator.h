#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/window_code.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::switch_agg {

/// What an aggregator is to its job (SWITCH.md, sections 1 and 7).
enum class Role : uint8_t {
  kReduce = 1,   ///< it decides: closes turns, re-selects, sends results
  kCombine = 2,  ///< a rack's: it only adds up, the shard decides
};

/// One job as the switch is told of it (its configuration, never a packet).
struct SwitchJob {
  uint32_t job = 0;
  std::string name;
  protocol::JobKey key{};
  Role role = Role::kReduce;
  uint32_t workers = 0;         ///< of the whole job, not of the rack: the headroom of sums, |q| <= (2^31 - 1) / workers
  uint32_t window_indices = 0;  ///< a multiple of 64, <= kWindowIndicesMax
  uint32_t slots = 0;           ///< reserved for it, <= kSlotsMax; where the switch has not so many left it is refused
  protocol::WindowCodecs result_codecs{protocol::WindowIndexCodec::kGap, protocol::WindowValueCodec::kFixed32};
  uint64_t reselect_k = 0;      ///< entries of a step's update; 0: the whole sum
  TimeNs lease_ns = 10 * kNsPerS;  ///< silence of all its workers for so long frees its slots (a new life)
  protocol::Endpoint shard{};   ///< kCombine: where sums go
  uint64_t rack = 0;            ///< kCombine: workers of this rack, a bit each
};

struct AggregatorOptions {
  uint32_t jobs_max = 64;
  uint32_t slots_max = 512;                                             ///< of all jobs together
  uint32_t window_indices_max = protocol::kWindowIndicesMax;            ///< memory: slots_max x 2 versions x (4 B + 1 bit) x this
  uint32_t packet_bytes_max = 1472;                                     ///< UDP payload of the path's MTU
  TimeNs answer_gap_ns = kNsPerMs;                                      ///< kept results: one per worker, slot and so long
};

/// Why packets were dropped, and what was done: one counter each, also per job. Plain numbers, read by the owner's thread.
struct AggregatorCounters;

/// The slot machine: pure, one thread, no allocation after add_job(). Takes packets as they come, hostile ones among them, and
/// writes what it sends into a sink. Normative: SWITCH.md, sections 3, 4, 6 and 7.
///
/// Several cores: one Aggregator each, with slots, life and UDP port of its own; a job's windows are dealt over them.
class Aggregator {
 public:
  /// `life_seed`: random; lives are drawn from it.
  Aggregator(const AggregatorOptions& options, uint64_t life_seed);
  ~Aggregator();
  Aggregator(Aggregator&&) noexcept;

  /// Reserves the job's slots.
  /// Errors   invalid_argument; limit_exceeded: no slots left (the job's workers are told NO_SLOTS), too many jobs.
  Status add_job(const SwitchJob& job, TimeNs now);
  /// Its slots are free again; packets of it are of a wrong job from now on.
  void remove_job(uint32_t job);

  /// Handles one packet: whole before the call returns, its answers in `sink`.
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink);
  /// Leases, soft state that is too old, what is limited in rate. Call it every millisecond or so.
  void tick(TimeNs now, protocol::PacketSink& sink);

  const AggregatorCounters& counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::switch_agg
