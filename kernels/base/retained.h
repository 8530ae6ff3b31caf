#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/result.h"

/// State that an object retains between the steps of a job (thresholds, boundaries), as a list of numbers. A saved
/// state has it, so that a later process continues to the same bits.
namespace millrace {

using Retained = std::vector<uint64_t>;

/// Appends a list behind its length.
inline void append_list(Retained& out, std::span<const uint64_t> list) {
  out.push_back(list.size());
  out.insert(out.end(), list.begin(), list.end());
}

/// Reads such a list from its begin. A number that is missing, or not within its limits, makes the reader invalid; then
/// every later number is the least one that is allowed.
class RetainedReader {
 public:
  explicit RetainedReader(std::span<const uint64_t> numbers) : left_(numbers) {}

  /// Returns the next number, from `least` to `most`.
  uint64_t next(uint64_t least, uint64_t most) {
    if (left_.empty() || left_.front() < least || left_.front() > most) {
      valid_ = false;
      left_ = {};
      return least;
    }
    const uint64_t number = left_.front();
    left_ = left_.subspan(1);
    return number;
  }
  /// Returns the next list of append_list(). It points into the numbers.
  std::span<const uint64_t> list() {
    const auto length = static_cast<size_t>(next(0, left_.empty() ? 0 : left_.size() - 1));
    const std::span<const uint64_t> found = left_.first(length);
    left_ = left_.subspan(length);
    return found;
  }
  /// Returns an error where the reader is invalid, or numbers are left.
  Status end() const {
    if (valid_ && left_.empty()) return {};
    return fail(ErrorCode::kInvalidArgument, "the numbers that a saved state retains are of another job, or damaged");
  }

 private:
  std::span<const uint64_t> left_;
  bool valid_ = true;
};

}  // namespace millrace
