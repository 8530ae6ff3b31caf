#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// A job as the membership table keeps it.
struct JobRecord {
  std::string name;
  Membership membership;
  ByteBuffer spec;  ///< encode_job_spec
  std::vector<std::pair<uint32_t, uint64_t>>
      last_incarnations;        ///< the incarnation last given to a worker, members or not
  bool workers_rejoin = false;  ///< a member's first Hello asked to return: its processes do when they are restarted
  /// A finished job's reason, for processes that ask for it. Empty: all its workers have finished.
  std::string end_reason = {};
  /// The code of that reason: every shard aborts the members that are left with it.
  ErrorCode end_code = ErrorCode::kUnavailable;
  /// R10f: how far the members had come that left as finished, by shard: the greatest of each number. Zeros, or no
  /// entry: nothing is known of that shard. Empty also where the job has ended.
  std::vector<LogReach> finished = {};
  /// Name of the key whose Hello opened the job: its quotas hold for the job on all shards. Empty: without keys.
  std::string opened_by = {};
};

/// A process of the cluster, as it describes itself to operators. No decision depends on it.
struct ProcessNote {
  std::string address;   ///< for workers and shards
  std::string http;      ///< "host:port" of its HTTP port; empty: it has none
  std::string software;  ///< its version
  bool operator==(const ProcessNote&) const = default;
};

/// An operator's request that a shard's process leaves its number to a spare.
struct DrainNote {
  uint64_t incarnation = 0;  ///< of the process that is asked; another start ignores the request
  std::string refusal;       ///< why that process keeps its number; empty: it has not refused
  bool operator==(const DrainNote&) const = default;
};

/// The processes of a cluster, as the table shows them at one moment.
struct ClusterView {
  struct Shard {
    ShardEntry entry;                ///< incarnation 0: it never started
    bool held = false;               ///< some process holds its lease
    ProcessNote process;             ///< of that process; empty: it said nothing, or in another version's words
    std::optional<DrainNote> drain;  ///< of its last start
    bool leaving = false;  ///< a process that has granted a drain lives; without `held`, `process` is its note

    enum class State : uint8_t { kNeverStarted, kGone, kDraining, kServes };
    /// A process that grants a drain gives its lease back, holds `leaving`, and serves until a spare has its number.
    State state() const {
      if (entry.incarnation == 0) return State::kNeverStarted;
      if (!held && !leaving) return State::kGone;
      const bool is_asked = drain && drain->refusal.empty();
      return held && !is_asked ? State::kServes : State::kDraining;
    }
    bool has_process() const { return state() == State::kServes || state() == State::kDraining; }
  };
  std::vector<Shard> shards;
  std::vector<ProcessNote> spares;  ///< that wait
};

/// The linearizable table of membership: one machine's SQLite file, etcd between machines, in-memory for tests. Every
/// change of a job is one compare-and-swap on its epoch and raises it.
///
/// Threads  one object a thread; several objects, and processes, may share one table. An object does not survive
///          fork().
/// Errors   io: the file or the server refuses. timeout: another process holds the lock, or etcd does not answer.
///          malformed, unsupported: a record that is damaged or of another version. conflict, of writes and of the
///          change counter: the table is not the one that this object opened. stale, of these too: it is an older copy
///          of that one. A write that reports timeout may have taken effect: the caller reads again. Nothing has
///          changed when a write reports another error.
class MembershipTable {
 public:
  virtual ~MembershipTable() = default;

