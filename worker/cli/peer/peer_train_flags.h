#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "monitoring/http/secure/http_security.h"
#include "worker/program/option_flags.h"
#include "worker/training/peers/train_over_peers.h"

namespace millrace::cli {

/// Says what sums the gradients, as --path has it.
enum class PathFlag : uint8_t {
  kPeers = 1,
  kServers = 2,
  kAuto = 3,  ///< what takes less time
};

/// Returns the command line's word.
constexpr std::string_view path_flag_name(PathFlag path) {
  switch (path) {
    case PathFlag::kPeers: return "peers";
    case PathFlag::kServers: return "server";
    case PathFlag::kAuto: break;
  }
  return "auto";
}

/// Holds the flags of `millrace-peer train`, as the command line has them.
struct PeerTrainFlags {
  PeerTrainFlags();
  PeerTrainFlags(const PeerTrainFlags&) = delete;  // the tables refer to it
  PeerTrainFlags& operator=(const PeerTrainFlags&) = delete;

  training::PeerTrainOptions options;  ///< options.options.job follows from `job` when all flags are read
  worker::JobFlags job;
  std::vector<worker::Option> me;  ///< of options.options.me: those that this command has
  uint32_t index_base = 1;
  std::string train_path;
  std::string test_path;
  std::string output;
  std::string model = "lr";
  std::string optimizer = "sgd";
  std::string schedule = "constant";
  std::string order = "shuffled";
  std::string allgather = "sparse";
  PathFlag path = PathFlag::kPeers;
  std::string servers;
  // Empty: the optimizer's own.
  std::string algorithm;
  std::string quantizer;
  std::string http;
  monitoring::HttpSecurityOptions http_security;
  std::string mpi_threads = "serialized";
  std::string boundaries = "averaged";
  double rate = 1;
  uint64_t dimension = 0;
  uint32_t silence_ms_max = 30'000;
  bool json = false;
};

/// Adds the flags to the command. `flags` outlives the parsing.
void add_peer_train_flags(CLI::App& app, PeerTrainFlags& flags);

/// Returns the options that the flags set; for others, the optimizer's defaults.
/// Errors  invalid_argument: unknown words, and options that the optimizer, the path or the algorithm does not take.
Result<training::PeerTrainOptions> train_options_of(const PeerTrainFlags& flags);

/// Returns the table of optimizers for --help: a description and the defaults of each.
std::string optimizers_table();

}  // namespace millrace::cli
