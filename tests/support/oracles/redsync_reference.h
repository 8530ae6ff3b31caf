#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace millrace::testing {

/// RedSync for all workers of a job in one place: [RedSync19, algorithm 4] with 2.1, 2.1.1, 3.3 and appendix C. Slow,
/// in double, written from the paper; uses no code of Millrace.
///
/// The paper leaves open which entries a worker sends (any threshold "between the kth to 2kth largest element"). There
/// step() takes the entries that the workers under test sent, returns their fault if they have one, and continues with
/// them.
///
/// The paper does not state the following; Millrace's documents do:
/// sizes        where "smaller", "middle" and "large" parameter sets begin.
/// turns        positive entries are sent in even steps.
/// warm-up      each worker's U continues through it into algorithm 4.
class RedSyncReference {
 public:
  using Vector = std::vector<double>;
  /// The gradient of a worker at a weight of the layer.
  using Gradient = std::function<double(uint32_t worker, size_t index, double weight)>;
  /// By worker: indices that it has sent, ascending.
  using Sent = std::vector<std::vector<uint32_t>>;

  enum class Momentum { kMasked, kNesterov, kNesterovPrinted };
  struct Options {
    uint32_t workers = 1;
    double ratio = 0.001;  ///< D
    double momentum = 0;
    Momentum kind = Momentum::kMasked;
    bool quantized = false;    ///< "Quantized-RedSync"
    uint64_t dense_steps = 0;  ///< "original SGD optimizer synchronized by allreduce in first few epochs"
    double rate = 0;
  };

  RedSyncReference(const Options& options, size_t size, bool output_layer)
      : options_(options), output_(output_layer), weights_(size) {
    for (uint32_t worker = 0; worker < options.workers; ++worker) {
      states_.push_back({.u = Vector(size), .v = Vector(size)});
    }
  }

  const Vector& weights() const { return weights_; }
  /// Selections, of any worker, that went by an earlier step's threshold.
  uint64_t reuses() const { return reuses_; }

  /// Returns whether the paper leaves open the entries that a worker sends of this layer in the step.
  bool leaves_open(uint64_t step) const {
    const Way way = way_of(step);
    return way == Way::kThreshold || way == Way::kReusedThreshold;
  }

  /// sent     of steps that leave it open; else of no meaning.
  /// Returns  the fault of `sent`; empty: none.
  std::string step(uint64_t step, const Gradient& gradient, const Sent& sent) {
    Vector update(weights_.size());
    std::string wrong;
    for (uint32_t worker = 0; worker < options_.workers; ++worker) {
      add_momentum(worker, gradient);
      if (way_of(step) == Way::kEverything) {
        send_everything(states_[worker], update);
      } else {
        const std::vector<uint32_t> mask = selection(step, worker, sent, wrong);
        send(states_[worker], mask, update);
      }
    }
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= options_.rate * update[i] / options_.workers;
    return wrong;
  }

 private:
  enum class Way { kEverything, kLargest, kThreshold, kReusedThreshold };
  /// Of a worker.
  struct State {
    Vector u, v;
    double threshold_above = 0;  ///< the last threshold is above this
    double threshold_upto = 0;   ///< ... and not above this; 0: there was none
    uint64_t reused = 0;         ///< steps since the search
  };

  static constexpr size_t kSmallUpTo = 4096;              // "biases and batch norm layers"
  static constexpr size_t kMiddleUpTo = size_t{1} << 22;  // radixSelect and trimmed top-k: exactly the largest k
  static constexpr uint64_t kSearchInterval = 5;          // "the interval of search is empirically set to 5"
  static constexpr double kRounding = 1e-5;               // the workers compute in f32

  /// "In order to distinguish the correct classification information" the output layer is not quantized.
  bool quantizes() const { return options_.quantized && !output_; }

  Way way_of(uint64_t step) const {
    if (step < options_.dense_steps || weights_.size() <= kSmallUpTo) return Way::kEverything;
    if (weights_.size() <= kMiddleUpTo) return Way::kLargest;
    return quantizes() ? Way::kThreshold : Way::kReusedThreshold;
  }

