// Runs peers.cc with ranks that are threads of this process.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/examples/peers.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s RANKS\n", argv[0]);
    return 2;
  }
  std::atomic<bool> failed = false;
  try {
    auto ranks = millrace::peers::Communicator::in_process(static_cast<uint32_t>(std::stoul(argv[1])));
    std::vector<std::jthread> threads;
    for (millrace::peers::Communicator& rank : ranks) {
      threads.emplace_back([&rank, &failed] {
        try {
          train(std::move(rank));
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s\n", error.what());
          failed = true;
        }
      });
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return failed ? 1 : 0;
}
