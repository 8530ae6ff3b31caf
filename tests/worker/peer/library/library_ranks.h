#pragma once

#include <gtest/gtest.h>
#include <millrace/peer.h>

#include <cstdint>
#include <exception>
#include <map>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Ranks of one process that use the installed interface alone, and their inputs.
namespace millrace::peers::testing {

/// Calls rank(group) on each of `size` ranks, a thread each.
template <typename Rank>
void on_ranks_of_library(uint32_t size, const GroupOptions& options, Rank rank) {
  std::vector<Communicator> all = Communicator::in_process(size);
  std::vector<std::jthread> threads;
  for (Communicator& one : all) {
    threads.emplace_back([&one, &options, &rank] {
      try {
        Group group(std::move(one), options);
        rank(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
}

/// Sums by index, in f64.
using IndexSums = std::map<uint32_t, double>;

inline void add_view(IndexSums& sums, const EntriesView& entries) {
  for (size_t j = 0; j < entries.values.size(); ++j) {
    sums[entries.dense ? static_cast<uint32_t>(j) : entries.indices[j]] += static_cast<double>(entries.values[j]);
  }
}

inline IndexSums without_zero_sums(const IndexSums& sums) {
  IndexSums kept;
  for (const auto& [index, value] : sums) {
    if (value != 0) kept.emplace(index, value);
  }
  return kept;
}

inline EntriesView view_of_entries(const SparseEntries& entries, uint64_t dimension) {
  return {.dimension = dimension, .dense = false, .indices = entries.indices, .values = entries.values};
}

/// A multiple of 1/64 in [-16, 16], not 0: sums of a few are exact in f32.
inline float exact_value(std::mt19937& draws) {
  const auto steps = static_cast<int>(draws() % 1024) + 1;
  return static_cast<float>(draws() % 2 == 0 ? steps : -steps) / 64;
}

/// About `count` entries at drawn indices; the same for equal arguments.
inline SparseEntries drawn_entries(uint64_t dimension, uint64_t count, uint32_t seed) {
  std::mt19937 draws(seed);
  std::map<uint32_t, float> entries;
  for (uint64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint32_t>(draws() % dimension);
    entries[index] = exact_value(draws);
  }
  SparseEntries drawn;
  for (const auto& [index, value] : entries) {
    drawn.indices.push_back(index);
    drawn.values.push_back(value);
  }
  return drawn;
}

inline std::vector<float> dense_of(const SparseEntries& entries, uint64_t dimension) {
  std::vector<float> dense(dimension, 0.0F);
  view_of_entries(entries, dimension).add_to(dense);
  return dense;
}

/// Returns the code and sentence of the JobError that `call` throws; an empty sentence where it throws none.
template <typename Call>
std::pair<JobErrorCode, std::string> thrown_by(Call call) {
  try {
    call();
  } catch (const JobError& error) {
    return {error.code(), error.what()};
  }
  return {JobErrorCode::kInternal, ""};
}

}  // namespace millrace::peers::testing
