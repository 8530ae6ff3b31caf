#include "tests/worker/switch_path/switch_law.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "tests/worker/toys/toy_cluster.h"

namespace millrace::testing {
namespace {

constexpr float kSwitchLawGrid = 1.0f / 8;

/// Returns values within a factor of two, and of one sign. In any sum, one worker's next value does not saturate on its
/// window's grid. A dead worker's value is thus counted whole or not at all.
std::map<uint32_t, float> some_entries(uint64_t dimension, RandomSequence& random) {
  std::map<uint32_t, float> entries;
  for (int i = 0; i < 30; ++i) {
    entries[static_cast<uint32_t>(random.next_below(dimension))] =
        kSwitchLawGrid * static_cast<float>(32 + random.next_below(33));
  }
  return entries;
}

using SwitchLawEntries = Offers::Entries;

/// A process's knowledge of its applied entries; `open`: its entries in flight at the end.
struct SwitchLawBooks {
  std::vector<double> applied;
  SwitchLawEntries open;
};

SwitchLawBooks books_of(const WatchedCore& core, uint32_t bucket) {
  SwitchLawBooks books{core.handed_over(bucket), {}};
  for (const worker::OutstandingView& out : core.outstanding(bucket)) {
    for (size_t i = 0; i < out.sent.values.size(); ++i) {
      const auto index = static_cast<uint32_t>(out.begin + out.sent.indices[i]);
      books.open[index] += static_cast<double>(out.sent.values[i]);
    }
  }
  return books;
}

/// Returns whether a window's difference consists of entries that dead workers had in flight in it. Of each dead
/// worker, it has all entries or none. Or a dead worker alone took them for applied.
bool is_of_dead(const std::vector<double>& difference, uint32_t begin, uint32_t end,
                const std::vector<SwitchLawEntries>& dead) {
  std::vector<const SwitchLawEntries*> had;
  for (const SwitchLawEntries& one : dead) {
    const auto first = one.lower_bound(begin);
    if (first != one.end() && first->first < end) had.push_back(&one);
  }
  for (uint32_t chosen = 0; chosen < (1U << had.size()); ++chosen) {
    bool fits = true;
    for (uint32_t i = begin; i < end && fits; ++i) {
      double sum = 0;
      for (size_t at = 0; at < had.size(); ++at) {
        const auto open = had[at]->find(i);
        if ((chosen >> at & 1) != 0 && open != had[at]->end()) sum += open->second;
      }
      fits = sum == difference[i];
    }
    if (fits) return true;
  }
  return false;
}

std::string text_of(const std::vector<double>& difference, uint32_t begin, uint32_t end,
                    const std::vector<SwitchLawEntries>& dead) {
  std::string text;
  for (uint32_t i = begin; i < std::min(begin + kLawWindow, end); ++i) {
    const bool any = std::ranges::any_of(dead, [i](const SwitchLawEntries& one) { return one.contains(i); });
    if (difference[i] == 0 && !any) continue;
    text += "\n  " + std::to_string(i) + ": " + std::to_string(difference[i]) + " of";
    for (const SwitchLawEntries& one : dead) text += one.contains(i) ? " " + std::to_string(one.at(i)) : " -";
  }
  return text;
}

}  // namespace

SwitchCluster::Options options_for(uint32_t workers, const std::vector<uint64_t>& dimensions, uint64_t seed) {
  SwitchCluster::Options options;
  options.spec = toy_spec(workers, dimensions);
  options.spec.fuse_below = 0;
  options.spec.audit = true;
  options.seed = seed;
  options.window_indices = kLawWindow;
  return options;
}

bool may_push(SwitchCluster& cluster, uint32_t worker) {
  const WatchedCore& core = cluster.core(worker);
  if (!cluster.is_alive(worker) || core.phase() != worker::Phase::kRunning) return false;
  for (uint32_t tensor = 0; tensor < core.spec().tensors.size(); ++tensor) {
    if (core.steps_pushed(tensor) >= core.steps_allowed(tensor)) return false;
  }
  return true;
}

void push_step(SwitchCluster& cluster, uint32_t worker, RandomSequence& random) {
  for (uint32_t tensor = 0; tensor < cluster.core(worker).spec().tensors.size(); ++tensor)
    cluster.push(worker, tensor, some_entries(cluster.core(worker).spec().tensors[tensor].dimension, random));
}

bool all_synced(SwitchCluster& cluster) {
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    if (!cluster.is_synced(worker) || cluster.core(worker).phase() != worker::Phase::kRunning) return false;
  }
  return true;
}

