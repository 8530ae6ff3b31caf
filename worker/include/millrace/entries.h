#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "millrace/errors.h"

/// Entries of a tensor: an index and an f32 value each.
namespace millrace {
inline namespace v0 {

/// Holds entries of a tensor; indices strictly increasing.
struct SparseEntries {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

/// Views entries of a tensor in memory that another object owns.
///
/// sparse   values[j] belongs to indices[j]; strictly increasing.
/// dense    values[j] belongs to index j; indices is empty.
struct EntriesView {
  uint64_t dimension = 0;  ///< of the tensor
  bool dense = false;
  std::span<const uint32_t> indices = {};
  std::span<const float> values = {};

  /// Adds scale * value of each entry to the value of its index.
  ///
  /// out      [dimension].
  /// Errors   invalid_argument: another size.
  void add_to(std::span<float> out, float scale = 1) const {
    if (out.size() != dimension) {
      throw JobError(JobErrorCode::kInvalidArgument,
                     "entries of dimension " + std::to_string(dimension) + " cannot be added to " +
                         std::to_string(out.size()) + " values",
                     JobErrorOrigin::kWorker);
    }
    for (size_t j = 0; j < values.size(); ++j) out[dense ? j : indices[j]] += scale * values[j];
  }
};

}  // namespace v0
}  // namespace millrace
