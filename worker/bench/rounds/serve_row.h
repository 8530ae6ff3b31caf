#pragma once

#include <cstdint>
#include <string>

#include "worker/bench/rounds/serve_compare.h"

namespace millrace::bench {

/// Describes one row of `millrace-bench serve`.
struct RowSetup {
  std::string name;
  std::string codec;
  double error_max = 0;  // where the codec may change values
  uint32_t parts_per_shard = 0;
  bool audit = false;
  bool by_switch = false;
  bool at_shard = false;  ///< shard 0 decides, by datagrams
  bool racks = false;     ///< racks' switches add up in front of it
  bool cut = false;       ///< and re-select
  std::string links = kPlainLinks;

  std::string title() const {
    return name + (links == kPlainLinks ? std::string() : "+" + links) + (audit ? "+audit" : "");
  }
};

}  // namespace millrace::bench
