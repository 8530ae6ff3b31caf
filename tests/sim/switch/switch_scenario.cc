#include <algorithm>
#include <iterator>
#include <string>

#include "kernels/base/random.h"
#include "tests/sim/switch/switch_sim.h"

namespace millrace::testing {
namespace {

class SwitchScenarioDraw {
 public:
  explicit SwitchScenarioDraw(uint64_t seed) : random_(random_key(seed, 0x5717)) {}
  uint32_t between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random_.next_below(uint64_t{high} - low + 1));
  }
  bool chance(double probability) { return random_.next_unit() < probability; }
  double unit() { return random_.next_unit(); }
  uint64_t word() { return random_.next_u64(); }

 private:
  RandomSequence random_;
};

SwitchSimJob draw_job(uint32_t number, SwitchScenarioDraw& draw) {
  SwitchSimJob job;
  job.job = 100 + (16 * number);  // as many numbers as a job can have lanes
  for (uint8_t& byte : job.key) byte = static_cast<uint8_t>(draw.word());
  job.workers = draw.between(1, draw.chance(0.2) ? 8 : 4);
  job.joiners = draw.chance(0.3) ? draw.between(1, 2) : 0;
  job.window_indices = 64 * (draw.chance(0.3) ? draw.between(4, 16) : draw.between(1, 3));
  job.windows = draw.between(1, job.window_indices > 200 ? 4 : 12);
  job.slots = std::min(job.windows, draw.between(1, 6));
  job.steps = draw.between(2, 12);
  job.density = draw.chance(0.2) ? 1.0 : draw.unit() * 0.5;
  job.exponent_initial = static_cast<int>(draw.between(0, 16)) - 12;
  job.reselect_k = draw.chance(0.4) ? draw.between(1, 1 + job.windows * job.window_indices / 4) : 0;
  job.think_max = draw.chance(0.5) ? draw.between(1, 20) * kNsPerMs : 0;
  return job;
}

/// Gives half of the jobs other codecs than the defaults. QSGD rounds to the nearest, as clients do. That needs no key,
/// so that a dead worker's contributions can be computed.
void draw_codecs(SwitchSimJob& job, SwitchScenarioDraw& draw) {
  using Index = protocol::WindowIndexCodec;
  using Value = protocol::WindowValueCodec;
  if (draw.chance(0.5)) return;
  constexpr Index kIndex[] = {Index::kRaw, Index::kGap, Index::kBitmap, Index::kBloom};
  constexpr Value kValue[] = {Value::kFixed16, Value::kFixed32, Value::kQsgd8, Value::kQsgd4};
  job.codecs.index = kIndex[draw.between(0, std::size(kIndex) - 1)];
  job.codecs.value = kValue[draw.between(0, std::size(kValue) - 1)];
}

/// As many slots in each lane, each with a window and a share of k at least.
void fit_lanes(SwitchSimJob& job) {
  job.lanes = std::min(job.lanes, job.windows);
  job.slots = std::clamp(job.slots, job.lanes, job.windows);
  job.slots -= job.slots % job.lanes;
  job.slots_spare -= job.slots_spare % job.lanes;
  for (uint64_t* k : {&job.reselect_k, &job.rack_reselect_k}) {
    if (*k != 0) *k = std::max<uint64_t>(*k, job.lanes);
  }
}

SwitchSimJob draw_small_job(uint32_t number, SwitchScenarioDraw& draw) {
  SwitchSimJob job = draw_job(number, draw);
  job.workers = draw.between(1, 3);
  job.joiners = draw.chance(0.2) ? 1 : 0;
  job.window_indices = 64;
  job.windows = draw.between(1, 4);
  job.slots = draw.between(1, std::min(job.windows, 2U));
  job.steps = draw.between(2, 4);
  job.reselect_k = draw.chance(0.4) ? draw.between(1, 1 + job.windows * job.window_indices / 4) : 0;
  draw_codecs(job, draw);
  return job;
}

