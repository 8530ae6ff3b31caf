#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "millrace/peer.h"
#include "worker/peer/library/communicator_impl.h"
#include "worker/peer/library/raise.h"
#include "worker/peer/transport/mpi_communicator.h"

/// The communicator over MPI: a library of its own, so that a program without MPI needs none.
namespace millrace::inline v0::peers {
namespace {

/// Holds MPI where the library has started it, until the process ends.
struct StartedMpi {
  std::mutex mutex;
  std::unique_ptr<peer::MpiJob> job;
  std::atomic<bool> has_failed = false;
};

/// Never destroyed: end_mpi() runs among the destructors of the process's other objects.
StartedMpi& started_mpi() {
  static auto* const started = new StartedMpi;
  return *started;
}

/// Ends MPI, which waits for all ranks. After a failure a rank may be stuck: then MPI stays, and mpirun ends the job.
void end_mpi() {
  StartedMpi& started = started_mpi();
  if (started.has_failed) {
    static_cast<void>(started.job.release());
  } else {
    started.job.reset();
  }
}

void note_failure() { started_mpi().has_failed = true; }

Result<std::unique_ptr<peer::MpiCommunicator>> communicator_over(const MpiOptions& options) {
  const peer::MpiOptions inner{.shared_bytes_max = options.shared_bytes_max};
  if (options.fortran_handle) return peer::MpiCommunicator::over(*options.fortran_handle, inner);
  return peer::MpiCommunicator::over_world(inner);
}

/// Starts MPI where the program has not.
Status start_mpi() {
  StartedMpi& started = started_mpi();
  const std::lock_guard lock(started.mutex);
  if (started.job) return {};
  auto job = peer::MpiJob::begin(peer::MpiThreads::kMultiple);
  if (!job) return std::unexpected(job.error());
  started.job = std::move(*job);
  std::atexit(&end_mpi);
  return {};
}

}  // namespace

Communicator Communicator::over_mpi(const MpiOptions& options) {
  auto made = communicator_over(options);
  // The program has not started MPI. Its own communicator cannot be one of a job that starts here.
  if (!made && made.error().code == ErrorCode::kUnavailable && !options.fortran_handle) {
    must(start_mpi(), JobErrorOrigin::kWorker);
    made = communicator_over(options);
  }
  auto impl = std::make_unique<Impl>();
  impl->transport = take(std::move(made), JobErrorOrigin::kWorker);
  impl->group_failed = &note_failure;
  return Communicator(std::move(impl));
}

}  // namespace millrace::inline v0::peers
