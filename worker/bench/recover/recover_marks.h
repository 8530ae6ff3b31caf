#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace::bench {

/// Defines the pushes of the processes of the recovery benchmark. From the weights at the end, part by part, they show
/// how often each push was counted. All weights begin with 0 and every update is added once, so a weight is the sum of
/// the values pushed there.
///
/// Index i is of class i % stride. A push for step t puts 1 into every index of class t % (stride - 1): its entries.
/// The last class holds the marks, one index in each part for eight pushes of one process. Push p adds 8^(p % 8) to the
/// mark p / 8. So the mark's octal digits are the counts of eight pushes. They are integers below 2^24: f32 sums are
/// exact.
///
///     n = 12, stride 3:
///     | index | 0 1 2 3 4 5 6 7 8 9 10 11
///     | class | 0 1 m 0 1 m 0 1 m 0  1  m
struct RecoverMarks {
  uint64_t n = 0;
  uint64_t stride = 0;                               ///< 2 .. n
  std::vector<std::pair<uint64_t, uint64_t>> parts;  ///< [begin, end), ascending, all of [0, n)
  uint32_t serials = 0;                              ///< processes that push, ever
  uint32_t pushes_max = 0;                           ///< of each; a multiple of 8

  /// Errors  invalid_argument: a part has not a mark for each process.
  static Result<RecoverMarks> make(uint64_t n, double density, std::vector<std::pair<uint64_t, uint64_t>> parts,
                                   uint32_t serials);

  /// Returns the entries of a push. REQUIRES: serial < serials, push < pushes_max.
  Stream pushed(uint32_t serial, uint32_t push, uint64_t step) const;
  /// How often that push is in the weights of that part: 0 .. 7.
  uint32_t counted(std::span<const float> weights, size_t part, uint32_t serial, uint32_t push) const;
  /// Returns the index of the push's mark in that part; mark_value() is the value that it adds there.
  uint64_t mark(size_t part, uint32_t serial, uint32_t push) const;
  static float mark_value(uint32_t push);
};

struct RecoverVerdict {
  uint64_t steps_lost = 0;      ///< pushes that some part has not counted
  uint64_t double_counted = 0;  ///< pushes that some part has counted more than once
  uint64_t wrong_weights = 0;   ///< indices with another weight than the counted pushes give
};

/// Judges every weight.
///
/// weights  [n]
/// steps    by serial, by push: the step that it was for. All of them must be counted.
RecoverVerdict judge_recovery(const RecoverMarks& marks, std::span<const float> weights,
                              const std::vector<std::vector<uint64_t>>& steps);

}  // namespace millrace::bench