/// In place of the jobs that were drawn: many at the same aggregators, and faults for more than a few of them.
void draw_crowd(SwitchScenario& out, SwitchScenarioDraw& draw) {
  out.jobs.clear();
  const uint32_t jobs = draw.between(kCrowdJobsMin, 16);
  for (uint32_t i = 0; i < jobs; ++i) out.jobs.push_back(draw_small_job(i, draw));
  out.deaths *= 3;
  out.path_changes *= 3;
  out.slots_short = std::min(out.slots_short, slots_wanted(out));
}

bool is_crowd(const SwitchScenario& scenario) { return scenario.jobs.size() >= kCrowdJobsMin; }

}  // namespace

SwitchScenario draw_switch_scenario(uint64_t seed) {
  SwitchScenarioDraw draw(seed);
  SwitchScenario out;
  out.seed = seed;
  const uint32_t jobs = draw.chance(0.3) ? draw.between(2, 3) : 1;
  for (uint32_t i = 0; i < jobs; ++i) out.jobs.push_back(draw_job(i, draw));
  out.switches = draw.between(1, 2);
  out.lease_ns = draw.chance(0.3) ? draw.between(30, 200) * kNsPerMs : 10 * kNsPerS;
  const bool rough = draw.chance(0.8);
  if (rough) {
    out.loss = draw.chance(0.5) ? 0.1 : draw.unit() * 0.3;
    out.duplication = draw.unit() * 0.2;
    out.corruption = draw.chance(0.5) ? draw.unit() * 0.05 : 0;
    out.slow = draw.unit() * 0.3;
    out.slow_max = draw.between(1, draw.chance(0.2) ? 200 : 20) * kNsPerMs;
  }
  out.restarts = draw.chance(0.6) ? draw.between(1, 5) : 0;
  out.deaths = draw.chance(0.5) ? draw.between(1, 4) : 0;
  out.path_changes = draw.chance(0.5) ? draw.between(1, 5) : 0;
  out.stalls = draw.chance(0.4) ? draw.between(1, 4) : 0;
  out.subset_kills = draw.chance(0.4) ? 0.02 + draw.unit() * 0.1 : 0;
  out.leavers = draw.chance(0.5) ? 0.5 : 0;
  out.calm_from = draw.between(50, 600) * kNsPerMs;
  // Drawn apart: a seed's other numbers keep the values that they had before these draws existed.
  SwitchScenarioDraw later(seed ^ 0xC0DEC);
  for (SwitchSimJob& job : out.jobs) draw_codecs(job, later);
  if (later.chance(0.05)) out.slots_short = later.between(1, slots_wanted(out));
  if (later.chance(0.03)) draw_crowd(out, later);
  SwitchScenarioDraw lanes(seed ^ 0x1A7E5);
  for (SwitchSimJob& job : out.jobs) {
    if (lanes.chance(0.3)) job.lanes = lanes.between(2, 4);
    fit_lanes(job);
  }
  SwitchScenarioDraw spare(seed ^ 0x59A4E);
  for (SwitchSimJob& job : out.jobs) {
    if (spare.chance(0.3)) job.slots_spare = job.lanes * spare.between(1, 4);
  }
  out.slots_short = std::min(out.slots_short, slots_wanted(out));
  SwitchScenarioDraw moves(seed ^ 0xADD2E55);
  out.moves = moves.chance(0.2) ? moves.between(1, 3) : 0;
  return out;
}

