#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/worker/switch_path/switch_law.h"

/// Members of a job of path switch come and go, by seeds, behind racks and without, and the law holds.
namespace millrace::testing {
namespace {

using Hears = SwitchCluster::Hears;
using Process = SwitchCluster::Process;

/// The racks in front of the decider in a storm.
enum class Racks : uint8_t {
  kNone,
  kWhole,  ///< they add up, and restart
  /// ... and cut their sums. No worker dies: any part of a dead one's window may have been counted, and no test could
  /// tell.
  kCutting,
};

/// One seed's run: losses, copies, removals, deaths, returns, other paths, restarts of the switch and of racks.
class Storm {
 public:
  explicit Storm(uint64_t seed, Racks racks = Racks::kNone)
      : random_(random_key(seed, 77)), racks_(racks), cluster_(options(seed, racks)) {}

  void run() {
    cluster_.join_all();
    for (uint64_t turn = 0; turn < 80 && !::testing::Test::HasFailure(); ++turn) {
      something_happens();
      for (uint32_t worker = 0; worker < cluster_.workers(); ++worker) {
        if (!may_push(cluster_, worker) || random_.next_below(3) == 0) continue;
        push_step(cluster_, worker, random_);
        offers_.note(cluster_.core(worker));
      }
      const uint64_t packets = random_.next_below(60);
      for (uint64_t i = 0; i < packets; ++i) cluster_.step();
    }
    calm_down();
  }
  uint64_t groups() const {
    uint64_t sent = 0;
    for (uint16_t rack = 0; rack < rack_count(); ++rack)
      sent += cluster_.counted_at(static_cast<uint16_t>(SwitchCluster::kRackPort + rack), Event::kGroupSent);
    return sent;
  }
  uint64_t cut() const {
    uint64_t entries = 0;
    for (uint16_t rack = 0; rack < rack_count(); ++rack)
      entries +=
          cluster_.counted_at(static_cast<uint16_t>(SwitchCluster::kRackPort + rack), Event::kEntriesNotSelected);
    return entries;
  }

 private:
  using Event = switch_agg::AggregatorEvent;

  static SwitchCluster::Options options(uint64_t seed, Racks racks) {
    RandomSequence random(random_key(seed, 78));
    std::vector<uint64_t> dimensions{300 + random.next_below(700)};
    if (random.next_below(2) == 0) dimensions.push_back(70 + random.next_below(200));
    if (seed % 7 == 6) dimensions.assign(1, 60 + dimensions[0] % 140);  // windows are as few as slots
    SwitchCluster::Options options = options_for(2 + static_cast<uint32_t>(random.next_below(3)), dimensions, seed);
    options.loss = 0.1;
    options.copies = 0.05;
    options.slots = 1 + static_cast<uint32_t>(random.next_below(4));
    // Some on several lanes: as many windows and slots at least.
    if (seed % 3 == 2 && dimensions[0] >= 128) options.lanes = 2, options.slots += options.slots % 2;
    if (racks == Racks::kNone) return options;
    // Of two workers both are in one rack; of more the last may be in none.
    options.racks = {0b0011};
    if (options.spec.workers > 2 && random.next_below(3) != 0) options.racks.push_back(0b1100);
    if (options.spec.workers == 3 && options.racks.size() == 2) options.racks[1] = 0b0100;
    if (racks == Racks::kCutting) options.rack_reselect_k = 8 + random.next_below(16);
    if (random.next_below(4) == 0) options.address = "shard:7600";
    return options;
  }

  uint16_t rack_count() const { return racks_ == Racks::kNone ? 0 : cluster_.racks(); }

  uint32_t synced() {
    uint32_t count = 0;
    for (uint32_t worker = 0; worker < cluster_.workers(); ++worker)
      count += cluster_.is_synced(worker) && cluster_.is_alive(worker);
    return count;
  }
  bool is_member(uint32_t worker) {
    return std::ranges::find(cluster_.membership().members, worker, &protocol::Member::worker) !=
           cluster_.membership().members.end();
  }

