#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/retained.h"
#include "kernels/grid/grid.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Rounds the f32 values of one tensor of a reproducible job to the grid before they are sent. Sums over all workers
/// are then exact in f32, regardless of the process that adds them and of the order. The exponents of blocks of indices
/// depend on the updates so far.
///
/// Threads  one.
class BlockGrid {
 public:
  /// REQUIRES: block_indices >= 1; exponent_initial as ExponentTable has it; workers >= 1.
  BlockGrid(uint32_t block_indices, int exponent_initial, uint32_t workers);

  /// Rounds values in place. REQUIRES: they are finite.
  ///
  /// base  first index of the stream in the tensor.
  void round(const StreamView& where, std::span<float> values, uint64_t base = 0) const;

  /// Takes the sums of an update, or of a part of one. Those of all parts, then end_step().
  void observe(const StreamView& sums, uint64_t base = 0);
  void end_step() { exponents_.end_step_of_nonzero(); }

  const ExponentTable& exponents() const { return exponents_; }
  /// Returns the exponents. Between steps.
  Retained retained() const;
  /// Errors  invalid_argument: no exponents of a grid of that many blocks. Nothing changes then.
  Status restore_retained(std::span<const uint64_t> retained, uint64_t blocks);
  int32_t limit() const { return limit_; }
  uint32_t block_indices() const { return block_indices_; }

 private:
  uint32_t block_indices_;
  int32_t limit_;
  ExponentTable exponents_;
};

/// Computes the remainders of values that were sent as `sent` and applied, in f32, and the part of each remainder that
/// f32 does not hold.
///
/// back, beyond  of the length of values; value = sent + back + beyond, exactly. beyond is 0 but where a value is 2^24
///               times what its block has room for (grid_remainder()).
void grid_remainders(std::span<const float> values, std::span<const float> sent, std::span<float> back,
                     std::span<float> beyond);

}  // namespace millrace
