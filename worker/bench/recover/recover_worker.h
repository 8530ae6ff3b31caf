#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/bench/recover/recover_marks.h"
#include "worker/bench/recover/recover_shared.h"

namespace millrace::bench {

struct RecoverSetup {
  std::string job;
  uint32_t workers = 0;
  std::vector<std::string> shards;
  uint32_t parts_per_shard = 0;
  std::string codec;  ///< both ways; lossless
  std::chrono::milliseconds heartbeat{0};
  RecoverMarks marks;
};

/// Returns the parts that the job of such workers has, in their order. `marks` is not looked at but for n.
std::vector<std::pair<uint64_t, uint64_t>> recover_parts(const RecoverSetup& setup);

/// Refuses a benchmark whose workers would refuse it.
///
/// Errors  invalid_argument.
Status check_recover_job(const RecoverSetup& setup);

/// Runs the body of process `serial`, which is worker `worker`. It pushes by the marks and waits for each update, until
/// it gets the command to leave or the job has `end_step` steps. Then it judges its weights. Returns an ExitCode;
/// `shared` has the error, if any.
int run_recover_worker(const RecoverSetup& setup, uint32_t worker, uint32_t serial, RecoverShared& shared);

}  // namespace millrace::bench
