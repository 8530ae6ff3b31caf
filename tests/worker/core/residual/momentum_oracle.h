#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/support/oracles/select_oracle.h"

namespace millrace::testing {

/// What Nesterov's momentum adds to V: the usual look-ahead, or what [RedSync19, algorithm 4] prints.
enum class Nesterov { kNo, kLookAhead, kPrinted };

/// [RedSync19, algorithm 4] for one bucket of one worker, slow and dense: U and V as arrays, the largest k of V sent.
/// Two uses: as printed, the mask follows the selection at once (send_and_mask()); as Millrace has it, it follows the
/// update (send(), applied(), returned()).
class Algorithm4 {
 public:
  Algorithm4(uint64_t dimension, uint64_t k, float factor, Nesterov nesterov = Nesterov::kNo)
      : velocity(dimension, 0.0f), residual(dimension, 0.0f), k_(k), factor_(factor), nesterov_(nesterov) {}

  /// U = factor U + G; V = V + U (Nesterov's: + G + factor U; as printed: + U + G).
  void push(const std::vector<float>& gradient) {
    for (size_t i = 0; i < velocity.size(); ++i) {
      velocity[i] = factor_ * velocity[i] + gradient[i];
      switch (nesterov_) {
        case Nesterov::kNo: residual[i] += velocity[i]; break;
        case Nesterov::kLookAhead: residual[i] += gradient[i] + factor_ * velocity[i]; break;
        case Nesterov::kPrinted: residual[i] += velocity[i] + gradient[i]; break;
      }
    }
  }

  /// Sends all of V and keeps U: a step of the warm-up, "original SGD optimizer synchronized by allreduce"
  /// [RedSync19, appendix C].
  std::map<uint64_t, float> send_everything() {
    std::map<uint64_t, float> sent;
    for (size_t i = 0; i < residual.size(); ++i) {
      if (residual[i] != 0) sent[i] = residual[i];
      residual[i] = 0;
    }
    return sent;
  }

  /// Masks = selection(V); V = V (1 - Masks). Returns the selected entries without zeros.
  std::map<uint64_t, float> send() {
    std::map<uint64_t, float> sent;
    for (const uint32_t index : top_k_oracle(residual, k_)) {
      if (residual[index] != 0) sent[index] = residual[index];
      residual[index] = 0;
    }
    return sent;
  }
  /// And U = U (1 - Masks): the algorithm as printed.
  std::map<uint64_t, float> send_and_mask() {
    const std::map<uint64_t, float> sent = send();
    for (const auto& [index, value] : sent) velocity[index] = 0;
    return sent;
  }

  void applied(uint64_t index) { velocity[index] = 0; }
  void returned(uint64_t index, float value) { residual[index] += value; }

  std::vector<float> velocity;  ///< U
  std::vector<float> residual;  ///< V

 private:
  uint64_t k_ = 0;
  float factor_ = 0;
  Nesterov nesterov_ = Nesterov::kNo;
};

}  // namespace millrace::testing
