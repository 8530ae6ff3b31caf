#include "worker/training/data/epoch_order.h"

#include <numeric>
#include <utility>

#include "kernels/base/random.h"

namespace millrace::training {

std::vector<uint32_t> epoch_order(size_t rows, uint64_t seed, uint32_t worker, uint32_t epoch) {
  constexpr uint64_t kOrderStream = 11;
  std::vector<uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0U);
  RandomSequence random(random_key(seed, worker, epoch), kOrderStream);
  for (size_t at = rows; at > 1; --at) std::swap(order[at - 1], order[random.next_below(at)]);
  return order;
}

}  // namespace millrace::training
