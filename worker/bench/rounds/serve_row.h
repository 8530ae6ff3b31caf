#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/bench/rounds/serve.h"
#include "worker/bench/rounds/serve_compare.h"

namespace millrace::bench {

/// Describes one row of `millrace-bench serve`.
struct RowSetup {
  std::string name;
  std::string codec;
  double error_max = 0;  // where the codec may change values
  uint32_t parts_per_shard = 0;
  bool audit = false;
  std::string keys = {};  ///< folder of the keys of shards and workers; empty: they have none
  bool by_switch = false;
  bool at_shard = false;  ///< shard 0 decides, by datagrams
  bool racks = false;     ///< racks' switches add up in front of it
  bool cut = false;       ///< and re-select
  std::string links = kPlainLinks;

  std::string title() const {
    return name + (links == kPlainLinks ? std::string() : "+" + links) + (audit ? "+audit" : "") +
           (keys.empty() ? "" : "+keys");
  }
};

/// Returns the row without the audit, with it, or both. If `keys` is not empty, each also with the keys of this folder.
inline std::vector<RowSetup> variants_of(RowSetup row, ServeAudit audit, const std::string& keys) {
  std::vector<RowSetup> variants;
  for (const bool audited : {false, true}) {
    if (audit == (audited ? ServeAudit::kOff : ServeAudit::kOn)) continue;
    row.audit = audited;
    row.keys.clear();
    variants.push_back(row);
    row.keys = keys;
    if (!keys.empty()) variants.push_back(row);
  }
  return variants;
}

}  // namespace millrace::bench
