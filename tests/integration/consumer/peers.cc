// Tests the peers of an installed library in an outside program: two ranks sum, and a mistake is a JobError.

#include <millrace/peer.h>

#include <iostream>
#include <thread>
#include <utility>
#include <vector>

namespace {

using millrace::peers::Algorithm;
using millrace::peers::Allreduce;
using millrace::peers::Communicator;
using millrace::peers::Group;

// Whether the rank's sum of a sparse and of a dense contribution is right.
bool sums_are_right(Communicator communicator) {
  Group group(std::move(communicator));
  Allreduce exact(group, {.dimension = 5});
  Allreduce largest(group, {.dimension = 5, .algorithm = Algorithm::oktopk(millrace::Amount::count(2))});
  auto first = exact.start(millrace::SparseEntries{.indices = {group.rank(), 4}, .values = {1.0f, 2.0f}});
  auto second = largest.start(std::vector<float>{0, 0, 0, 3, 1});
  std::vector<float> sum(5, 0.0f);
  first.wait().sum.add_to(sum);
  return sum == std::vector<float>{1, 1, 0, 0, 4} && !second.wait().contributed.empty();
}

// Whether a vector of another dimension is refused with the reason.
bool a_mistake_is_refused() {
  try {
    Group group(std::move(Communicator::in_process(1)[0]));
    Allreduce exact(group, {.dimension = 5});
    exact.start(std::vector<float>(4));
  } catch (const millrace::JobError& error) {
    std::cout << "millrace " << millrace::version() << ": " << millrace::job_error_name(error.code()) << ": "
              << error.what() << "\n";
    return error.code() == millrace::JobErrorCode::kInvalidArgument;
  }
  return false;
}

}  // namespace

int main() {
  auto ranks = Communicator::in_process(2);
  bool other = false;
  std::thread thread([&] { other = sums_are_right(std::move(ranks[1])); });
  const bool own = sums_are_right(std::move(ranks[0]));
  thread.join();
  if (!own || !other) {
    std::cerr << "a sum is wrong\n";
    return 1;
  }
  if (!a_mistake_is_refused()) {
    std::cerr << "a vector of another dimension was accepted\n";
    return 1;
  }
  return 0;
}