SwitchScenario draw_rack_scenario(uint64_t seed) {
  SwitchScenario out = draw_switch_scenario(seed);
  SwitchScenarioDraw draw(seed ^ 0x4AC4);
  out.racks = draw.between(1, 2);
  out.switches = 1;
  out.rack_restarts = draw.chance(0.5) ? draw.between(1, 4) : 0;
  if (!draw.chance(0.3)) out.path_changes = 0;
  // A lease is longer than what workers wait: a job whose resends are rarer than that is over.
  out.lease_ns = draw.chance(0.3) ? draw.between(150, 400) * kNsPerMs : 10 * kNsPerS;
  out.timeout_max = 40 * kNsPerMs;
  for (SwitchSimJob& job : out.jobs) {
    job.workers = draw.between(2, is_crowd(out) ? 4 : (draw.chance(0.2) ? 9 : 6));
    if (!is_crowd(out) && draw.chance(0.3)) {
      // Several fragments a unit, and now and then more than a group can have.
      job.window_indices = 64 * draw.between(16, draw.chance(0.1) ? 200 : 48);
      job.windows = draw.between(1, 2);
      job.slots = std::min(job.slots, job.windows);
      job.steps = std::min(job.steps, 5U);
      if (draw.chance(0.5)) job.density = 1;
    }
    const uint32_t entries = job.windows * job.window_indices;
    job.rack_reselect_k = draw.chance(0.5) ? draw.between(1, 1 + entries / 4) : 0;
    fit_lanes(job);
  }
  out.slots_short = std::min(out.slots_short, slots_wanted(out));
  return out;
}

uint32_t slots_wanted(const SwitchScenario& scenario) {
  uint32_t slots = 0;
  for (const SwitchSimJob& job : scenario.jobs) slots += job.slots + job.slots_spare;
  return slots;
}

std::string describe(const SwitchScenario& scenario) {
  std::string out = "seed " + std::to_string(scenario.seed) + ":";
  for (const SwitchSimJob& job : scenario.jobs) {
    out += " [workers " + std::to_string(job.workers) + "+" + std::to_string(job.joiners) + " slots " +
           std::to_string(job.slots) + " of " + std::to_string(job.slots + job.slots_spare) + " lanes " +
           std::to_string(job.lanes) + " windows " + std::to_string(job.windows) + "x" +
           std::to_string(job.window_indices) + " steps " + std::to_string(job.steps) + " codecs " +
           std::to_string(static_cast<int>(job.codecs.index)) + "+" +
           std::to_string(static_cast<int>(job.codecs.value)) + "]";
  }
  return out + " switches " + std::to_string(scenario.switches) + " slots short " +
         std::to_string(scenario.slots_short) + " loss " + std::to_string(scenario.loss) + " lease " +
         std::to_string(scenario.lease_ns / kNsPerMs) + " ms racks " + std::to_string(scenario.racks) +
         " rack restarts " + std::to_string(scenario.rack_restarts) + " restarts " + std::to_string(scenario.restarts) +
         " deaths " + std::to_string(scenario.deaths) + " paths " + std::to_string(scenario.path_changes) + " stalls " +
         std::to_string(scenario.stalls) + " moves " + std::to_string(scenario.moves) + " subset kills " +
         std::to_string(scenario.subset_kills) + " calm from " + std::to_string(scenario.calm_from / kNsPerMs) + " ms";
}

SwitchDecider::RackCounts& SwitchDecider::RackCounts::operator+=(const RackCounts& other) {
  groups_added += other.groups_added;
  group_overlaps += other.group_overlaps;
  groups_sent += other.groups_sent;
  groups_cut += other.groups_cut;
  groups_again += other.groups_again;
  groups_too_long += other.groups_too_long;
  forwarded += other.forwarded;
  flushed += other.flushed;
  no_slots += other.no_slots;
  return *this;
}

SwitchSimReport& SwitchSimReport::operator+=(const SwitchSimReport& other) {
  faults.insert(faults.end(), other.faults.begin(), other.faults.end());
  packets += other.packets;
  turns += other.turns;
  epochs += other.epochs;
  restarts += other.restarts;
  subset_kills += other.subset_kills;
  deaths += other.deaths;
  joined += other.joined;
  new_lives += other.new_lives;
  fetches += other.fetches;
  resends += other.resends;
  dead_in_results += other.dead_in_results;
  entries_checked += other.entries_checked;
  crowds += other.crowds;
  jobs_of_lanes += other.jobs_of_lanes;
  for (const auto& [codecs, count] : other.contributions) contributions[codecs] += count;
  racks += other.racks;
  bytes_to_decider += other.bytes_to_decider;
  bytes_to_worker += other.bytes_to_worker;
  sends_most = std::max(sends_most, other.sends_most);
  took += other.took;
  return *this;
}

}  // namespace millrace::testing
