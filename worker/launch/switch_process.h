#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "worker/launch/child_process.h"

namespace millrace::launch {

struct SwitchProcessOptions {
  std::string host = "127.0.0.1";
  std::string network_namespace;  ///< empty: the caller's
  std::string folder;             ///< where its jobs file and the job's key (JOB.key) are written
  std::string log;                ///< where its log goes; empty: the caller's stderr
  uint32_t job = 1;
  uint32_t workers = 1;
  uint32_t window_indices = 16'384;
  uint32_t slots = 16;
  uint32_t lanes = 1;       ///< of the job, and as many lcores
  uint64_t reselect_k = 0;  ///< 0: the whole sum
  /// A rack's (role combine), of this number and these workers, in front of the aggregator at `shard`; empty: it
  /// decides.
  std::vector<uint32_t> rack = {};
  uint32_t rack_number = 0;
  std::string shard = {};
  uint32_t packet_bytes = 1472;
  uint64_t key_seed = 1;  ///< of a key that guards nothing: a benchmark's
  int timeout_ms = 30'000;
};

/// Writes that key, of its owner alone; its path. Several processes of one folder and seed have the same.
/// Errors  io.
Result<std::string> write_switch_key(const SwitchProcessOptions& options);

/// Owns a millrace-switch with one job, that this process started and that ends with it.
class SwitchProcess {
 public:
  /// Errors  of ErrorPlace::kSwitch: io: its files cannot be written. As ChildProcess; the switch's own, with its
  ///         sentence; timeout.
  static Result<SwitchProcess> start(const SwitchProcessOptions& options);

  const std::string& address() const { return address_; }    ///< "127.0.0.1:41234"
  const std::string& key_file() const { return key_file_; }  ///< as its job has it
  ChildProcess& process() { return process_; }
  ExitReport stop(int grace_ms = 5'000) { return process_.terminate(grace_ms); }

 private:
  explicit SwitchProcess(ChildProcess process) : process_(std::move(process)) {}
  ChildProcess process_;
  std::string address_;
  std::string key_file_;
};

}  // namespace millrace::launch
