#include "kernels/reduce/merge_two.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/reduce/reduce.h"

namespace millrace {
namespace {

// Merging costs the same whatever the density, slices cost by the 64 indices: from about six entries in 64 on they win.
constexpr uint64_t kMergeIndicesPerEntry = 12;

constexpr size_t kWalks = 4;

/// A part of both streams, of the same indices, and where in the output it stands.
struct Walk {
  size_t i = 0, i_end = 0;  ///< of the first stream
  size_t j = 0, j_end = 0;  ///< of the second one
  size_t begin = 0, at = 0;

  /// So many steps at least stay within both ends: a step goes on by one at most in either.
  size_t steps() const { return std::min(i_end - i, j_end - j); }
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

/// The value where `taken` is 1; -0, the identity of addition, where it is 0. By its bits: no branch, and nothing through memory.
template <typename T>
T or_nothing(T value, uint32_t taken) {
  using Bits = BitsOf<T>;
  const Bits all = Bits{0} - Bits{taken};
  const Bits minus_zero = Bits{1} << (8 * sizeof(T) - 1);
  return std::bit_cast<T>((std::bit_cast<Bits>(value) & all) | (minus_zero & ~all));
}

/// Each step of a merge waits for the loads of the one before: several walks side by side take hardly longer than one.
template <typename T>
struct Merge {
  const StreamView<T>& a;
  const StreamView<T>& b;

  std::array<Walk, kWalks> split() const {
    std::array<Walk, kWalks> walks;
    for (size_t w = 0; w < kWalks; ++w) {
      Walk& walk = walks[w];
      walk.i = a.count() * w / kWalks;
      walk.i_end = a.count() * (w + 1) / kWalks;
      const auto from = walk.i < a.count() ? std::ranges::lower_bound(b.indices, a.indices[walk.i]) : b.indices.end();
      walk.j = w == 0 ? 0 : static_cast<size_t>(from - b.indices.begin());
      walk.j_end = b.count();
      walk.begin = walk.at = walk.i + walk.j;
      if (w > 0) walks[w - 1].j_end = walk.j;
    }
    return walks;
  }

  void step(Walk& walk, uint32_t* index, T* value) const {
    const uint32_t left = a.indices.data()[walk.i], right = b.indices.data()[walk.j];
    const uint32_t take_left = left <= right, take_right = right <= left;
    index[walk.at] = std::min(left, right);
    value[walk.at] = or_nothing(a.values.data()[walk.i], take_left) + or_nothing(b.values.data()[walk.j], take_right);
    walk.i += take_left;
    walk.j += take_right;
    ++walk.at;
  }

  void walk_together(std::array<Walk, kWalks>& walks, uint32_t* index, T* value) const {
    auto [first, second, third, fourth] = walks;  // in registers
    while (const size_t steps = std::min({first.steps(), second.steps(), third.steps(), fourth.steps()})) {
      for (size_t taken = 0; taken < steps; ++taken) {
        step(first, index, value);
        step(second, index, value);
        step(third, index, value);
        step(fourth, index, value);
      }
    }
    walks = {first, second, third, fourth};
  }

  /// What the walks together have left of one.
  void finish(Walk& walk, uint32_t* index, T* value) const {
    while (walk.steps() > 0) step(walk, index, value);
    const auto append = [&](const StreamView<T>& rest, size_t from, size_t to) {
      std::copy(rest.indices.data() + from, rest.indices.data() + to, index + walk.at);
      std::copy(rest.values.data() + from, rest.values.data() + to, value + walk.at);
      walk.at += to - from;
    };
    append(a, walk.i, walk.i_end);
    append(b, walk.j, walk.j_end);
  }
};

}  // namespace

template <typename T>
bool is_merged(const StreamView<T>& a, const StreamView<T>& b) {
  // What is merged stays sparse: the dense form begins at a third of the dimension or later.
  static_assert(kMergeIndicesPerEntry > 3);
  return !a.dense && !b.dense && a.count() + b.count() < a.dimension / kMergeIndicesPerEntry;
}

template <typename T>
Stream<T> merge_two(const StreamView<T>& a, const StreamView<T>& b) {
  const Merge<T> merge{a, b};
  Stream<T> out = Stream<T>::empty(a.dimension);
  out.indices.resize(a.count() + b.count());
  out.values.resize(a.count() + b.count());
  uint32_t* const index = out.indices.data();
  T* const value = out.values.data();
  std::array<Walk, kWalks> walks = merge.split();
  merge.walk_together(walks, index, value);
  size_t written = 0;
  for (Walk& walk : walks) {
    merge.finish(walk, index, value);
    const size_t count = walk.at - walk.begin;
    if (written != walk.begin) {
      std::memmove(index + written, index + walk.begin, count * sizeof(uint32_t));
      std::memmove(value + written, value + walk.begin, count * sizeof(T));
    }
    written += count;
  }
  out.indices.resize(written);
  out.values.resize(written);
  return out;
}

template <typename T>
Result<Stream<T>> sum_two(const StreamView<T>& a, const StreamView<T>& b) {
  return sum_many<T>(std::array{a, b});
}

template bool is_merged(const StreamView<float>&, const StreamView<float>&);
template bool is_merged(const StreamView<double>&, const StreamView<double>&);
template Stream<float> merge_two(const StreamView<float>&, const StreamView<float>&);
template Stream<double> merge_two(const StreamView<double>&, const StreamView<double>&);
template Result<Stream<float>> sum_two(const StreamView<float>&, const StreamView<float>&);
template Result<Stream<double>> sum_two(const StreamView<double>&, const StreamView<double>&);

}  // namespace millrace
