#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
};

/// The linearizable table of membership: one machine's SQLite file, etcd between machines, in-memory for tests. Every
/// change of a job is one compare-and-swap on its epoch and raises it.
///
/// Threads  one object a thread; several objects, and processes, may share one table. An object does not survive
///          fork().
/// Errors   io: the file or the server refuses. timeout: another process holds the lock, or etcd does not answer.
///          malformed, unsupported: a record that is damaged or of another version. A write that reports timeout may
///          have taken effect: the caller reads again. Nothing has changed when a write reports another error.
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

  /// Holds the shard's lease for this start, until this object ends or is not called for a second. Waits for no server.
  /// While an earlier process has the lease, it stays with that process. Called again and again.
  virtual Status hold_lease(uint32_t shard, uint64_t incarnation) = 0;

  /// Returns for each shard of the map whether some process holds its lease. A process that is killed loses it: at once
  /// where the table is a file, after kEtcdLeaseSeconds in etcd.
  virtual Result<std::vector<bool>> held_leases() = 0;

  /// Reads the shard map; entries of shards that never started are empty.
  virtual Result<std::vector<ShardEntry>> shard_map() = 0;

  /// Reads the job of that name that is not finished, if any.
  virtual Result<std::optional<JobRecord>> read_job(std::string_view name) = 0;
  /// Reads the job of that number, finished or not (the last 1,000 finished jobs are kept). A finished job may come
  /// without its specification.
  virtual Result<std::optional<JobRecord>> read_job(uint64_t job) = 0;

  /// Creates a job (new number, epoch 1, no members, the current shard map, the path of its specification) unless one
  /// of that name is open. Then returns the open one: the first creator wins, and the caller compares specifications.
  virtual Result<JobRecord> create_job(std::string_view name, ByteSpan spec, Path path) = 0;
  Result<JobRecord> create_job(std::string_view name, ByteSpan spec) { return create_job(name, spec, Path::kServer); }

  /// Replaces the record iff its epoch is `expected_epoch`. The new record must carry expected_epoch + 1.
  /// Returns true: swapped; false: another process was faster (read again).
  /// Errors  invalid_argument: no such job.
  virtual Result<bool> compare_and_swap(uint64_t expected_epoch, const JobRecord& next) = 0;

  /// Returns a counter that grows with every change of the table.
  virtual Result<uint64_t> change_counter() = 0;

  /// Returns a counter as change_counter() did a short time ago, without waiting for a server. For polls.
  /// Errors  timeout: its age is not known to be short.
  virtual Result<uint64_t> polled_change_counter() { return change_counter(); }
};

/// The lease in etcd; etcd grants none that is shorter, with its default times of election.
inline constexpr int64_t kEtcdLeaseSeconds = 2;

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
