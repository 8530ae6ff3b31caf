#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <vector>

#include "tests/models/rounds/rules.h"
#include "tests/models/rounds/state.h"

namespace millrace::model {

enum class Verdict : uint8_t { kClean, kViolation, kStuck, kUnfinished };

/// Configures a run: the mode, how often each fault may happen, and how far to go.
struct Config {
  RuleSet rules;
  int quorum = 1;
  int staleness = 0;
  bool reselect = false;  ///< an update may carry nothing
  bool everyone = false;  ///< a step waits for every member that takes part in it
  bool asynchronous = false;
  bool merged = false;  ///< asynchronous: a worker may take several updates as one, which it cannot give to a successor
  bool store = false;
  bool store_alone = false;  ///< a store, and a member's weights are not taken for the shard's
  int acks = 0;              ///< an update is applied once this many members have acknowledged it; 0, 1: at once
  bool one_process = false;  ///< one process holds the shards of all parts: they die together
  bool forget = true;        ///< acknowledgements, and the dropping of updates that they permit
  bool keep_open = false;    ///< a shard that reads the table keeps contributions of unchanged incarnations
  /// Whether logs are compared as the protocol does it. The protocol compares length and last deciding epoch, not
  /// content.
  bool positions = false;
  Spent at_most{};

  uint64_t states_max = 20'000'000;
  bool progress = false;
  bool trace = true;
  uint64_t walks = 0;  ///< random walks instead of the search
  uint64_t walk_steps = 250;
  uint64_t seed = 1;
  Verdict expected = Verdict::kClean;
};

/// Whether updates are held until several members have them.
inline bool applies_after_acks(const Config& config) { return config.acks > 1; }

/// The command line's options as a configuration; the error is a sentence.
std::expected<Config, std::string> read_options(const std::vector<std::string>& arguments);

/// The configuration as one line.
std::string summary_of(const Config& config);

/// What --help prints.
std::string help();

}  // namespace millrace::model
