#pragma once

#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/stream/shared_stream.h"

namespace millrace::peer::testing {

/// Where the entries of the ranks lie.
enum class Spread { kUniform, kClustered, kSame, kDisjoint, kOneRegion, kTwoEnds };
inline constexpr Spread kSpreads[] = {Spread::kUniform,  Spread::kClustered, Spread::kSame,
                                      Spread::kDisjoint, Spread::kOneRegion, Spread::kTwoEnds};

constexpr std::string_view name_of(Spread spread) {
  switch (spread) {
    case Spread::kUniform: return "uniform";
    case Spread::kClustered: return "clustered";
    case Spread::kSame: return "same";
    case Spread::kDisjoint: return "disjoint";
    case Spread::kOneRegion: return "one region";
    case Spread::kTwoEnds: return "two ends";
  }
  return "";
}

/// A number on the grid of 2^-6 in [-16, 16], not 0: sums of up to 2^10 of them are exact in f32.
inline float grid_value(RandomSequence& draws) {
  const auto steps = static_cast<int>(draws.next_below(1024)) + 1;
  return static_cast<float>(draws.next_below(2) == 0 ? steps : -steps) / 64;
}

/// What rank `rank` of `size` contributes: `count` entries at most. The same (seed, size, ...) gives the same.
inline SharedStream contribution_of(Spread spread, uint32_t rank, uint32_t size, uint64_t dimension, uint64_t count,
                                    uint64_t seed) {
  RandomSequence draws(RandomKey::from(seed), spread == Spread::kSame ? 0 : rank);
  RandomSequence values(RandomKey::from(seed + 1), rank);
  std::set<uint32_t> indices;
  const auto within = [&](uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    for (uint64_t tries = 0; tries < 4 * count && indices.size() < count && indices.size() < end - begin; ++tries) {
      indices.insert(static_cast<uint32_t>(begin + draws.next_below(end - begin)));
    }
  };
  switch (spread) {
    case Spread::kUniform:
    case Spread::kSame: within(0, dimension); break;
    case Spread::kClustered:
      for (uint64_t at = draws.next_below(dimension); indices.size() < std::min(count, dimension / 2);) {
        indices.insert(static_cast<uint32_t>(at));
        at = (at + 1 + (draws.next_below(8) == 0 ? draws.next_below(dimension) : 0)) % dimension;
      }
      break;
    case Spread::kDisjoint: within(dimension * rank / size, dimension * (rank + 1) / size); break;
    case Spread::kOneRegion: within(0, std::max<uint64_t>(dimension / 16, std::min(dimension, 2 * count))); break;
    case Spread::kTwoEnds:
      if (rank % 2 == 0) within(0, dimension / 4);
      if (rank % 2 == 1) within(dimension - dimension / 4, dimension);
      break;
  }
  Stream stream = Stream::empty(dimension);
  for (const uint32_t index : indices) {
    stream.indices.push_back(index);
    stream.values.push_back(grid_value(values));
  }
  return SharedStream::from(std::move(stream));
}

}  // namespace millrace::peer::testing
