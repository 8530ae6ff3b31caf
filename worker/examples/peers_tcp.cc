// Runs peers.cc with ranks that are processes, over TCP. Every process gets its rank and the same list of addresses.
// Where other machines reach them, each gets a copy of the same key.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "worker/examples/peers.h"

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::string key_file;
  if (words.size() > 2 && words[0] == "--key") {
    key_file = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  if (words.size() < 2) {
    std::fprintf(stderr, "usage: %s [--key FILE] RANK HOST:PORT...\n", argv[0]);
    return 2;
  }
  try {
    const std::vector<std::string> addresses(words.begin() + 1, words.end());
    train(millrace::peers::Communicator::over_tcp(
        {.rank = static_cast<uint32_t>(std::stoul(words[0])), .addresses = addresses, .key_file = key_file}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
