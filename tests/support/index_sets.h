#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"

namespace millrace::testing {

/// A strictly increasing index set with a name for messages.
struct IndexSet {
  std::string name;
  uint64_t dimension = 0;
  IndexBuffer indices;
};

/// Each index of [0, dimension) with the same probability. Geometric gaps: cost by the number of indices.
inline IndexBuffer uniform_indices(uint64_t dimension, double density, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  IndexBuffer indices;
  if (density >= 1.0) {
    for (uint64_t i = 0; i < dimension; ++i) indices.push_back(static_cast<uint32_t>(i));
    return indices;
  }
  const double scale = 1.0 / std::log1p(-density);
  double at = -1;
  while (true) {
    at += 1.0 + std::floor(std::log(1.0 - random.next_unit()) * scale);
    if (at >= static_cast<double>(dimension)) return indices;
    indices.push_back(static_cast<uint32_t>(at));
  }
}

/// Runs of consecutive and near indices with long holes between them, as real gradients have them.
inline IndexBuffer clustered_indices(uint64_t dimension, uint64_t count, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  std::vector<uint32_t> drawn;
  while (drawn.size() < count) {
    uint64_t at = random.next_below(dimension);
    for (uint64_t length = 1 + random.next_below(200); length > 0 && at < dimension; --length) {
      drawn.push_back(static_cast<uint32_t>(at));
      at += 1 + random.next_below(random.next_below(4) == 0 ? 40 : 2);
    }
  }
  std::sort(drawn.begin(), drawn.end());
  drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
  return IndexBuffer(drawn.begin(), drawn.end());
}

/// Sets at the edges of what index codecs may meet; dimensions up to `dimension_max`.
inline std::vector<IndexSet> awkward_index_sets(uint64_t dimension_max) {
  std::vector<IndexSet> sets;
  const auto add = [&](std::string name, uint64_t dimension, IndexBuffer indices) {
    if (dimension <= dimension_max) sets.push_back({std::move(name), dimension, std::move(indices)});
  };
  const auto last = [](uint64_t dimension) { return static_cast<uint32_t>(dimension - 1); };
  for (const uint64_t dimension : {uint64_t{1}, uint64_t{7}, uint64_t{64}, uint64_t{1000}, uint64_t{1} << 32}) {
    const std::string of = " of " + std::to_string(dimension);
    add("none" + of, dimension, {});
    add("first" + of, dimension, {0});
    add("last" + of, dimension, {last(dimension)});
    if (dimension > 1) add("first and last" + of, dimension, {0, last(dimension)});
    if (dimension <= 1000) add("all" + of, dimension, uniform_indices(dimension, 1.0, 1));
  }
  for (const uint64_t count : {255, 256, 257, 511, 512, 513, 1024}) {
    const std::string named = std::to_string(count) + " ";
    add("all " + std::to_string(count), count, uniform_indices(count, 1.0, 1));
    IndexBuffer indices = uniform_indices(count, 1.0, 1);
    indices.back() = last(uint64_t{1} << 32);
    add(named + "consecutive and the very last", uint64_t{1} << 32, indices);
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<uint32_t>((uint64_t{1} << 32) - count + i);
    add(named + "at the very end", uint64_t{1} << 32, indices);
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<uint32_t>(i * ((uint64_t{1} << 32) / count));
    add(named + "equally far apart", uint64_t{1} << 32, indices);
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<uint32_t>(i * 5);
    add(named + "every fifth", 5 * count, indices);
  }
  return sets;
}

/// Random sets over densities, uniform and clustered.
inline std::vector<IndexSet> random_index_sets(uint64_t dimension, uint64_t seed) {
  std::vector<IndexSet> sets;
  for (const double density : {0.0001, 0.001, 0.01, 0.1, 0.3, 0.9}) {
    sets.push_back({"uniform " + std::to_string(density), dimension, uniform_indices(dimension, density, seed)});
    const auto count = static_cast<uint64_t>(density * 0.5 * static_cast<double>(dimension));
    sets.push_back({"clustered " + std::to_string(density), dimension, clustered_indices(dimension, count, seed + 1)});
  }
  return sets;
}

}  // namespace millrace::testing
