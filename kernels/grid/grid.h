#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

/// The binary grid on which gradients are added without rounding: a value is an integer times 2^exponent, one exponent
/// for each block of indices. Integers add up to the same sum in every order, on every machine. Of path switch, and of
/// jobs that are `reproducible`.
namespace millrace {

inline constexpr int kGridExponentLowest = -120;
inline constexpr int kGridExponentHighest = 90;

/// Returns the largest magnitude of one worker's integer of a reproducible job. Sums of all `workers` are then integers
/// of at most 2^24, which an f32 holds. So f32 additions on the grid are exact in every order. A power of two, see
/// to_grid().
/// REQUIRES: 1 <= workers <= 2^24.
int32_t exact_f32_limit(uint32_t workers);

/// Returns the integer of `value`: the nearest, ties to even. A larger magnitude becomes `limit`. From 2^24 steps of
/// the grid on, it becomes the power of two below `limit`, so that the remainder stays exact.
/// REQUIRES: value is finite; exponent in [kGridExponentLowest, kGridExponentHighest].
int32_t to_grid(float value, int exponent, int32_t limit);

/// Does to_grid() of many values of one block. Returns how many are over the limit.
/// REQUIRES: as to_grid(); out.size() == values.size().
uint32_t to_grid(std::span<const float> values, int exponent, int32_t limit, std::span<int32_t> out);

/// Returns 2^exponent: a product with it is ldexp(), and costs less. REQUIRES: exponent in [-1022, 1023].
double grid_step(int exponent);

/// Returns to_grid() as a value: the receivers' decoding.
/// REQUIRES: as to_grid(); limit <= 2^24.
float on_grid(float value, int exponent, int32_t limit);

/// Returns `value` minus `sent` x 2^exponent. It is exact in f32 for an integer of to_grid(), from a value below 2^24 x
/// P x 2^exponent. P is the power of two at or below the limit. Above that, and for lossy codecs' integers, it is the
/// nearest f32.
float grid_remainder(float value, int32_t sent, int exponent);

/// Keeps the exponents of a tensor's blocks: a function of only the results so far, equal at all workers with the same
/// results.
///
/// A block's largest sum decides its exponent: one worker's integer has room for four times that sum. The exponent
/// falls by at most 4 a step, and rises by any number. An update whose sums are all 0, although a worker contributed
/// entries, lowers it by 8. A block that never had a result follows its group (a tensor of several that are numbered
/// through). It takes the exponent from the group's whole update in the last step that had one.
class ExponentTable {
 public:
  /// limit   of one worker's integer.
  /// groups  first block of each, ascending; the first is 0.
  ExponentTable(int initial, int32_t limit, std::vector<uint32_t> groups = {0});

  int of(uint32_t block) const;
  /// Takes a result of the present step; it counts once the step is over. Of one block there may be several.
  void observe(uint32_t block, int exponent, std::span<const int32_t> sums);
  /// Takes the same sums as values: integers times 2^of(block). Zeros have no effect. A value off the grid is treated
  /// as if it were on it.
  void observe_values(uint32_t block, std::span<const float> sums);
  /// Ends the step: all of its results are in.
  void end_step();
  /// Ends the step by the sums that are not 0, which all paths of a reproducible job see alike. A block without such a
  /// sum keeps its exponent. A group without any lowers its exponents by 8: its contributions rounded to 0, or there
  /// were none.
  void end_step_of_nonzero();

  /// Holds the state that a worker needs to choose as the others do when it joins at the end of a step.
  struct State {
    std::vector<int> whole;                        ///< by group
    std::vector<std::pair<uint32_t, int>> blocks;  ///< those that had a result, ascending, and the exponent of each
    bool operator==(const State&) const = default;
  };
  State state() const { return state_; }
  void restore(State state);

 private:
  int next(int before, int highest_bit) const;
  size_t group_of(uint32_t block) const;

  int32_t limit_;
  std::vector<uint32_t> groups_;
  State state_;
  struct Seen {
    uint32_t block = 0;
    int exponent = 0;
    int bits = 0;  ///< of the largest |sum|; 0: all were 0
  };
  void join_seen();
  void set(const std::vector<std::pair<uint32_t, int>>& exponents);

  std::vector<Seen> seen_;  ///< of the step in hand, as they came
};

}  // namespace millrace