void run_steps(SwitchCluster& cluster, uint64_t until, RandomSequence& random) {
  cluster.run_until([&] {
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
      if (may_push(cluster, worker) && cluster.core(worker).steps_applied(0) < until)
        push_step(cluster, worker, random);
    }
    return cluster.all_applied(until);
  });
}

void Offers::note(const WatchedCore& core) {
  std::array<std::vector<SwitchLawEntries>, 3>& mine = offers_[&core];
  std::ranges::rotate(mine, mine.begin() + 2);
  mine[0].clear();
  for (uint32_t bucket = 0; bucket < core.layout().buckets.size(); ++bucket) {
    SwitchLawEntries& entries = mine[0].emplace_back();
    for (const worker::OutstandingView& out : core.outstanding(bucket)) {
      for (size_t i = 0; i < out.sent.values.size(); ++i)
        entries[static_cast<uint32_t>(out.begin + out.sent.indices[i])] = static_cast<double>(out.sent.values[i]);
    }
  }
}

std::vector<Offers::Entries> Offers::last_done(const WatchedCore& core, uint32_t bucket) const {
  const auto mine = offers_.find(&core);
  if (mine == offers_.end()) return {};
  const size_t first = core.outstanding(0).empty() ? 0 : 1;
  std::vector<SwitchLawEntries> done;
  for (size_t at = first; at < first + 2; ++at) {
    if (!mine->second[at].empty()) done.push_back(mine->second[at][bucket]);
  }
  return done;
}

void expect_the_law(SwitchCluster& cluster, const Offers& offers) {
  for (uint32_t bucket = 0; bucket < cluster.core(0).layout().buckets.size(); ++bucket) {
    const std::vector<float>& weights = cluster.weights(0)[bucket];
    std::vector<double> difference(weights.begin(), weights.end());
    std::vector<SwitchLawEntries> dead;
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
      const SwitchLawBooks books = books_of(cluster.core(worker), bucket);
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= books.applied[i];
    }
    // More removals ago than the job remembers: the entries in flight are counted as lost, whether they were counted or
    // not.
    const auto note_unknown = [&](const WatchedCore& core) {
      SwitchLawEntries unknown;
      const std::vector<double> ledger = core.ledger(bucket);
      for (uint32_t i = 0; i < ledger.size(); ++i) {
        if (ledger[i] != 0) unknown.emplace(i, ledger[i]);
      }
      if (!unknown.empty()) dead.push_back(std::move(unknown));
    };
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) note_unknown(cluster.core(worker));
    for (const auto& core : cluster.gone()) {
      note_unknown(*core);
      const SwitchLawBooks books = books_of(*core, bucket);
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= books.applied[i];
      dead.push_back(books.open);
      for (SwitchLawEntries& revoked : offers.last_done(*core, bucket)) {
        for (auto& [index, value] : revoked) value = -value;
        dead.push_back(std::move(revoked));
      }
    }
    const auto dimension = static_cast<uint32_t>(difference.size());
    for (uint32_t begin = 0; begin < dimension; begin += kLawWindow) {
      EXPECT_TRUE(is_of_dead(difference, begin, std::min(begin + kLawWindow, dimension), dead))
          << "bucket " << bucket << ", window at " << begin << text_of(difference, begin, dimension, dead);
    }
  }
}

void expect_alike(SwitchCluster& cluster) {
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    EXPECT_EQ(cluster.weights(worker), cluster.weights(0)) << "worker " << worker;
    worker::Actions actions;
    EXPECT_EQ(cluster.core(worker).audit(actions).imbalance, 0) << "worker " << worker;
  }
}

double lost_by(const WatchedCore& core) {
  double lost = 0;
  for (uint32_t bucket = 0; bucket < core.layout().buckets.size(); ++bucket) {
    for (const double value : core.ledger(bucket)) lost += std::abs(value);
  }
  return lost;
}

}  // namespace millrace::testing
