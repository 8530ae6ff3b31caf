#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "protocol/datagram/window_code.h"

/// The binary grid on which workers of a switch add: a value is an integer times 2^exponent, one exponent a window. Integers
/// add up to the same sum in every order, on every machine.
namespace millrace::worker {

inline constexpr int kExponentMin = -120;
inline constexpr int kExponentMax = 90;

/// The largest magnitude of one worker's integer: the sum of all `workers` fits an i32, one value the codec. A power of two
/// where the codec has 32 bits, see to_grid().
/// REQUIRES: workers >= 1.
int32_t grid_limit(protocol::WindowValueCodec codec, uint32_t workers);

/// The integer of `value`: the nearest, ties to even; what is over `limit` becomes `limit`, or, from 2^24 steps of the grid
/// on, the power of two below it, so that what is over stays exact.
/// REQUIRES: value is finite; exponent in [kExponentMin, kExponentMax].
int32_t to_grid(float value, int exponent, int32_t limit);

/// What of `value` is not in `sent` x 2^exponent. Exact in f32 for what to_grid() made of a value below 2^24 x (the power of two
/// at or below the limit) x 2^exponent; above, and for lossy codecs' integers, it is the nearest f32.
float grid_remainder(float value, int32_t sent, int exponent);

/// Exponents of a tensor's windows, a function of the results so far and of nothing else: equal at all who have the same.
///
/// A window's exponent goes by its largest sum: room for four times that in one worker's integer, at most 4 less than before,
/// any number more. An update whose sums are all 0 although somebody had something takes 8 off. Windows that never had a
/// result go by the whole update of the last step that had one.
class ExponentTable {
 public:
  /// limit: grid_limit() of the job.
  ExponentTable(int initial, int32_t limit);

  int of(uint32_t window) const;
  /// A result of the step in hand; it counts once the step is over.
  void observe(uint32_t window, int exponent, std::span<const int32_t> sums);
  /// All slots have finished the step.
  void end_step();

  /// For a worker that joins at the end of a step: what it needs to choose as the others do.
  struct State {
    int whole = 0;
    std::map<uint32_t, int> windows;
    bool operator==(const State&) const = default;
  };
  State state() const { return state_; }
  void restore(State state);

 private:
  int next(int before, int highest_bit) const;

  int32_t limit_;
  State state_;
  struct Seen {
    int exponent = 0;
    int bits = 0;  ///< of the largest |sum|; 0: all were 0
  };
  std::map<uint32_t, Seen> seen_;
};

}  // namespace millrace::worker