  /// U = momentum U + G; V = V + U; Nesterov's adds G as well, or looks ahead.
  void add_momentum(uint32_t worker, const Gradient& gradient) {
    State& state = states_[worker];
    const double m = options_.momentum;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const double g = gradient(worker, i, weights_[i]);
      state.u[i] = m * state.u[i] + g;
      switch (options_.kind) {
        case Momentum::kMasked: state.v[i] += state.u[i]; break;
        case Momentum::kNesterov: state.v[i] += g + m * state.u[i]; break;
        case Momentum::kNesterovPrinted: state.v[i] += state.u[i] + g; break;
      }
    }
  }

  /// No compression: the allreduce of what plain momentum SGD would step by. Nothing is late, so nothing is masked.
  static void send_everything(State& state, Vector& update) {
    for (size_t i = 0; i < update.size(); ++i) update[i] += state.v[i];
    std::ranges::fill(state.v, 0);
  }

  /// The communication-set: V . Masks into the update, V and U to 0 under the masks. Quantized, the values are their
  /// mean.
  void send(State& state, const std::vector<uint32_t>& mask, Vector& update) const {
    double mean = 0;
    for (const uint32_t i : mask) mean += state.v[i] / static_cast<double>(mask.size());
    for (const uint32_t i : mask) {
      update[i] += quantizes() ? mean : state.v[i];
      state.v[i] = state.u[i] = 0;
    }
  }

  /// "The largest k elements and the smallest k elements as communication-set in turns" where they are quantized.
  double magnitude(const State& state, uint64_t step, size_t i) const {
    const double value = state.v[i];
    if (!quantizes()) return std::abs(value);
    return std::max(0.0, step % 2 == 0 ? value : -value);
  }

  size_t k() const { return static_cast<size_t>(std::ceil(options_.ratio * static_cast<double>(weights_.size()))); }

  std::vector<uint32_t> selection(uint64_t step, uint32_t worker, const Sent& sent, std::string& wrong) {
    if (way_of(step) == Way::kLargest) return largest(states_[worker], step);
    const std::string fault = fault_of(step, states_[worker], sent[worker]);
    if (!fault.empty())
      wrong += "step " + std::to_string(step) + ", worker " + std::to_string(worker) + ": " + fault + "; ";
    return sent[worker];
  }

  std::vector<uint32_t> largest(const State& state, uint64_t step) const {
    std::vector<uint32_t> order(weights_.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto larger = [&](uint32_t a, uint32_t b) {
      const double of_a = magnitude(state, step, a), of_b = magnitude(state, step, b);
      return of_a != of_b ? of_a > of_b : a < b;
    };
    std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(k()), larger);
    order.resize(k());
    std::erase_if(order, [&](uint32_t i) { return magnitude(state, step, i) == 0; });
    return order;
  }

  /// Checks that the sent entries are all that reach some threshold: one that k to 2k entries reach, or the last
  /// search's.
  std::string fault_of(uint64_t step, State& state, const std::vector<uint32_t>& sent) {
    double least_sent = std::numeric_limits<double>::infinity(), most_kept = 0;
    size_t next = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const bool is_sent = next < sent.size() && sent[next] == i;
      next += is_sent ? 1 : 0;
      const double size = magnitude(state, step, i);
      if (is_sent) least_sent = std::min(least_sent, size);
      if (!is_sent) most_kept = std::max(most_kept, size);
    }
    if (least_sent == 0) return "a zero, or an entry of the other sign, was sent";
    if (least_sent < most_kept * (1 - kRounding)) {
      return "no threshold: " + std::to_string(least_sent) + " was sent, " + std::to_string(most_kept) + " was not";
    }
    const bool may_reuse = way_of(step) == Way::kReusedThreshold && state.threshold_upto > 0;
    const double above = std::max(most_kept, state.threshold_above), upto = std::min(least_sent, state.threshold_upto);
    const bool is_reused = may_reuse && state.reused + 1 < kSearchInterval && above * (1 - kRounding) <= upto;
    state.reused = is_reused ? state.reused + 1 : 0;
    reuses_ += is_reused ? 1 : 0;
    state.threshold_above = is_reused ? above : most_kept;
    state.threshold_upto = is_reused ? upto : least_sent;
    if (is_reused || (sent.size() >= k() && sent.size() <= 2 * k())) return "";
    return std::to_string(sent.size()) + " entries were sent, not k to 2k of k = " + std::to_string(k()) +
           ", and not by the last threshold";
  }

  Options options_;
  bool output_;
  Vector weights_;
  std::vector<State> states_;
  uint64_t reuses_ = 0;
};

}  // namespace millrace::testing
