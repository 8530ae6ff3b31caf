#include "worker/program/mpi/mpi_end.h"

#include <fmt/format.h>

#include "monitoring/standard_streams.h"

namespace millrace::program {

void end_job(peer::MpiJob& job, const std::string& command, const Failure& failure) {
  constexpr uint32_t kGraceMs = 3'000;
  monitoring::say(fmt::format("{}: rank {}: {}", command, job.rank(), failure.message));
  job.abort(static_cast<int>(failure.code), kGraceMs);
}

}  // namespace millrace::program