  /// Registers a start of shard `shard` at `address` and returns its incarnation (1, 2, ...). `datagrams`: "host:port"
  /// of its aggregator of datagrams; empty: it has none.
  /// Errors  shard_map_mismatch: another shard_count than the table's. conflict: a live shard that already holds this
  ///         number is not detected here; its incarnation is old from now on.
  virtual Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                                       std::string_view datagrams) = 0;
  Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address) {
    return start_shard(shard, shard_count, address, {});
  }

  /// Registers a start of the shard as start_shard() does, iff its last start is `expected`. Returns 0: another process
  /// was faster. Errors  as start_shard().
  virtual Result<uint64_t> take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                           std::string_view datagrams) = 0;

  /// Takes the note about this process that is written beside the leases of this object.
  void introduce(ProcessNote note) { note_ = std::move(note); }

  /// Holds the shard's lease for this start, until this object ends, or until it is not called for a second. Waits for
  /// no server. While an earlier process has the lease, it stays with that process. Called again and again. Another
  /// lease that this object holds ends.
  virtual Status hold_lease(uint32_t shard, uint64_t incarnation) = 0;

  /// Holds the lease of a spare that waits, in the same way. Errors  limit_exceeded: kSparesMax others wait
  /// beside a file.
  virtual Status hold_spare_lease() = 0;

  /// Gives the shard's lease back, and holds one in the same way which says only that this process lives. Where an
  /// earlier process of the shard holds such a lease, this one has none.
  virtual Status hold_leaving_lease(uint32_t shard, uint64_t incarnation) = 0;

  /// Reads the processes of the cluster. A process that is killed loses its lease: at once where the table is a file,
  /// after kEtcdLeaseSeconds in etcd.
  virtual Result<ClusterView> read_cluster() = 0;

  /// Writes the request, or the answer, about the shard's last start iff that start is `incarnation`. An empty note
  /// withdraws the request. Returns false: another process has started, and nothing has changed.
  virtual Result<bool> set_drain(uint32_t shard, uint64_t incarnation, const std::optional<DrainNote>& note) = 0;

  /// Reads the request about the shard's last start, if there is one.
  virtual Result<std::optional<DrainNote>> read_drain(uint32_t shard) = 0;

  /// Reads the shard map; entries of shards that never started are empty.
  virtual Result<std::vector<ShardEntry>> shard_map() = 0;

  /// Reads the job of that name that is not finished, if any.
  virtual Result<std::optional<JobRecord>> read_job(std::string_view name) = 0;
  /// Reads the job of that number, finished or not (the last 1,000 finished jobs are kept). A finished job may come
  /// without its specification.
  virtual Result<std::optional<JobRecord>> read_job(uint64_t job) = 0;

  /// Reads all jobs that are not finished, by number, without their specifications.
  virtual Result<std::vector<JobRecord>> open_jobs() = 0;

  /// Creates a job (new number, epoch 1, no members, the current shard map, the path of its specification) unless one
  /// of that name is open. Then returns the open one: the first creator wins, and the caller compares specifications.
  virtual Result<JobRecord> create_job(std::string_view name, ByteSpan spec, Path path) = 0;
  Result<JobRecord> create_job(std::string_view name, ByteSpan spec) { return create_job(name, spec, Path::kServer); }

  /// Replaces the record iff its epoch is `expected_epoch`. The new record must carry expected_epoch + 1.
  /// Returns true: swapped; false: another process was faster (read again).
  /// Errors  invalid_argument: no such job.
  virtual Result<bool> compare_and_swap(uint64_t expected_epoch, const JobRecord& next) = 0;

  /// Forgets the shard map and all jobs, so that the next cluster may have another number of shards. Numbers of jobs
  /// are not given again. The table is another one from then on, except to this object. Returns false, and changes
  /// nothing: some process holds a lease.
  virtual Result<bool> remove_cluster() = 0;

  /// Returns a counter that grows with every change of the table.
  virtual Result<uint64_t> change_counter() = 0;

  /// Returns a counter as change_counter() did a short time ago, without waiting for a server. For polls.
  /// Errors  timeout: its age is not known to be short.
  virtual Result<uint64_t> polled_change_counter() { return change_counter(); }

 protected:
  ProcessNote note_;
};

/// The lease in etcd; etcd grants none that is shorter, with its default times of election.
inline constexpr int64_t kEtcdLeaseSeconds = 2;

/// Most spares that may wait beside a table in a file.
inline constexpr uint32_t kSparesMax = 64;

/// How long opening a table, and start_shard(), wait for another process's lock.
inline constexpr uint32_t kTableOpenWaitMs = 5'000;

/// Opens an SQLite file (created if absent), WAL.
///
/// wait_ms  how long calls other than opening and start_shard() wait for another process's lock. After three waits in
///          vain, no call waits for ten times as long (lock_wait_policy.h). So a process that stopped during a write
///          delays a caller by three times wait_ms. After that it costs at most wait_ms in any eleven times wait_ms.
///          The disk's time for a sync is not included.
/// now      the clock of those ten times.
Result<std::unique_ptr<MembershipTable>> open_sqlite_table(const std::string& path, uint32_t wait_ms = kTableOpenWaitMs,
                                                           std::function<TimeNs()> now = monotonic_now_ns);

}  // namespace millrace::protocol