  void something_happens() {
    const auto worker = static_cast<uint32_t>(random_.next_below(cluster_.workers()));
    const bool spared = cluster_.is_synced(worker) && synced() < 2;
    switch (random_.next_below(24)) {
      case 0:  // dies
        if (spared || !is_member(worker) || racks_ == Racks::kCutting) return;
        cluster_.kill(worker);
        removed_[worker] = ++removals_;
        return cluster_.remove(worker, Hears::kLater);
      case 1:  // is taken for dead
        if (spared || !is_member(worker)) return;
        removed_[worker] = ++removals_;
        return cluster_.remove(worker, random_.next_below(2) == 0 ? Hears::kNow : Hears::kLater);
      case 2: return cluster_.set_path(random_.next_below(2) == 0 ? protocol::Path::kSwitch : protocol::Path::kServer);
      case 3:
        if (random_.next_below(3) != 0) return;
        return cluster_.start_aggregator(random_.next_below(2) == 0 ? SwitchCluster::kSwitchPort
                                                                    : SwitchCluster::kShardPort);
      case 4:
      case 5:
      case 6:
        if (is_member(worker)) return;
        return admit(worker);
      case 7:
        if (racks_ == Racks::kNone) return;
        return cluster_.start_aggregator(
            static_cast<uint16_t>(SwitchCluster::kRackPort + random_.next_below(rack_count())));
      default: return;
    }
  }

  void admit(uint32_t worker) {
    const bool may_be_new = racks_ != Racks::kCutting && random_.next_below(5) == 0;
    const bool new_process = !cluster_.is_alive(worker) || may_be_new;
    // No process would know the outcome of its entries in flight: no test here checks that.
    const bool forgotten = removals_ - removed_[worker] >= worker::kSwitchRemovalsMax;
    if (forgotten && !new_process) forgotten_ = true;
    cluster_.admit(worker, new_process ? Process::kNew : Process::kSame);
  }

  void calm_down() {
    for (uint32_t worker = 0; worker < cluster_.workers(); ++worker) {
      if (!is_member(worker)) admit(worker);
    }
    cluster_.run_until([&] { return all_synced(cluster_); });
    if (::testing::Test::HasFailure()) return;
    uint64_t most = 0;
    for (uint32_t worker = 0; worker < cluster_.workers(); ++worker)
      most = std::max(most, cluster_.core(worker).steps_applied(0));
    // A joiner takes part within the next steps: all get on together.
    run_steps(cluster_, most + 3, random_);
    if (::testing::Test::HasFailure()) return;
    expect_alike(cluster_);
    if (!forgotten_) expect_the_law(cluster_, offers_);
  }

  RandomSequence random_;
  Racks racks_;
  Offers offers_;
  std::map<uint32_t, uint64_t> removed_;  ///< by worker: its last removal's number
  uint64_t removals_ = 0;
  bool forgotten_ = false;
  SwitchCluster cluster_;
};

// The workers with a removal's result T are removed before the others have it: T is computed again without them. This
// seed breaks the law where the removal keeps its T.
TEST(SwitchStorm, AnEvictionsLastTurnSinksIfItsResultHolderIsEvictedToo) { Storm(335).run(); }

/// MILLRACE_SEEDS=FROM:TO runs others than 1 to `to`.
void for_seeds(uint64_t to, const std::function<void(uint64_t)>& run) {
  uint64_t from = 1;
  if (const char* given = std::getenv("MILLRACE_SEEDS")) {
    char* rest = nullptr;
    from = std::strtoull(given, &rest, 10);
    to = *rest == ':' ? std::strtoull(rest + 1, nullptr, 10) : from;
  }
  for (uint64_t seed = from; seed <= to && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(seed);
  }
}

TEST(SwitchStorm, TheLawHoldsUnderRandomFailures) {
  for_seeds(150, [](uint64_t seed) { Storm(seed).run(); });
}

TEST(SwitchStorm, TheLawHoldsBehindRacksThatAddUp) {
  uint64_t groups = 0;
  for_seeds(100, [&](uint64_t seed) {
    Storm storm(seed, Racks::kWhole);
    storm.run();
    groups += storm.groups();
  });
  EXPECT_GT(groups, 0u);
}

TEST(SwitchStorm, TheLawHoldsBehindRacksThatCut) {
  uint64_t cut = 0;
  for_seeds(100, [&](uint64_t seed) {
    Storm storm(seed, Racks::kCutting);
    storm.run();
    cut += storm.cut();
  });
  EXPECT_GT(cut, 0u);
}

}  // namespace
}  // namespace millrace::testing
