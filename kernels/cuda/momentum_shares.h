#pragma once

namespace millrace::cuda {

/// How a gradient enters a sum by a velocity: velocity = kept * velocity + gradient; then
/// of_gradient * gradient + of_velocity * velocity enters.
struct MomentumShares {
  float kept = 0;
  float of_gradient = 0;
  float of_velocity = 1;
};

}  // namespace millrace::cuda
