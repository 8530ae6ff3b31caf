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

/// The largest magnitude of one worker's integer of a reproducible job: sums of all `workers` are integers of at most
/// 2^24, which an f32 holds. So f32 additions on the grid are exact, whatever their order. A power of two, see
/// to_grid().
/// REQUIRES: 1 <= workers <= 2^24.
int32_t exact_f32_limit(uint32_t workers);

/// The integer of `value`: the nearest, ties to even; what is over `limit` becomes `limit`, or, from 2^24 steps of the
/// grid on, the power of two below it, so that what is over stays exact.
/// REQUIRES: value is finite; exponent in [kGridExponentLowest, kGridExponentHighest].
int32_t to_grid(float value, int exponent, int32_t limit);

/// to_grid() of many values of one block. Returns how many are over the limit.
/// REQUIRES: as to_grid(); out.size() == values.size().
uint32_t to_grid(std::span<const float> values, int exponent, int32_t limit, std::span<int32_t> out);

/// 2^exponent: a product with it is ldexp(), and costs less. REQUIRES: exponent in [-1022, 1023].
double grid_step(int exponent);

/// to_grid() as a value: what receivers decode.
/// REQUIRES: as to_grid(); limit <= 2^24.
float on_grid(float value, int exponent, int32_t limit);

/// What of `value` is not in `sent` x 2^exponent. Exact in f32 for what to_grid() made of a value below 2^24 x (the
/// power of two at or below the limit) x 2^exponent; above, and for lossy codecs' integers, it is the nearest f32.
float grid_remainder(float value, int32_t sent, int exponent);

/// Exponents of a tensor's blocks, a function of the results so far and of nothing else: equal at all who have the
/// same.
///
/// A block's exponent goes by its largest sum: room for four times that in one worker's integer, at most 4 less than
/// before, any number more. An update whose sums are all 0 although somebody had something takes 8 off. Blocks that
/// never had a result go by the whole update of the last step that had one, of their group (a tensor of several that
/// are numbered through).
class ExponentTable {
 public:
  /// limit   of one worker's integer.
  /// groups  first block of each, ascending; the first is 0.
  ExponentTable(int initial, int32_t limit, std::vector<uint32_t> groups = {0});

  int of(uint32_t block) const;
  /// A result of the step in hand; it counts once the step is over. Of one block there may be several.
  void observe(uint32_t block, int exponent, std::span<const int32_t> sums);
  /// The same of sums as values: integers times 2^of(block). Zeros say nothing. What is not on the grid is taken as if
  /// it were.
  void observe_values(uint32_t block, std::span<const float> sums);
  /// All of the step's results are in.
  void end_step();
  /// The same by what all paths of a reproducible job show alike, which are the sums that are not 0: blocks that have
  /// none stay as they are, and those of a group that has none at all (what was sent rounded to 0, or was nothing) go
  /// down by 8.
  void end_step_of_nonzero();

  /// For a worker that joins at the end of a step: what it needs to choose as the others do.
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
  void set(const std::vector<std::pair<uint32_t, int>>& settled);

  std::vector<Seen> seen_;  ///< of the step in hand, as they came
};

}  // namespace millrace
