#include "tests/sim/switch/switch_oracle.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "worker/switch/turn.h"

namespace millrace::testing {
namespace {

using Turn = std::pair<uint16_t, uint64_t>;
using Told = SwitchRecord::Told;

std::string switch_oracle_name_of(const Turn& turn) {
  return "slot " + std::to_string(turn.first) + " turn " + std::to_string(turn.second);
}

bool same(const Told& a, const Told& b) {
  return a.step == b.step && a.window == b.window && a.exponent == b.exponent && a.contributors == b.contributors &&
         a.decided_epoch == b.decided_epoch && a.indices == b.indices && a.sums == b.sums &&
         std::ranges::equal(a.racks, b.racks, [](const worker::RackSelection& one, const worker::RackSelection& other) {
           return one.workers == other.workers && one.kept == other.kept;
         });
}

double offered_at(const SwitchRecord& record, uint32_t step, uint32_t index) {
  const auto found = record.offered.find(step);
  if (found == record.offered.end()) return 0;
  const auto value = found->second.find(index);
  return value == found->second.end() ? 0 : static_cast<double>(value->second);
}

double returned_at(const Told& told, uint32_t index) {
  const auto found = told.returned.find(index);
  return found == told.returned.end() ? 0 : static_cast<double>(found->second);
}

int32_t integer_at(const std::map<uint32_t, int32_t>& integers, uint32_t index) {
  const auto found = integers.find(index);
  return found == integers.end() ? 0 : found->second;
}

/// One turn of which the survivors agree.
class TurnCheck {
 public:
  TurnCheck(const std::vector<const SwitchRecord*>& records, const SwitchLawTerms& terms, const Turn& turn,
            const Told& told, SwitchLawResult& out)
      : records_(records), terms_(terms), turn_(turn), told_(told), out_(out) {}

  void run() {
    std::map<uint32_t, int32_t> sums;
    for (size_t i = 0; i < told_.indices.size(); ++i) sums[told_.indices[i]] = told_.sums[i];
    std::set<uint32_t> indices(told_.indices.begin(), told_.indices.end());
    for (const SwitchRecord* record : records_) {
      const auto step = record->offered.find(told_.step);
      if (step == record->offered.end()) continue;
      const uint32_t begin = told_.window * terms_.window_indices;
      for (auto at = step->second.lower_bound(begin); at != step->second.end(); ++at) {
        if (at->first - begin >= terms_.window_indices) break;
        indices.insert(at->first);
      }
    }
    for (const SwitchRecord* record : records_) {
      if (!record->survived) sent_[record->worker] = sent_by(*record);
    }
    for (const uint32_t index : indices) {
      const auto sum = sums.find(index);
      check_index(index, sum != sums.end(), sum != sums.end() ? sum->second : 0);
    }
  }

 private:
  /// Returns the contribution of a dead worker to this turn, computed again from its offers. Of a window that does not
  /// fit into its packets the last entries stayed behind.
  std::map<uint32_t, int32_t> sent_by(const SwitchRecord& record) const {
    std::map<uint32_t, int32_t> out;
    const auto step = record.offered.find(told_.step);
    if (step == record.offered.end()) return out;
    const uint32_t begin = told_.window * terms_.window_indices;
    std::vector<uint16_t> indices;
    std::vector<float> values;
    for (auto at = step->second.lower_bound(begin); at != step->second.end(); ++at) {
      if (at->first - begin >= terms_.window_indices) break;
      indices.push_back(static_cast<uint16_t>(at->first - begin));
      values.push_back(at->second);
    }
    worker::ContributionTerms terms{.header = {}, .codecs = terms_.codecs, .window_indices = terms_.window_indices};
    terms.payload_bytes_max = terms_.payload_bytes_max;
    terms.limit = terms_.limit;
    terms.header.exponent = static_cast<int8_t>(told_.exponent);
    std::vector<int32_t> sent(indices.size());
    worker::Contribution contribution;
    worker::make_contribution({indices, values}, terms, sent, contribution);
    for (size_t i = 0; i < indices.size(); ++i) out[begin + indices[i]] = sent[i];
    return out;
  }

  void check_index(uint32_t index, bool in_update, int32_t sum) {
    int64_t applied_sum = 0;
    ++out_.entries;
    for (const SwitchRecord* record : records_) {
      const bool contributed = (told_.contributors >> record->worker & 1) != 0;
      const auto mine = record->told.find(turn_);
      int32_t applied = 0;
      if (record->survived && mine != record->told.end()) {
        applied = integer_at(mine->second.taken, index);
        check_returned(*record, mine->second, index, applied);
      } else if (contributed && in_update && told_.kept(record->worker, index)) {
        applied = integer_at(sent_.at(record->worker), index);
      }
      if (applied != 0 && (!contributed || !in_update)) {
        fault(index,
              "worker " + std::to_string(record->worker) + " counts an entry as applied that the update does not have");
      }
      applied_sum += applied;
    }
    if (applied_sum != sum) {
      fault(index, "applied " + std::to_string(applied_sum) + ", the update has " + std::to_string(sum));
    }
  }

