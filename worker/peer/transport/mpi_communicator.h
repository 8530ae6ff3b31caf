#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/result.h"
#include "worker/peer/transport/communicator.h"
#include "worker/peer/transport/shared_bodies.h"

namespace millrace::peer {

/// Says which threads may call MPI: MPI_THREAD_SINGLE to MPI_THREAD_MULTIPLE.
enum class MpiThreads : uint8_t { kSingle = 1, kFunneled = 2, kSerialized = 3, kMultiple = 4 };

/// Returns "single", "funneled", "serialized" or "multiple".
std::string_view name_of(MpiThreads threads);
/// Returns the level whose name_of() is `name`; kSingle for other names.
MpiThreads mpi_threads_of(std::string_view name);

/// Runs MPI from its initialization to its end in this process, and MPI's own collectives that a benchmark compares
/// with. One at a time.
///
/// Threads  as the level says; none of these calls may overlap a communicator's below `multiple`.
class MpiJob {
 public:
  /// Joins the job that mpirun started; a job of one rank where none did.
  /// Errors   unavailable: MPI cannot be started, was already, or has ended.
  static Result<std::unique_ptr<MpiJob>> begin(MpiThreads wanted);
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;
  /// MPI_Finalize: waits for all ranks.
  ~MpiJob();

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  MpiThreads threads() const { return threads_; }

  /// Calls MPI_Allreduce, in place. Waits for all ranks, also for one that never comes. Errors  io; limit_exceeded:
  /// more than 2^31 less 1.
  Status sum_dense(std::span<float> values);
  /// Calls MPI_Abort: ends all ranks, after the output that they print in `grace_ms`.
  [[noreturn]] void abort(int exit_code, uint32_t grace_ms);

 private:
  MpiJob(uint32_t rank, uint32_t size, MpiThreads threads) : rank_(rank), size_(size), threads_(threads) {}

  uint32_t rank_;
  uint32_t size_;
  MpiThreads threads_;
};

struct MpiOptions {
  /// Maximum memory of each rank that ranks of one machine share: bodies in it are read in place, not sent. Only used
  /// memory is taken. 0: none; then no rank of this machine has any.
  uint64_t shared_bytes_max = uint64_t{64} << 20;
};

/// Communicates over MPI, on a duplicate of the job's communicator (MPI_Comm_dup), so that nothing else receives its
/// messages.
///
/// Wire     a message of up to 8 KiB is one MPI message, header and body, copied. A longer body is an MPI message of
///          its own, from where it lies to where it stays; several arrive at a time. Before it comes the header and its
///          tag. To a rank on the same machine goes the header, and where in memory that both have the body lies
///          (shared_bodies.h).
/// Waiting  MPI cannot wake a sleeping thread: wait() polls, yields, and sleeps for longer each time, up to 50 us.
/// Threads  as every communicator, at any level of the job. A lock keeps calls of MPI of this communicator from
///          overlapping. Where only the main thread may call MPI, others get an error.
/// Bounds   a body has at most 2^31 - 1 bytes.
class MpiCommunicator final : public Communicator {
 public:
  /// Makes a communicator over all ranks of the job. Collective: every rank calls it. Errors  unavailable: MPI is not
  /// there; io.
  static Result<std::unique_ptr<MpiCommunicator>> over_world(const MpiOptions& options = {});
  /// Makes one over the ranks of a communicator of the caller's, as MPI_Comm_c2f() gives it. Collective.
  static Result<std::unique_ptr<MpiCommunicator>> over(int fortran_handle, const MpiOptions& options = {});
  /// Gives sends in flight two seconds; the buffers of unfinished ones stay in memory until the process ends.
  ~MpiCommunicator() override;

  uint32_t rank() const override;
  uint32_t size() const override;
  uint64_t body_bytes_max() const override;
  Status send(uint32_t to, PeerMessage message) override;
  WritableBody take_body(size_t bytes) override;
  Result<std::optional<ReceivedMessage>> receive() override;
  std::optional<uint32_t> culprit() const override;
  void wait(TimeNs at_most, WaitAs as) override;
  void wake() override;
  bool yields() const override { return yields_; }
  TimeNs now() const override { return monotonic_now_ns(); }
  Traffic traffic() const override;

  /// Counts the bodies that ranks of one machine share, by outcome.
  SharedBodiesCounters counters() const;

 private:
  class Links;
  explicit MpiCommunicator(std::unique_ptr<Links> links);
  std::unique_ptr<Links> links_;
  const bool yields_;
};

}  // namespace millrace::peer
