#include "worker/bench/rounds/serve_input.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::bench {

Stream serve_input(uint64_t n, uint64_t k, uint64_t seed, uint32_t worker, uint32_t round) {
  RandomSequence random(random_key(seed, worker, round));
  // Order statistics of k uniforms as scaled sums of exponentials. They are spread over n - k places and pushed apart
  // by their rank: sorted and distinct in one pass.
  std::vector<double> sums(k);
  double total = 0;
  for (auto& sum : sums) {
    total -= std::log(1.0 - random.next_unit());
    sum = total;
  }
  total -= std::log(1.0 - random.next_unit());
  Stream stream = Stream::empty(n);
  stream.indices.resize(k);
  stream.values.resize(k);
  const double places = static_cast<double>(n - k) + 1.0;
  for (uint64_t rank = 0; rank < k; ++rank) {
    const auto place = std::min<uint64_t>(static_cast<uint64_t>(sums[rank] / total * places), n - k);
    stream.indices[rank] = static_cast<uint32_t>(place + rank);
    stream.values[rank] = static_cast<float>(random.next_normal());
  }
  return stream;
}

}  // namespace millrace::bench
