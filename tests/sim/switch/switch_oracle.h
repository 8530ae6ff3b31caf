#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker/switch/switch_client.h"

namespace millrace::testing {

/// Holds the offers of one worker of a run and the results that it received. The end of the run checks them against
/// those of the others.
struct SwitchRecord {
  struct Told {
    uint32_t step = 0;
    uint32_t window = 0;
    int exponent = 0;
    uint64_t contributors = 0;
    uint32_t decided_epoch = 0;
    std::vector<uint32_t> indices;
    std::vector<int32_t> sums;
    std::map<uint32_t, float> returned;
    std::map<uint32_t, int32_t> taken;  ///< of its offered entries, x 2^exponent: without zeros
    std::vector<worker::RackSelection> racks;
    /// False: its rack cut the index off.
    bool kept(uint16_t who, uint32_t index) const;
  };
  uint16_t worker = 0;
  bool survived = false;  ///< still a member when the run ended, or left by itself
  uint32_t first_step = 0;
  std::map<uint32_t, std::map<uint32_t, float>> offered;  ///< by step and index
  std::map<std::pair<uint16_t, uint64_t>, Told> told;     ///< by slot and turn

  void note(const worker::CompletedWindow& settled);
};

struct SwitchLawTerms {
  protocol::WindowCodecs codecs{};  ///< of contributions; without a key
  uint32_t window_indices = 0;
  uint32_t steps = 0;  ///< with values; those after them only close
  int32_t limit = 0;
  size_t payload_bytes_max = 0;  ///< of a worker's contribution
};

struct SwitchLawResult {
  std::vector<std::string> faults;
  uint64_t entries = 0;
  uint64_t dead_in_results = 0;
};

/// Checks that all survivors learned the same of every turn. Of every index, the offered value must equal the applied
/// value plus the returned value: exactly. The integers of dead contributors are computed from their offers. Where QSGD
/// rounds to few bits, the returned value is the nearest f32 of the rest (grid_remainder()); the integers stay exact.
SwitchLawResult check_switch_law(const std::vector<const SwitchRecord*>& records, const SwitchLawTerms& terms);

}  // namespace millrace::testing
