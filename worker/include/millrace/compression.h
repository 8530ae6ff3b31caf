#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>

/// The compression of contributions and updates: selections, codecs, momentum. Each type has one named constructor for
/// each alternative, with that alternative's parameters. Whole methods of papers (DGC, Ok-Topk, 3LC, SketchML ...) are
/// combinations of them: `millrace train --help` lists them.
namespace millrace {
inline namespace v0 {

struct OptionAccess;  // the library's: reads and writes the private members below

/// Holds a number of entries of a tensor: a share of the dimension, or a count.
class Amount {
 public:
  /// density  in (0, 1]; the number of entries is rounded up.
  // NOLINTNEXTLINE(google-explicit-constructor): Selection::top_k(0.01)
  constexpr Amount(double density) : density_(density) {}
  /// A whole number could mean either: write Amount::count(1000), or 1.0 for all entries.
  template <std::integral T>
  Amount(T) = delete;

  /// entries  1 or more.
  static constexpr Amount count(uint64_t entries) {
    Amount amount(0.0);
    amount.entries_ = entries;
    return amount;
  }
  constexpr double density() const { return density_; }
  constexpr uint64_t entries() const { return entries_; }  ///< 0: density() says the number
  bool operator==(const Amount&) const = default;

 private:
  double density_ = 0;
  uint64_t entries_ = 0;
};

/// Says which entries of a tensor's residual a step's contribution has.
class Selection {
 public:
  /// Sends all entries: of naturally sparse gradients, those that were pushed.
  static constexpr Selection all() { return Selection(0, 0.0); }
  /// Sends the entries of the largest magnitude.
  static constexpr Selection top_k(Amount amount) { return Selection(1, amount); }
  /// Sends the entries of at least this magnitude [Strom15].
  static constexpr Selection threshold(double magnitude) {
    Selection selection(2, 0.0);
    selection.threshold_ = magnitude;
    return selection;
  }
  /// Computes the exact threshold once a period, and reuses it in between [OkTopk22, 3.1.3].
  static constexpr Selection threshold_reuse(Amount amount, uint32_t period = 32) {
    return Selection(3, amount).with_period(period);
  }
  /// Takes its share of every `bucket` consecutive indices [SparCML19, 8.3].
  static constexpr Selection bucket_top_k(Amount amount, uint32_t bucket = 512) {
    Selection selection(4, amount);
    selection.bucket_ = bucket;
    return selection;
  }
  /// Searches among the entries over a threshold from mean and maximum [RedSync19, 2.1].
  static constexpr Selection trimmed(Amount amount) { return Selection(5, amount); }
  /// Finds a threshold by bisection: between the amount and its double [RedSync19, 2.1].
  static constexpr Selection binary_search(Amount amount) { return Selection(6, amount); }
  /// Finds the same threshold once a period [RedSync19, 2.1].
  static constexpr Selection sampled(Amount amount, uint32_t period = 5) {
    return Selection(7, amount).with_period(period);
  }
  /// Finds the largest by radix select alone (the baseline of [RedSync19, 2.1]).
  static constexpr Selection radix(Amount amount) { return Selection(8, amount); }
  /// Chooses for each tensor by its size, and sends tensors of up to 4,096 entries whole [RedSync19, 2.1, 3.3].
  static constexpr Selection by_size(Amount amount) { return Selection(9, amount); }
  /// Takes a threshold from a normal fit [GaussianK19].
  static constexpr Selection gaussian(Amount amount) { return Selection(10, amount); }
  /// Draws entries without regard to their size [DeepReduce21, 10.2].
  static constexpr Selection random(Amount amount) { return Selection(11, amount); }
  /// Draws by the greedy algorithm's probabilities, for unbiased jobs [GSpar18, algorithm 3].
  static constexpr Selection gspar(Amount amount, uint32_t iterations = 2) {
    Selection selection(12, amount);
    selection.iterations_ = iterations;
    return selection;
  }
  /// Draws by the closed form: the variance may be (1 + variance) times the gradient's [GSpar18, algorithm 2].
  static constexpr Selection gspar_closed(double variance) {
    Selection selection(13, 0.0);
    selection.variance_ = variance;
    return selection;
  }
  /// Draws each entry with one probability, for unbiased jobs.
  static constexpr Selection uniform(Amount amount) { return Selection(14, amount); }

  /// Names a selection without a constructor of its own, by its number on the wire (protocol/wire/job_spec.md).
  static constexpr Selection numbered(uint8_t number, Amount amount) { return Selection(number, amount); }

  /// Sends positive entries in even steps and negative ones in odd steps. Not every selection has it.
  constexpr Selection one_sign() const {
    Selection changed = *this;
    changed.one_sign_ = true;
    return changed;
  }
  /// Sends all entries in the first steps. No codec changes a value of these steps, and reselect does not shorten them.
  constexpr Selection dense_first(uint32_t steps) const { return with_first_steps(1, steps); }
  /// Lowers the density from a quarter in equal stages over the first steps [DGC18, 3.3].
  constexpr Selection warm_up(uint32_t steps) const { return with_first_steps(2, steps); }

  bool operator==(const Selection&) const = default;

 private:
  friend struct OptionAccess;
  constexpr Selection(uint8_t method, Amount amount) : method_(method), amount_(amount) {}
  constexpr Selection with_period(uint32_t period) const {
    Selection changed = *this;
    changed.period_ = period;
    return changed;
  }
  constexpr Selection with_first_steps(uint8_t form, uint32_t steps) const {
    Selection changed = *this;
    changed.first_form_ = form;
    changed.first_steps_ = steps;
    return changed;
  }

  uint8_t method_;  ///< the number on the wire; the others are that one's parameters
  bool one_sign_ = false;
  uint8_t first_form_ = 0;  ///< 0 none, 1 dense, 2 warm-up
  uint32_t first_steps_ = 0;
  uint32_t period_ = 32;
  uint32_t bucket_ = 512;
  uint32_t iterations_ = 2;
  Amount amount_;
  double threshold_ = 0;
  double variance_ = 0;
};

/// Says which entries of a step's sum the shards send back.
class Reselect {
 public:
  /// Sends the whole sum.
  static constexpr Reselect none() { return {}; }
  /// Sends the largest entries over all shards [OkTopk22].
  ///
  /// threshold_period  steps between exact global thresholds. 1: every update has the largest entries of its own sum,
  ///                   which costs the shards half a round trip.
  static constexpr Reselect top_k(Amount amount, uint32_t threshold_period = 1) {
    Reselect reselect;
    reselect.is_top_k_ = true;
    reselect.amount_ = amount;
    reselect.threshold_period_ = threshold_period;
    return reselect;
  }
  bool operator==(const Reselect&) const = default;

 private:
  friend struct OptionAccess;
  bool is_top_k_ = false;
  uint32_t threshold_period_ = 1;
  Amount amount_ = 0.0;
};

/// Says how the indices of a contribution or an update become bytes. Namespace `index` has the codes.
class IndexCode {
 public:
  /// number  of the code on the wire (protocol/wire/index_codecs.md). rate: of a Bloom filter's false positives.
  constexpr explicit IndexCode(uint8_t number, double rate = 0.001) : number_(number), rate_(rate) {}
  bool operator==(const IndexCode&) const = default;

 private:
  friend struct OptionAccess;
  uint8_t number_;
  double rate_;
};

namespace index {
inline constexpr IndexCode raw{1};
inline constexpr IndexCode bitmap{2};
inline constexpr IndexCode gap{3};
inline constexpr IndexCode elias_gamma{5};
inline constexpr IndexCode elias_delta{6};
inline constexpr IndexCode rice{7};
inline constexpr IndexCode golomb{8};
inline constexpr IndexCode adaptive{9};
inline constexpr IndexCode run_length{10};
inline constexpr IndexCode huffman{11};
inline constexpr IndexCode roaring{12};
inline constexpr IndexCode streamvbyte{13};
inline constexpr IndexCode delta_binary{21};
inline constexpr IndexCode delta_huffman{22};
// Bloom filters with false positives [DeepReduce21, 4]. rate: in [1e-9, 1).
constexpr IndexCode bloom(double rate = 0.001) { return IndexCode{4, rate}; }
constexpr IndexCode bloom_naive(double rate = 0.001) { return IndexCode{14, rate}; }
constexpr IndexCode bloom_p1(double rate = 0.001) { return IndexCode{15, rate}; }
constexpr IndexCode bloom_p2(double rate = 0.001) { return IndexCode{16, rate}; }
constexpr IndexCode bloom_left(double rate = 0.001) { return IndexCode{17, rate}; }
constexpr IndexCode bloom_middle(double rate = 0.001) { return IndexCode{18, rate}; }
constexpr IndexCode bloom_right(double rate = 0.001) { return IndexCode{19, rate}; }
constexpr IndexCode bloom_blocked(double rate = 0.001) { return IndexCode{20, rate}; }
}  // namespace index

/// Names the scale of a quantizer's bucket.
enum class QsgdScale : uint8_t {
  kMaximum = 1,  ///< the bucket's largest magnitude
  kL2Norm = 2,   ///< the bucket's norm [QSGD17]
};

/// Says how values become bytes. Namespace `value` has the codes.
class ValueCode {
 public:
  /// Holds the parameters of all codes; a code ignores those that it does not have.
  struct Parameters {
    uint32_t bits = 4;                      ///< of a value: 2 to 8
    uint32_t bucket = 512;                  ///< values that share a scale
    QsgdScale scale = QsgdScale::kMaximum;  ///< of a bucket
    double multiplier = 1.75;               ///< of the largest magnitude, in [1, 2): 3LC's s
    bool operator==(const Parameters&) const = default;
  };
  /// number  of the code on the wire (protocol/wire/value_codecs.md). Parameters that it lacks stay as they are.
  constexpr explicit ValueCode(uint8_t number) : number_(number) {}
  constexpr ValueCode(uint8_t number, const Parameters& parameters) : number_(number), parameters_(parameters) {}
  bool operator==(const ValueCode&) const = default;

 private:
  friend struct OptionAccess;
  uint8_t number_;
  Parameters parameters_;
};

namespace value {
inline constexpr ValueCode raw{1};
inline constexpr ValueCode f16{3};
inline constexpr ValueCode bf16{4};
inline constexpr ValueCode sign_mean{5};
inline constexpr ValueCode deflate{9};
inline constexpr ValueCode fit_poly{10};
inline constexpr ValueCode fit_dexp{11};
inline constexpr ValueCode gspar_hybrid{12};
inline constexpr ValueCode gspar_entropy{13};
inline constexpr ValueCode sketchml{15};
inline constexpr ValueCode skcompress{16};
inline constexpr ValueCode sketchml_mean{17};
inline constexpr ValueCode skcompress_mean{18};
/// bits  2 to 8 [QSGD17].
constexpr ValueCode qsgd(uint32_t bits, QsgdScale scale = QsgdScale::kMaximum, uint32_t bucket = 512) {
  return {2, {.bits = bits, .bucket = bucket, .scale = scale}};
}
constexpr ValueCode qsgd_elias(uint32_t bits, QsgdScale scale = QsgdScale::kMaximum, uint32_t bucket = 512) {
  return {8, {.bits = bits, .bucket = bucket, .scale = scale}};
}
constexpr ValueCode terngrad(uint32_t bucket = 512) { return {6, {.bucket = bucket}}; }
constexpr ValueCode onebit(uint32_t bucket = 512) { return {7, {.bucket = bucket}}; }
/// multiplier  of the largest magnitude, in [1, 2): 3LC's s.
constexpr ValueCode three_lc(double multiplier = 1.75) { return {14, {.multiplier = multiplier}}; }
constexpr ValueCode quantile(uint32_t bits = 7) { return {19, {.bits = bits}}; }
}  // namespace value

/// Says how a contribution, or an update, becomes bytes.
class Codec {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): Codec up = index::bitmap
  constexpr Codec(IndexCode index = index::gap, ValueCode value = value::raw) : index_(index), value_(value) {}
  /// Chooses the index code by measured cost.
  static constexpr Codec automatic(ValueCode value = value::raw) {
    Codec codec(index::gap, value);
    codec.automatic_ = true;
    return codec;
  }
  bool operator==(const Codec&) const = default;

 private:
  friend struct OptionAccess;
  bool automatic_ = false;
  IndexCode index_;
  ValueCode value_;
};

/// Says how a worker changes a gradient before it enters the residual. The velocity of an entry ends when an update has
/// applied the entry's sent value. A step that sends everything ends no velocity.
class Momentum {
 public:
  static constexpr Momentum none() { return {1, 0}; }
  /// velocity = factor * velocity + gradient enters [RedSync19, algorithm 4]. factor: in (0, 1).
  static constexpr Momentum correction(double factor) { return {2, factor}; }
  /// gradient + factor * velocity enters: the usual look-ahead.
  static constexpr Momentum nesterov(double factor) { return {3, factor}; }
  /// gradient + velocity enters: [RedSync19, algorithm 4] as it is printed.
  static constexpr Momentum nesterov_printed(double factor) { return {4, factor}; }
  /// Keeps the velocity of entries that were sent.
  constexpr Momentum unmasked() const {
    Momentum changed = *this;
    changed.masked_ = false;
    return changed;
  }
  bool operator==(const Momentum&) const = default;

 private:
  friend struct OptionAccess;
  constexpr Momentum(uint8_t form, double factor) : form_(form), factor_(factor) {}

  uint8_t form_;  ///< the number on the wire
  bool masked_ = true;
  double factor_;
};

}  // namespace v0
}  // namespace millrace
