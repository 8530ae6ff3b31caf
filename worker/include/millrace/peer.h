#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "millrace/compression.h"
#include "millrace/entries.h"
#include "millrace/errors.h"

/// Sums of sparse gradients among ranks, without servers: libmillrace_peer (CMake: Millrace::peer). Needs C++20. It
/// shows no type of another library and prints nothing. worker/peer/README.md explains it.
///
///   millrace::peers::Group group(millrace::peers::Communicator::over_tcp(
///       {.rank = r, .addresses = {"a:7600", "b:7600"}, .key_file = "job.key"}));
///   millrace::peers::Allreduce sums(
///       group, {.dimension = n, .algorithm = millrace::peers::Algorithm::oktopk(0.01)});
///   for (...) { const auto reduced = sums.start(gradient).wait(); reduced.sum.add_to(weights, -rate); }
namespace millrace {
inline namespace v0 {
namespace peers {

/// Holds the options of a communicator over MPI.
struct MpiOptions {
  /// Maximum memory of each rank that ranks of one machine share: bodies in it are read in place, not sent. 0: none.
  uint64_t shared_bytes_max = uint64_t{64} << 20;
  /// The program's own communicator, as MPI_Comm_c2f() gives it. Empty: MPI_COMM_WORLD.
  std::optional<int> fortran_handle = {};
};

/// Holds the options of a communicator over TCP.
struct TcpOptions {
  uint32_t rank = 0;
  /// Where each rank listens, one "HOST:PORT" a rank, in order: the same list on all ranks. IPv6: "[2001:db8::1]:7600".
  /// An address of every host (0.0.0.0) is refused: the others cannot connect to it.
  std::vector<std::string> addresses = {};
  /// Where this rank listens, and nowhere else. Empty: its own entry of `addresses`. Port 0: any free port, which
  /// `exchange` tells the others.
  std::string listen = {};
  /// Called once this rank listens, in place of `addresses`: takes this rank's address and returns those of all ranks.
  /// For programs whose ranks find each other through a store of their own. Its exceptions leave over_tcp().
  std::function<std::vector<std::string>(const std::string& own_address)> exchange = {};
  /// Name of the group: ranks of another group are refused. It is no password.
  std::string group = "peers";
  /// File of a secret key (`millrace keys new NAME`): a copy of the same file at every rank. The ranks prove to each
  /// other that they have it, and encrypt all messages. Empty: neither; then all addresses must be of loopback.
  std::string key_file = {};
  /// Allows other addresses without a key: every process that reaches them may take a rank's place.
  bool insecure = false;
  /// Time limit for all ranks to be there, from the call on. The time of `exchange` is part of it.
  std::chrono::milliseconds connect_max{60'000};
  /// Called about every 100 ms while ranks are missing: true ends the wait. Empty: nothing ends it early.
  std::function<bool()> give_up = {};
  /// Limit of a message's body: the same at all ranks, at least 512 KiB and 64 KiB times their number, 2^31 - 1 at
  /// most. A longer body ends the group. The automatic algorithm keeps within it.
  uint64_t body_bytes_max = (uint64_t{1} << 31) - 1;
};

/// Connects one rank to a fixed set of ranks. A Group takes it and uses it up.
///
/// Threads  one at a time.
class MILLRACE_API Communicator {
 public:
  /// Returns the communicators of `size` ranks of this process, rank 0's first: each for a thread of its own.
  ///
  /// Errors   invalid_argument: a size of 0.
  static std::vector<Communicator> in_process(uint32_t size);

  /// Makes a communicator over TCP, one connection to each other rank. Collective: every rank calls it. Blocks until
  /// all ranks are connected to each other. Others that connect meanwhile are refused; afterwards this rank does not
  /// listen. The end of its group gives bytes that are not sent yet 2 s without progress, 10 s in all: call
  /// Group::barrier() before.
  ///
  /// Errors   invalid_argument: the rank, an address, or the key's file. conflict: another program has the address.
  ///          unauthenticated: one of two ranks has no key, or another one. timeout: names a
  ///          rank that is missing. job_mismatch: the ranks have different groups, lists, or two have one number.
  ///          version_mismatch: another build. unavailable: give_up, or a rank is gone.
  ///          io, limit_exceeded: the system's error.
  static Communicator over_tcp(const TcpOptions& options);

  /// Makes a communicator over the ranks of an MPI job. Collective: every rank calls it. In the library
  /// libmillrace_peer_mpi (CMake: Millrace::peer_mpi), so that libmillrace_peer needs no MPI.
  ///
  /// A program that has not started MPI has it started here, for any number of threads, and ended when the program
  /// ends. MPI is not ended where a group has ended with an error: mpirun then ends the other ranks.
  ///
  /// Errors   unavailable: MPI cannot be started, or has ended. io: MPI's error.
  static Communicator over_mpi(const MpiOptions& options = {});

  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  uint32_t rank() const;
  uint32_t size() const;

 private:
  friend class Group;
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Says which thread sends and receives.
enum class Progress : uint8_t {
  kByCaller = 1,  ///< in every call that starts, tests or waits, and in make_progress()
  kByThread = 2,  ///< a thread of the group's own, also while the caller computes
};

/// Holds the options of a group.
struct GroupOptions {
  /// A rank that does not answer a query within this time counts as dead. With kByCaller a rank answers only in a call.
  /// While its machine takes a long message before the query, the time has not begun.
  std::chrono::milliseconds silence_max{10'000};
  /// The group ends when a live rank does not start a sum that others are blocked on within this time. It also ends
  /// when the steps of two ranks differ for twice the time.
  std::chrono::milliseconds start_max{600'000};
  /// Limit of received bytes of sums that this rank has not started.
  uint64_t early_bytes_max = uint64_t{1} << 32;
  /// Over MPI kByThread needs MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE.
  Progress progress = Progress::kByThread;
};

/// Says why a group has ended.
struct GroupFailure {
  JobErrorCode code = JobErrorCode::kInternal;
  std::string sentence = {};
  std::optional<uint32_t> rank = {};  ///< the rank at fault, where it is known
};

/// Counts a group's messages through this rank. Headers are bytes too.
struct Traffic {
  uint64_t messages_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t messages_unexpected = 0;  ///< dropped: of no sum that can have them
};

/// Holds the bytes that each rank gave to a gather.
struct Gathered {
  std::vector<std::span<const std::byte>> of_rank = {};  ///< by rank
  std::shared_ptr<const void> owner = {};                ///< of the memory; copies share it

  /// Returns a copy of a rank's bytes as values.
  ///
  /// Errors   invalid_argument: there is no such rank, or its bytes are no whole number of values.
  template <typename T>
  std::vector<T> values(uint32_t rank) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rank >= of_rank.size() || of_rank[rank].size() % sizeof(T) != 0) {
      throw JobError(JobErrorCode::kInvalidArgument, "a gather has no whole values of this size of this rank",
                     JobErrorOrigin::kWorker);
    }
    std::vector<T> copies(of_rank[rank].size() / sizeof(T));
    if (!copies.empty()) std::memcpy(copies.data(), of_rank[rank].data(), of_rank[rank].size());
    return copies;
  }
};

/// Is a gather under way, and its result. A gather that no caller waits for runs to its end all the same.
///
/// Threads  one at a time.
class MILLRACE_API PendingGather {
 public:
  PendingGather(PendingGather&& other) noexcept;
  PendingGather& operator=(PendingGather&& other) noexcept;
  ~PendingGather();

  /// Returns true when wait() would not block. Takes nothing.
  bool ready();
  /// Blocks until the bytes of all ranks are there and hands them out, once. The group's time limits bound it.
  ///
  /// Errors   invalid_argument: handed out before. The group's, where it has ended.
  Gathered wait();
  /// Does the same, for no longer than `timeout`; then returns empty, and the gather continues. 0: does not wait.
  [[nodiscard]] std::optional<Gathered> try_wait(std::chrono::milliseconds timeout = {});

 private:
  friend class Group;
  struct Impl;
  explicit PendingGather(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Is this rank's part in a group: runs the sums of a fixed set of ranks; several may be under way.
///
/// Order    all ranks start the same sums, gathers and barriers, in the same order.
/// Ends     with the first failure, on every rank within silence_max and a quarter. Then every call that needs the
///          group throws the error, which names the rank at fault, and a new group is needed. Allreduces and pending
///          results keep the group alive: the last of them frees it. Freeing it while a sum is under way ends it.
/// Threads  any.
class MILLRACE_API Group {
 public:
  /// Errors   invalid_argument: a time-out below 4 ms; a communicator that another group has.
  explicit Group(Communicator communicator, const GroupOptions& options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  uint32_t rank() const;
  uint32_t size() const;

  /// Blocks until every rank has called it.
  ///
  /// Errors   the group's, where it has ended: timeout, unavailable, job_mismatch, each naming the rank.
  void barrier();
  /// Does the same, for no longer than `timeout`; then returns false. This rank stays in the barrier: the next call of
  /// barrier() or try_barrier() is of the same one, and sums may start before it. 0: does not wait.
  [[nodiscard]] bool try_barrier(std::chrono::milliseconds timeout = {});

  /// Starts to gather the bytes of all ranks on every rank. Never blocks on another rank.
  ///
  /// own      of any length up to 2^31 - 1, and TcpOptions::body_bytes_max; another on each rank; copied.
  /// Bytes    a rank sends its own P - 1 times, or the others' in its place, in ceil(log2 P) messages.
  /// Errors   limit_exceeded: too long; nothing is started. The group's, where it has ended.
  PendingGather start_gather(std::span<const std::byte> own);
  /// Gathers the bytes of all ranks on every rank, and blocks until they are there.
  Gathered gather(std::span<const std::byte> own) { return start_gather(own).wait(); }

  /// Sends and receives with kByCaller, so that the others find this rank alive. With kByThread does nothing.
  void make_progress();

  /// Returns why the group has ended; empty while it runs.
  std::optional<GroupFailure> failure() const;
  Traffic traffic() const;

 private:
  friend class Allreduce;
  friend class Pending;
  friend class PendingGather;
  friend struct GroupAccess;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Says how Ok-Topk divides the indices into a region for each rank.
enum class Boundaries : uint8_t {
  kAveraged = 1,  ///< the mean of the ranks' own boundaries
  kPooled = 2,    ///< boundaries of all ranks' entries together
  kEqual = 3,     ///< regions of one length
};

/// Holds the parameters of Ok-Topk [OkTopk22, 3.1].
struct Oktopk {
  uint32_t boundaries_period = 64;  ///< steps between new boundaries: tau
  uint32_t thresholds_period = 32;  ///< steps between exact thresholds: tau'
  Boundaries boundaries = Boundaries::kAveraged;
  uint32_t messages_in_flight = 8;  ///< of one bucket of its split
  double balance_ratio = 4;         ///< rebalances a region that exceeds this multiple of the average; at least 1
};

/// Names an allreduce with its own parameters. Exact sums are the sum of the ranks' contributions. Algorithms with a
/// `k` give about the k largest entries of the sum, and the ranks keep the others.
class Algorithm {
 public:
  /// Tries out the exact sums in the first steps and keeps the fastest.
  static constexpr Algorithm automatic() { return Algorithm(13); }
  /// Sum dense vectors, regardless of the contribution's form [PatarasukYuan09], [Thakur05], [Rabenseifner04].
  static constexpr Algorithm dense_ring() { return Algorithm(1); }
  static constexpr Algorithm dense_recursive_doubling() { return Algorithm(2); }
  static constexpr Algorithm dense_rabenseifner() { return Algorithm(3); }
  /// [SparCML19, 5.3.1].
  static constexpr Algorithm ssar_recursive_doubling() { return Algorithm(4); }
  /// [SparCML19, 5.3.2, 5.3.3, 6]. quantizer: codes the sums that a slice's owner sends to all ranks; may be lossy,
  /// then the owner keeps the error (Reduced::returned).
  static constexpr Algorithm ssar_split_allgather(std::optional<Codec> quantizer = {}) {
    return Algorithm(5, {}, quantizer);
  }
  static constexpr Algorithm dsar_split_allgather(std::optional<Codec> quantizer = {}) {
    return Algorithm(6, {}, quantizer);
  }
  /// [SparCML19, 8.1]: the ring, on sparse slices.
  static constexpr Algorithm sparse_ring() { return Algorithm(7); }
  /// Gathers every rank's k largest entries [OkTopk22, 2].
  static constexpr Algorithm topk_a(Amount k) { return Algorithm(8, k); }
  /// Selects again in each round of a tree [GTopk19].
  static constexpr Algorithm gtopk(Amount k) { return Algorithm(9, k); }
  /// Gathers the entries over a threshold from a normal fit [GaussianK19].
  static constexpr Algorithm gaussian_k(Amount k) { return Algorithm(10, k); }
  /// [OkTopk22, 3.1].
  static constexpr Algorithm oktopk(Amount k, const Oktopk& parameters = {}) {
    Algorithm algorithm(11, k);
    algorithm.oktopk_ = parameters;
    return algorithm;
  }
  /// [RedSync19, 2.2]: gathers packed contributions and adds them.
  static constexpr Algorithm redsync_allgather() { return Algorithm(12); }

  /// Names an algorithm without a constructor of its own, by its number in algorithms().
  static constexpr Algorithm numbered(uint8_t number, std::optional<Amount> k = {}) { return Algorithm(number, k); }

 private:
  friend struct AllreduceAccess;
  constexpr explicit Algorithm(uint8_t number, std::optional<Amount> k = {}, std::optional<Codec> quantizer = {})
      : number_(number), k_(k), quantizer_(quantizer) {}

  uint8_t number_;
  std::optional<Amount> k_;
  std::optional<Codec> quantizer_;
  Oktopk oktopk_ = {};
};

/// Describes an algorithm of this build.
struct AlgorithmInfo {
  uint8_t number = 0;
  std::string_view name = {};    ///< "ssar_recursive_doubling"
  std::string_view source = {};  ///< "[SparCML19, 5.3.1]" (kernels/REFERENCES.md)
  bool takes_k = false;          ///< keeps about the k largest entries of the sum; else an exact sum
  bool selects = false;          ///< takes a dense contribution, and selects the entries that it sends
};

/// Returns every algorithm, by number.
MILLRACE_API std::vector<AlgorithmInfo> algorithms();

/// Holds the options of an allreduce. All ranks: the same.
struct AllreduceOptions {
  uint64_t dimension = 0;  ///< 1 .. 2^32
  Algorithm algorithm = Algorithm::automatic();
  /// Codes contributions; may be lossy, then the rank keeps the error (Reduced::returned). Sums travel in the same
  /// index code without loss. Empty: pairs of index and value. Codec::automatic() is refused.
  std::optional<Codec> codec = {};
  uint64_t seed = 1;  ///< of stochastic rounding
};

/// Holds a rank's result of a sum. Over all ranks, with exact values:
///
///     own + added = sum + own entries that were not handed over + returned
///
/// An exact sum hands over every rank's whole contribution. An algorithm with a k hands over the entries listed in
/// `contributed`. A rank that feeds errors back adds `returned` to its residual and subtracts `added` from it.
struct Reduced {
  EntriesView sum;                        ///< the same bits on all ranks
  EntriesView returned;                   ///< sparse: a codec's changes, and sums that this rank quantized or dropped
  std::span<const uint32_t> contributed;  ///< with a k: the indices of the own entries that were handed over; ascending
  EntriesView added;                      ///< sparse: entries of `rest` that the index codec sent beside the own ones
  std::shared_ptr<const void> owner;      ///< of the memory; copies share it
};

/// Is a sum under way, and its result. A sum that no caller waits for runs to its end all the same.
///
/// Threads  one at a time.
class MILLRACE_API Pending {
 public:
  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  /// Returns true when wait() would not block. Takes nothing.
  bool ready();
  /// Blocks until the result is there and hands it out, once. The group's time limits bound it.
  ///
  /// Errors   invalid_argument: handed out before. The sum's: non_finite (the sum overflowed), malformed. The group's,
  ///          where it has ended: timeout, unavailable, job_mismatch, each naming the rank. A later call after an
  ///          error has that error again.
  Reduced wait();
  /// Does the same, for no longer than `timeout`; then returns empty, and the sum continues. 0: does not wait.
  [[nodiscard]] std::optional<Reduced> try_wait(std::chrono::milliseconds timeout = {});

 private:
  friend class Allreduce;
  struct Impl;
  explicit Pending(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Sums one tensor, step after step. Keeps the algorithm's state between steps (thresholds, boundaries). So each tensor
/// has one on every rank. The sums of several tensors may be under way at a time.
///
/// Errors   of start(): invalid_argument: another dimension; indices that do not increase strictly; the sum before is
///          under way. non_finite: NaN or infinity. Nothing is taken then, and the group continues. The group's, where
///          it has ended.
/// Threads  one at a time.
class MILLRACE_API Allreduce {
 public:
  /// Errors   invalid_argument: dimension 0 or over 2^32; a k of 0 or over the dimension. A missing k, or one that the
  ///          algorithm does not take. Periods of 0; a balance ratio below 1; parameters of a codec;
  ///          Codec::automatic(). unsupported: a number that no algorithm has.
  Allreduce(Group& group, const AllreduceOptions& options);
  Allreduce(Allreduce&& other) noexcept;
  Allreduce& operator=(Allreduce&& other) noexcept;
  ~Allreduce();

  /// Starts the sum of the ranks' vectors. Never blocks on another rank.
  ///
  /// dense    [dimension]; copied. A vector that is moved in is not copied.
  Pending start(std::span<const float> dense);
  Pending start(std::vector<float>&& dense);
  /// Starts the sum of the ranks' entries.
  ///
  /// rest     [dimension] or empty: the values that this rank keeps beside `entries`. An index codec with false
  ///          positives fills the entries that it adds from them (Reduced::added).
  Pending start(SparseEntries entries, std::vector<float> rest = {});

  /// Returns the algorithm that automatic() has chosen, with the time of each candidate. Empty: there is nothing to
  /// choose, it is not chosen yet, or a sum is under way.
  std::string chosen();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peers
}  // namespace v0
}  // namespace millrace
