#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "kernels/base/check.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {

/// Computes the sum of each slot's open turn, the slow way, from the units that an aggregator's counters report as
/// taken. Checks that no unit is taken twice, and no unit of a worker whose group was taken.
class SumsReckoned {
 public:
  using Sums = std::map<uint16_t, int64_t>;

  void unit(uint16_t slot, uint64_t turn, uint16_t worker, uint8_t fragment, const Entries& entries) {
    Turn& open = begin(slot, turn);
    MILLRACE_CHECK((open.grouped >> worker & 1) == 0, slot, turn, worker);
    MILLRACE_CHECK(open.units.emplace(worker, fragment).second, slot, turn, worker, fragment);
    open.begun |= uint64_t{1} << worker;
    for (const auto& [index, value] : entries) open.sums[index] += value;
  }
  void group(uint16_t slot, uint64_t turn, uint64_t workers, const Sums& sums) {
    Turn& open = begin(slot, turn);
    MILLRACE_CHECK(((open.grouped | open.begun) & workers) == 0, slot, turn, workers);
    open.grouped |= workers;
    for (const auto& [index, value] : sums) open.sums[index] += value;
  }
  /// All open sums are thrown away.
  void forget() { turns_.clear(); }

  /// Checks an aggregator's statement about that turn: its values equal the sum, but whole indices may be missing.
  /// Returns the number of missing indices.
  size_t check(uint16_t slot, uint64_t turn, uint64_t contributors, const Entries& said) const {
    static const Turn kNothing;
    const auto found = turns_.find(slot);
    const Turn& open = found == turns_.end() ? kNothing : found->second;
    MILLRACE_CHECK(open.turn == turn, slot, turn, open.turn);
    MILLRACE_CHECK((open.begun | open.grouped) == contributors, slot, turn, open.begun, open.grouped, contributors);
    for (const auto& [index, value] : said) {
      const auto sum = open.sums.find(index);
      MILLRACE_CHECK(sum != open.sums.end() && sum->second == value, slot, turn, index, value);
    }
    return open.sums.size() - said.size();
  }

 private:
  struct Turn {
    uint64_t turn = 0;
    uint64_t begun = 0;
    uint64_t grouped = 0;
    std::set<std::pair<uint16_t, uint8_t>> units;
    Sums sums;
  };
  Turn& begin(uint16_t slot, uint64_t turn) {
    Turn& open = turns_[slot];
    MILLRACE_CHECK(turn >= open.turn, slot, turn, open.turn);
    if (turn > open.turn) open = {.turn = turn, .begun = 0, .grouped = 0, .units = {}, .sums = {}};
    return open;
  }

  std::map<uint16_t, Turn> turns_;
};

}  // namespace millrace::testing
