#include "worker/bench/rounds/serve_compare.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace millrace::bench {

using nlohmann::json;

void compare_racks(json& rows) {
  const auto straight = std::ranges::find_if(rows, [](const json& row) { return row["algorithm"] == kStraightRow; });
  if (straight == rows.end()) return;
  for (json& row : rows) {
    if (!row.contains("racks") || row["links"] != kPlainLinks) continue;
    row["ratio_to_straight_bytes"] =
        row["bytes_into_shard"].get<double>() / (*straight)["bytes_into_shard"].get<double>();
  }
}

void compare_paths(json& rows) {
  const auto is_by = [](const char* path) { return [path](const json& row) { return row["path"] == path; }; };
  const auto server = std::ranges::find_if(rows, is_by("server"));
  const auto by_switch = std::ranges::find_if(rows, is_by("switch"));
  if (server == rows.end() || by_switch == rows.end()) return;
  (*by_switch)["ratio_to_server"] = (*by_switch)["round_ms"].get<double>() / (*server)["round_ms"].get<double>();
}

void compare_losses(json& rows) {
  const auto find = [&](const json& lossy, const char* links) {
    return std::ranges::find_if(rows, [&](const json& row) {
      return row["row"] == lossy["row"] && row["audit"] == lossy["audit"] && row["keys"] == lossy["keys"] &&
             row["links"] == links;
    });
  };
  for (json& row : rows) {
    const bool in_bursts = row["links"] == kBurstLossLinks;
    if (row["links"] != kLossyLinks && !in_bursts) continue;
    const auto plain = find(row, kPlainLinks);
    const auto same = in_bursts ? plain : find(row, kSingleLinks);
    if (plain != rows.end() && !in_bursts)
      row["ratio_to_plain_links"] = row["round_ms"].get<double>() / (*plain)["round_ms"].get<double>();
    if (same != rows.end())
      row["ratio_to_same_links"] = row["round_ms"].get<double>() / (*same)["round_ms"].get<double>();
  }
}

void compare_variants(json& rows) {
  constexpr std::array<std::pair<const char*, const char*>, 2> kRatios = {
      {{"audit", "audit_ratio"}, {"keys", "ratio_to_without_keys"}}};
  for (json& row : rows) {
    for (const auto& [variant, ratio] : kRatios) {
      if (!row[variant].get<bool>()) continue;
      const auto without = std::ranges::find_if(rows, [&](const json& other) {
        return std::ranges::all_of(std::array{"row", "links", "audit", "keys"}, [&](const std::string& field) {
          return field == variant ? !other[field].get<bool>() : other[field] == row[field];
        });
      });
      if (without != rows.end()) row[ratio] = row["round_ms"].get<double>() / (*without)["round_ms"].get<double>();
    }
  }
}

}  // namespace millrace::bench
