#include "worker/cli/peer/mpi_end.h"

#include <fmt/format.h>

#include "monitoring/standard_streams.h"

namespace millrace::cli {

void end_job(peer::MpiJob& job, const std::string& command, const Failure& failure) {
  constexpr uint32_t kGraceMs = 1'000;
  monitoring::say(fmt::format("{}: rank {}: {}", command, job.rank(), failure.message));
  job.abort(static_cast<int>(failure.code), kGraceMs);
}

peer::MpiThreads mpi_threads_of(const std::string& name) {
  for (const auto level : {peer::MpiThreads::kFunneled, peer::MpiThreads::kSerialized, peer::MpiThreads::kMultiple}) {
    if (name == peer::name_of(level)) return level;
  }
  return peer::MpiThreads::kSingle;
}

}  // namespace millrace::cli
