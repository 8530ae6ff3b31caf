#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/stream/stream.h"

namespace millrace::testing {

/// The slow, obvious form of a stream: the value at each index.
using Entries = std::map<uint32_t, float>;

inline Entries entries_of(const StreamView& stream) {
  Entries entries;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    entries[stream.dense ? static_cast<uint32_t>(i) : stream.indices[i]] = stream.values[i];
  }
  return entries;
}

inline Stream stream_of(uint64_t dimension, const Entries& entries) {
  Stream stream = Stream::empty(dimension);
  for (const auto& [index, value] : entries) {
    stream.indices.push_back(index);
    stream.values.push_back(value);
  }
  return stream;
}

inline Stream dense_of(const std::vector<float>& values) {
  Stream stream;
  stream.dimension = values.size();
  stream.dense = true;
  stream.values.assign(values.begin(), values.end());
  return stream;
}

/// Exactly the same form, indices and bits of the values (0 and -0 differ, NaN equals itself).
inline bool same_bits(const StreamView& a, const StreamView& b) {
  return a.dimension == b.dimension && a.dense == b.dense && a.indices.size() == b.indices.size() &&
         a.values.size() == b.values.size() && std::equal(a.indices.begin(), a.indices.end(), b.indices.begin()) &&
         (a.values.empty() || std::memcmp(a.values.data(), b.values.data(), a.values.size_bytes()) == 0);
}

inline std::string describe(const StreamView& stream) {
  std::string text = (stream.dense ? "dense of " : "sparse of ") + std::to_string(stream.dimension) + ", " +
                     std::to_string(stream.count()) + " entries:";
  for (size_t i = 0; i < stream.values.size() && i < 20; ++i) {
    text += ' ' + std::to_string(stream.dense ? i : stream.indices[i]) + ':' + std::to_string(stream.values[i]);
  }
  return text;
}

/// A random sparse stream of about density * dimension entries with values of very different sizes, so that sums in
/// another order have other bits.
inline Stream random_stream(RandomSequence& random, uint64_t dimension, double density) {
  Stream stream = Stream::empty(dimension);
  for (uint64_t i = 0; i < dimension; ++i) {
    if (random.next_unit() >= density) continue;
    stream.indices.push_back(static_cast<uint32_t>(i));
    stream.values.push_back(
        static_cast<float>(random.next_normal() * static_cast<double>(1u << random.next_below(20))));
  }
  return stream;
}

}  // namespace millrace::testing
