#include "worker/doctor/pair_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "worker/doctor/cluster_checks.h"
#include "worker/program/table.h"

namespace millrace::doctor {
namespace {

constexpr size_t kMatrixShardsMax = 16;
constexpr double kBitsPerMegabit = 1e6;

double pair_ms(TimeNs time) { return static_cast<double>(time) / static_cast<double>(kNsPerMs); }

std::string pair_text(const PairFacts& pair) { return fmt::format("shard {} to shard {}", pair.sender, pair.receiver); }

/// Returns why the path's bandwidth is not known; empty: it is, or the transfer was late.
std::string pair_trouble(const PairFacts& pair) { return pair.trouble.empty() ? pair.transfer.trouble : pair.trouble; }

bool has_rate(const PairFacts& pair) { return pair_trouble(pair).empty() && pair.transfer.late == 0; }

/// A judged path. Of two with one verdict the slower one is worse.
struct Judged {
  Check check;
  double slowness = 0;
};

void add_worst(const std::vector<Judged>& judged, std::vector<Check>& checks) {
  if (judged.empty()) return;
  const auto worst = std::ranges::max_element(
      judged, {}, [](const Judged& one) { return std::pair(one.check.verdict, one.slowness); });
  checks.push_back(worst->check);
  checks.back().found += fmt::format(", the slowest of {} paths between shards", judged.size());
}

std::string pair_cell(const PairFacts& pair) {
  if (!pair.connect_trouble.empty()) return "refused";
  const std::string round_trip = pair.round_trip ? fmt::format("{:.2f}", pair_ms(*pair.round_trip)) : "?";
  if (has_rate(pair)) return fmt::format("{} / {:.0f}", round_trip, pair.transfer.bits_per_second() / kBitsPerMegabit);
  return round_trip + (pair_trouble(pair).empty() ? " / late" : " / ?");
}

}  // namespace

std::vector<Check> judge_pairs(const PairsFacts& facts) {
  std::vector<Check> checks;
  std::vector<Judged> latencies;
  std::vector<Judged> rates;
  uint64_t unmeasured = facts.left_out;
  std::optional<std::string> first;
  for (const PairFacts& pair : facts.pairs) {
    if (!pair.connect_trouble.empty()) {
      checks.push_back(
          problem("path", pair_text(pair), pair.connect_trouble,
                  fmt::format("open the port of shard {} for the host of shard {}, in the firewalls of both: shards "
                              "exchange thresholds and recover by it",
                              pair.sender, pair.receiver)));
    }
    if (pair.round_trip)
      latencies.push_back({judge_latency(pair_text(pair), pair.round_trip), pair_ms(*pair.round_trip)});
    if (const std::string trouble = pair_trouble(pair); !trouble.empty()) {
      ++unmeasured;
      if (!first) first = fmt::format("{}: {}", pair_text(pair), trouble);
    } else {
      const double slowness =
          pair.transfer.late > 0 ? std::numeric_limits<double>::infinity() : 1 / pair.transfer.bits_per_second();
      rates.push_back({judge_transfer(pair_text(pair), pair.transfer, pair.round_trip), slowness});
    }
  }
  add_worst(latencies, checks);
  add_worst(rates, checks);
  if (unmeasured == 0) return checks;
  checks.push_back(
      {"bandwidth", "between shards", Verdict::kNotChecked,
       fmt::format("{} of {} paths: {}", unmeasured, facts.pairs.size() + facts.left_out,
                   first.value_or("no time was left")),
       "give each shard this version and an --http that the other shards reach; iperf3 between the hosts"});
  return checks;
}

std::string pairs_text(const std::vector<PairFacts>& pairs) {
  if (pairs.empty()) return "";
  std::set<uint32_t> shards;
  std::map<std::pair<uint32_t, uint32_t>, std::string> cells;
  for (const PairFacts& pair : pairs) {
    shards.insert({pair.receiver, pair.sender});
    cells[{pair.receiver, pair.sender}] = pair_cell(pair);
  }
  if (shards.size() > kMatrixShardsMax) return fmt::format("--json has the paths between {} shards\n", shards.size());
  std::vector<std::vector<std::string>> rows = {{"to shard"}};
  for (const uint32_t sender : shards) rows[0].push_back(fmt::format("from {}", sender));
  for (const uint32_t receiver : shards) {
    rows.push_back({fmt::format("{}", receiver)});
    for (const uint32_t sender : shards) {
      const auto cell = cells.find({receiver, sender});
      rows.back().push_back(cell != cells.end() ? cell->second : receiver == sender ? "-" : "?");
    }
  }
  return "round trip in ms / Mbit/s or more\n" + program::aligned_table(rows);
}

nlohmann::json pairs_json(const std::vector<PairFacts>& pairs) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PairFacts& pair : pairs) {
    nlohmann::json row = {{"receiver", pair.receiver}, {"sender", pair.sender}};
    if (pair.round_trip) row["round_trip_ms"] = pair_ms(*pair.round_trip);
    if (has_rate(pair)) row["mbit_per_s"] = pair.transfer.bits_per_second() / kBitsPerMegabit;
    if (!pair.connect_trouble.empty()) {
      row["problem"] = pair.connect_trouble;
    } else if (pair.transfer.late > 0 && pair_trouble(pair).empty()) {
      row["problem"] = judge_transfer(pair_text(pair), pair.transfer, pair.round_trip).found;
    } else if (!pair_trouble(pair).empty()) {
      row["problem"] = pair_trouble(pair);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace millrace::doctor
