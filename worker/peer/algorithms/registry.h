#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

class CostChain;

/// Describes an allreduce. Its file defines `AlgorithmEntry NAME_entry()`, and allreduce_list.h has the word.
struct AlgorithmEntry {
  AlgorithmInfo info;
  /// Makes the allreduce; the settings are valid for the fields of `info`, but the entry's own parameters are not
  /// checked yet.
  Result<std::unique_ptr<Allreduce>> (*make)(const AllreduceSettings& settings);
  /// Adds the cost of one step on two ranks or more, with its selection (cost_chain.h). Null: the cost is that of the
  /// algorithms that it runs.
  void (*cost)(CostChain& chain) = nullptr;
  /// Returns the settings of this algorithm alone, for description_of(): " tau=64,32". Null: it has none.
  std::string (*describe)(const AllreduceSettings& settings) = nullptr;
  /// Returns at most how many values of the vector one message has, dense. Null: all of them.
  uint64_t (*message_values)(uint64_t dimension, uint32_t ranks) = nullptr;
};

/// Returns at most how many values a rank's slice has: AlgorithmEntry::message_values.
inline uint64_t values_of_slice(uint64_t dimension, uint32_t ranks) { return dimension / ranks + 1; }

inline std::string_view name_of(const AlgorithmEntry& entry) { return entry.info.name; }
inline AlgorithmId number_of(const AlgorithmEntry& entry) { return entry.info.id; }

/// REQUIRES: an algorithm of this build.
const AlgorithmEntry& algorithm_entry(AlgorithmId id);

/// Makes a class `A` of its settings alone: AlgorithmEntry::make.
template <typename A>
Result<std::unique_ptr<Allreduce>> make_of(const AllreduceSettings& settings) {
  return std::make_unique<A>(settings);
}

}  // namespace millrace::peer
