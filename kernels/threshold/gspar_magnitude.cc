#include "kernels/threshold/gspar_magnitude.h"

#include "kernels/draw/draw.h"

namespace millrace {

void GsparMagnitude::take(const TailSums& tail) {
  --iterations_left_;
  const bool is_shared = tail.above != 0 && tail.above < k_ && tail.magnitude != 0;
  const double next = is_shared ? tail.magnitude / static_cast<double>(k_ - tail.above) : magnitude_;
  if (next < magnitude_) {
    magnitude_ = next;
  } else {
    iterations_left_ = 0;
  }
}

float GsparMagnitude::value() const { return finite_magnitude(magnitude_); }

}  // namespace millrace
