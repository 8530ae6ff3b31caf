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

/// The slow, obvious form of a stream: what is carried at which index.
template <typename T>
using Entries = std::map<uint32_t, T>;

template <typename T>
Entries<T> entries_of(const StreamView<T>& stream) {
  Entries<T> entries;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    entries[stream.dense ? static_cast<uint32_t>(i) : stream.indices[i]] = stream.values[i];
  }
  return entries;
}

template <typename T>
Stream<T> stream_of(uint64_t dimension, const Entries<T>& entries) {
  Stream<T> stream = Stream<T>::empty(dimension);
  for (const auto& [index, value] : entries) {
    stream.indices.push_back(index);
    stream.values.push_back(value);
  }
  return stream;
}

template <typename T>
Stream<T> dense_of(const std::vector<T>& values) {
  Stream<T> stream;
  stream.dimension = values.size();
  stream.dense = true;
  stream.values.assign(values.begin(), values.end());
  return stream;
}

/// Exactly the same form, indices and bits of the values (0 and -0 differ, NaN equals itself).
template <typename T>
bool same_bits(const StreamView<T>& a, const StreamView<T>& b) {
  return a.dimension == b.dimension && a.dense == b.dense && a.indices.size() == b.indices.size() &&
         a.values.size() == b.values.size() && std::equal(a.indices.begin(), a.indices.end(), b.indices.begin()) &&
         (a.values.empty() || std::memcmp(a.values.data(), b.values.data(), a.values.size_bytes()) == 0);
}

template <typename T>
std::string describe(const StreamView<T>& stream) {
  std::string text = (stream.dense ? "dense of " : "sparse of ") + std::to_string(stream.dimension) + ", " +
                     std::to_string(stream.count()) + " entries:";
  for (size_t i = 0; i < stream.values.size() && i < 20; ++i) {
    text += ' ' + std::to_string(stream.dense ? i : stream.indices[i]) + ':' + std::to_string(stream.values[i]);
  }
  return text;
}

/// A random sparse stream of about density * dimension entries with values of very different sizes, so that sums in
/// another order have other bits.
template <typename T>
Stream<T> random_stream(RandomSequence& random, uint64_t dimension, double density) {
  Stream<T> stream = Stream<T>::empty(dimension);
  for (uint64_t i = 0; i < dimension; ++i) {
    if (random.next_unit() >= density) continue;
    stream.indices.push_back(static_cast<uint32_t>(i));
    stream.values.push_back(static_cast<T>(random.next_normal() * static_cast<double>(1u << random.next_below(20))));
  }
  return stream;
}

}  // namespace millrace::testing
