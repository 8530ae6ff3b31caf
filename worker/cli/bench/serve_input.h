#pragma once

#include <cstdint>
#include <string>

#include "kernels/stream/stream.h"

namespace millrace::cli {

/// The gradient that `worker` pushes in `round`: exactly k distinct uniform indices, increasing, with standard normal values.
/// A function of its arguments alone, so that any process can make any other's.
Stream<float> serve_input(uint64_t n, uint64_t k, uint64_t seed, uint32_t worker, uint32_t round);

/// What the servers may answer in a round, by the definition: the exact sum of all workers' inputs in worker order, and the
/// magnitude of its k-th largest entry.
struct ServeOracle {
  Stream<float> sum;  ///< sparse
  float kth_magnitude = 0;
};
ServeOracle serve_oracle(uint64_t n, uint64_t k, uint64_t seed, uint32_t workers, uint32_t round);

/// How a received update is judged.
struct ServeVerdict {
  bool agrees = false;
  double relative_error = 0;  ///< ||update - sum restricted to it|| / ||sum restricted to it||
  std::string reason;         ///< where it does not agree
};

/// What the codec of the update leaves of the values.
enum class ServeValues : uint8_t { kExact, kQuantized };

/// An update agrees when (a) each of its entries is an entry of the sum, with the same bits when `values` are exact, else within
/// a relative error of `error_max` over all; (b) it has k entries within 2 %; (c) it holds every entry of the sum that is 2 %
/// larger than the k-th, and none that is 2 % smaller (exact values only: a quantized sum has another order).
ServeVerdict judge_update(const ServeOracle& oracle, const StreamView<float>& update, uint64_t k, ServeValues values,
                          double error_max);

}  // namespace millrace::cli
