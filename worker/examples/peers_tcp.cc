// Runs peers.cc with ranks that are processes, over TCP. Every process gets its rank and the same list of addresses.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "worker/examples/peers.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s RANK HOST:PORT...\n", argv[0]);
    return 2;
  }
  try {
    const std::vector<std::string> addresses(argv + 2, argv + argc);
    train(millrace::peers::Communicator::over_tcp(
        {.rank = static_cast<uint32_t>(std::stoul(argv[1])), .addresses = addresses}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
