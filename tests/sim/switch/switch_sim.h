#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/window/window_code.h"
#include "tests/sim/switch/coded_union.h"
#include "tests/sim/switch/switch_reference.h"

/// Workers, switches and a shard under the switch protocol, simulated: production clients, packets as bytes, loss,
/// duplication, reordering, corruption, restarts, deaths, changes of path. One thread, virtual time, everything from a
/// seed.
namespace millrace::testing {

/// What sits at an aggregator's address. Restarting makes a new one.
class SwitchDecider {
 public:
  virtual ~SwitchDecider() = default;
  virtual void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) = 0;
  virtual void tick(TimeNs now, protocol::PacketSink& sink) = 0;
  /// Returns a content of the packet that no honest worker sends; empty: none.
  virtual std::string impossible() const = 0;
  /// What racks did, since it was made.
  struct RackCounts {
    uint64_t groups_added = 0;  ///< at a decider
    uint64_t group_overlaps = 0;
    uint64_t groups_sent = 0;  ///< at a rack
    uint64_t groups_cut = 0;
    uint64_t groups_again = 0;
    uint64_t groups_too_long = 0;
    uint64_t forwarded = 0;
    uint64_t flushed = 0;
    uint64_t no_slots = 0;  ///< at a decider as well: requests answered with "no slots"
    RackCounts& operator+=(const RackCounts& other);
  };
  virtual RackCounts rack_counts() const { return {}; }
};

struct SwitchSimJob {
  uint32_t job = 0;
  protocol::JobKey key{};
  uint32_t workers = 1;      ///< at the start
  uint32_t joiners = 0;      ///< come later
  uint32_t slots = 1;        ///< a multiple of lanes
  uint32_t slots_spare = 0;  ///< reserved at the aggregators beyond those: a multiple of lanes (S6.3.3)
  uint32_t lanes = 1;        ///< numbers from `job` on
  uint32_t window_indices = 64;
  uint32_t windows = 1;
  uint32_t steps = 1;
  double density = 0.5;
  uint64_t reselect_k = 0;  ///< of the production aggregator; the reference sends whole sums
  uint64_t rack_reselect_k = 0;
  uint32_t cluster = 1;  ///< over 1: all workers offer the same runs of this many indices
  int exponent_initial = -6;
  protocol::WindowCodecs codecs{};  ///< of contributions
  TimeNs think_max = 0;
};

struct SwitchScenario {
  uint64_t seed = 0;
  std::vector<SwitchSimJob> jobs;
  uint32_t switches = 1;  ///< addresses 0 ..; the shard's comes after them
  /// Racks in front of the shard. Worker w is in rack w % (racks + 1), or in none. Their addresses follow the shard's.
  uint32_t racks = 0;
  bool has_singles = true;      ///< false: worker w is in rack w % racks
  bool adds_up_unions = false;  ///< SwitchSimReport::unions, of one job without restarts
  uint32_t packet_bytes = 1232;
  uint32_t slots_short = 0;  ///< slots fewer than all jobs want: at switches and racks, not at the shard
  TimeNs lease_ns = 10 * kNsPerS;
  TimeNs timeout_max = 500 * kNsPerMs;  ///< of workers
  double loss = 0;
  double duplication = 0;
  double corruption = 0;
  /// Longer datagrams of switches are lost, the shard's are not; 0: none is.
  uint32_t switch_bytes_max = 0;
  bool in_order = false;  ///< all packets take as long
  double slow = 0;        ///< share of packets that take up to slow_max more: reordering
  TimeNs slow_max = 0;
  uint32_t restarts = 0;
  uint32_t rack_restarts = 0;
  uint32_t deaths = 0;
  uint32_t path_changes = 0;
  uint32_t stalls = 0;
  uint32_t moves = 0;       ///< of workers, each to another address
  double subset_kills = 0;  ///< chance at a result's first delivery that the others are lost and its sender restarts
  double leavers = 0;       ///< share of workers that go once they have finished
  TimeNs calm_from = 0;     ///< nothing goes wrong any more
};

/// This many jobs at the same aggregators are a crowd: a few percent of the seeds have one, of 8 to 16 small jobs.
constexpr uint32_t kCrowdJobsMin = 8;

SwitchScenario draw_switch_scenario(uint64_t seed);
/// The same with racks: mostly at the shard.
SwitchScenario draw_rack_scenario(uint64_t seed);
/// Of all jobs together.
uint32_t slots_wanted(const SwitchScenario& scenario);
std::string describe(const SwitchScenario& scenario);

struct SwitchSimReport {
  std::vector<std::string> faults;
  uint64_t packets = 0;
  uint64_t turns = 0;
  uint64_t epochs = 0;
  uint64_t restarts = 0;
  uint64_t subset_kills = 0;
  uint64_t deaths = 0;
  uint64_t joined = 0;
  uint64_t new_lives = 0;
  uint64_t fetches = 0;
  uint64_t resends = 0;
  uint64_t dead_in_results = 0;  ///< results that hold entries of a dead worker
  uint64_t entries_checked = 0;
  uint64_t crowds = 0;                                            ///< runs of kCrowdJobsMin jobs or more
  uint64_t jobs_of_lanes = 0;                                     ///< of two or more
  std::map<std::pair<uint8_t, uint8_t>, uint64_t> contributions;  ///< with entries, by index and value codec
  SwitchDecider::RackCounts racks;
  uint64_t bytes_to_decider = 0;  ///< that of the first job's last epoch
  uint64_t bytes_to_worker = 0;   ///< the first of the first job
  CodedUnion::Bytes unions;       ///< contributions to racks, summed up and coded
  uint32_t sends_most = 0;        ///< of one turn, while all was quiet (SwitchRounds)
  TimeNs took = 0;
  SwitchSimReport& operator+=(const SwitchSimReport& other);
};

/// At that address.
using MakeDecider = std::function<std::unique_ptr<SwitchDecider>(const SwitchScenario& scenario, uint32_t node,
                                                                 uint64_t incarnation_seed, TimeNs now)>;
/// The production slot machine, as the switch and as the shard.
MakeDecider production_decider();
/// Draws one or the other for each incarnation.
MakeDecider mixed_decider();
MakeDecider reference_decider(SwitchMutation mutation = SwitchMutation::kNone);

/// The switch of a rack: production too.
std::unique_ptr<SwitchDecider> make_rack(const SwitchScenario& scenario, uint32_t rack, uint64_t incarnation_seed,
                                         TimeNs now);
/// The rack of a worker; scenario.racks or more: none.
uint32_t rack_of(const SwitchScenario& scenario, uint32_t worker);
/// Workers of a job (joiners too) that are in that rack.
uint64_t rack_workers(const SwitchScenario& scenario, const SwitchSimJob& job, uint32_t rack);

SwitchSimReport run_switch_sim(const SwitchScenario& scenario, const MakeDecider& make);

}  // namespace millrace::testing