  /// Checks that an offered value equals the applied value plus the returned value.
  void check_returned(const SwitchRecord& record, const Told& mine, uint32_t index, int32_t applied) {
    const double value = offered_at(record, told_.step, index);
    const double back = returned_at(mine, index);
    const double missing = value - back - std::ldexp(static_cast<double>(applied), told_.exponent);
    const double rounding = is_lossy() ? std::ldexp(std::fabs(back), -24) : 0;
    if (std::fabs(missing) <= rounding) return;
    fault(index, "worker " + std::to_string(record.worker) + " offered " + std::to_string(value) + ", of which " +
                     std::to_string(missing) + " is neither applied nor back");
  }

  bool is_lossy() const {
    return terms_.codecs.value == protocol::WindowValueCodec::kQsgd8 ||
           terms_.codecs.value == protocol::WindowValueCodec::kQsgd4;
  }

  void fault(uint32_t index, const std::string& what) {
    if (out_.faults.size() < 10) {
      out_.faults.push_back("law: " + switch_oracle_name_of(turn_) + " step " + std::to_string(told_.step) + " index " +
                            std::to_string(index) + ": " + what);
    }
  }

  const std::vector<const SwitchRecord*>& records_;
  const SwitchLawTerms& terms_;
  Turn turn_;
  const Told& told_;
  SwitchLawResult& out_;
  std::map<uint16_t, std::map<uint32_t, int32_t>> sent_;  ///< by dead worker, of this turn
};

/// Every window in which a survivor had something had its turn, once.
void check_offers_settled(const SwitchRecord& record, const SwitchLawTerms& terms, SwitchLawResult& out) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> settled;
  for (const auto& [turn, told] : record.told) ++settled[{told.step, told.window}];
  for (const auto& [step, entries] : record.offered) {
    std::set<uint32_t> windows;
    for (const auto& [index, value] : entries) windows.insert(index / terms.window_indices);
    for (const uint32_t window : windows) {
      const auto found = settled.find({step, window});
      if (found != settled.end() && found->second == 1) continue;
      out.faults.push_back("worker " + std::to_string(record.worker) + " step " + std::to_string(step) + " window " +
                           std::to_string(window) + " settled " +
                           std::to_string(found == settled.end() ? 0 : found->second) + " times");
      return;
    }
  }
}

}  // namespace

bool SwitchRecord::Told::kept(uint16_t who, uint32_t index) const {
  const auto at = std::ranges::lower_bound(indices, index);
  if (at == indices.end() || *at != index) return true;
  return std::ranges::all_of(racks, [&](const worker::RackSelection& rack) {
    return (rack.workers >> who & 1) == 0 || rack.kept[static_cast<size_t>(at - indices.begin())] != 0;
  });
}

void SwitchRecord::note(const worker::CompletedWindow& settled) {
  Told& entry = told[{settled.slot, settled.turn}];
  entry.step = settled.step;
  entry.window = settled.window;
  entry.exponent = settled.exponent;
  entry.contributors = settled.contributors;
  entry.decided_epoch = settled.decided_epoch;
  for (const uint16_t index : settled.indices) entry.indices.push_back(settled.begin + index);
  entry.racks.assign(settled.racks.begin(), settled.racks.end());
  entry.sums.assign(settled.sums.begin(), settled.sums.end());
  settled.each_returned([&entry](uint32_t index, float value) { entry.returned[index] = value; });
  const Buffer<int32_t> taken = settled.taken();
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i] != 0) entry.taken[settled.offered[i]] = taken[i];
  }
}

SwitchLawResult check_switch_law(const std::vector<const SwitchRecord*>& records, const SwitchLawTerms& terms) {
  SwitchLawResult out;
  std::map<Turn, const Told*> agreed;
  for (const SwitchRecord* record : records) {
    if (!record->survived) continue;
    check_offers_settled(*record, terms, out);
    for (const auto& [turn, told] : record->told) {
      const auto [at, is_first] = agreed.emplace(turn, &told);
      if (is_first || same(*at->second, told)) continue;
      // The closing turn of a worker that has left may be decided again without it: it holds nothing.
      if (told.step >= terms.steps && told.indices.empty() && at->second->indices.empty()) continue;
      if (out.faults.size() < 10) out.faults.push_back("results differ: " + switch_oracle_name_of(turn));
    }
  }
  for (const auto& [turn, told] : agreed) {
    for (const SwitchRecord* record : records) {
      if (!record->survived && (told->contributors >> record->worker & 1) != 0) ++out.dead_in_results;
    }
    TurnCheck(records, terms, turn, *told, out).run();
  }
  return out;
}

}  // namespace millrace::testing
