#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/codec/history/index_history.h"

namespace millrace::testing {

/// The indices of a part's updates, by step: some entries are in most of them, some in few, most in none, and which
/// ones drifts.
inline std::vector<IndexBuffer> update_log(uint64_t dimension, size_t steps, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  std::vector<IndexBuffer> log;
  for (size_t step = 0; step < steps; ++step) {
    IndexBuffer indices;
    uint64_t at = 0;
    while (at < dimension) {
      const bool often = (at + step / 40) / 97 % 5 == 0;
      const uint64_t scale = often ? 6 : 200;
      at += random.next_below(2 * scale);
      if (at < dimension) indices.push_back(static_cast<uint32_t>(at++));
    }
    log.push_back(std::move(indices));
  }
  return log;
}

/// The class of each entry after the log's first `position` updates, as protocol/wire/history.md defines it.
inline std::vector<uint32_t> classes_after(const std::vector<IndexBuffer>& log, uint64_t position, uint64_t dimension) {
  std::vector<uint32_t> classes(dimension, 0);
  const uint64_t present = position / 32;
  for (uint64_t period = 0; period <= present; ++period) {
    std::map<uint32_t, uint32_t> counts;
    for (uint64_t step = period * 32; step < std::min(period * 32 + 32, position); ++step) {
      for (const uint32_t index : log[step]) ++counts[index];
    }
    for (const auto& [index, count] : counts) {
      const uint32_t reached = count >= 8 ? 7 : count >= 4 ? 6 : count >= 2 ? 5 : 4;
      const auto age = static_cast<uint32_t>(present - period);
      if (reached > age) classes[index] = std::max(classes[index], reached - age);
    }
  }
  return classes;
}

/// The history of the log's first `position` updates.
inline IndexHistory history_after(const std::vector<IndexBuffer>& log, uint64_t position, uint64_t dimension) {
  IndexHistory history(dimension);
  for (uint64_t step = 0; step < position; ++step) history.advance(log[step]);
  return history;
}

}  // namespace millrace::testing
