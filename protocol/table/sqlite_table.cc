#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/table/cluster_notes.h"
#include "protocol/table/job_record.h"
#include "protocol/table/lease_file.h"
#include "protocol/table/membership_table.h"
#include "protocol/table/sqlite_connection.h"
#include "protocol/table/table_rules.h"

/// The membership table as an SQLite file. SQLite's write-ahead log keeps it whole through a kill at any moment. Every
/// write is one BEGIN IMMEDIATE transaction; its lock makes the write a compare-and-swap.
namespace millrace::protocol {
namespace {

constexpr int kOpenWaitMs = static_cast<int>(kTableOpenWaitMs);
constexpr int64_t kApplicationId = 0x4D4C5243;  // "MLRC" in the file's header: no other program's database is touched
/// Raised with every change of the schema (protocol/wire/versions.md). A file of another one is refused: the records of
/// its jobs are others, too.
constexpr int64_t kSchemaVersion = 3;

constexpr const char* kSchema = R"sql(
  CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  INSERT INTO counters VALUES ('changes', 0), ('shard_count', 0), ('last_job', 0), ('identity', 0);
  CREATE TABLE shards (shard INTEGER PRIMARY KEY, address TEXT NOT NULL, life INTEGER NOT NULL,
                       datagrams TEXT NOT NULL, hash INTEGER NOT NULL);
  CREATE TABLE jobs (job INTEGER PRIMARY KEY, name TEXT NOT NULL, epoch INTEGER NOT NULL, finished INTEGER NOT NULL,
                     record BLOB NOT NULL);
  CREATE UNIQUE INDEX open_jobs ON jobs (name) WHERE finished = 0;
)sql";

/// Notes for operators. Their version is kNotesVersion: a build with another one, or none, leaves this table alone, and
/// the schema's version covers the other tables.
constexpr const char* kNotesSchema = "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID";

/// Gives the table an identity that no other one has had.
Status renew_identity(SqliteDatabase& database) {
  SqliteStatement set(database, "UPDATE counters SET value = ? WHERE name = 'identity'");
  if (Status s = set.bind(random_identity()).run(); !s) return s;
  return database.begin_with_identity();
}

/// Refuses files that are not ours, before anything in them is changed.
Status check_owner(SqliteDatabase& database) {
  // Tables first: another process may be creating them and the mark, in one transaction.
  const Result<uint64_t> tables = database.read_integer("SELECT count(*) FROM sqlite_master");
  if (!tables) return std::unexpected(tables.error());
  const Result<uint64_t> owner = database.read_integer("PRAGMA application_id");
  if (!owner) return std::unexpected(owner.error());
  if (*owner != kApplicationId && *tables > 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is the database of another program: name another file for the membership table",
                            database.path()));
  }
  return {};
}

/// Switches to the write-ahead log. The switch does not wait for other processes that switch at the same moment, so it
/// is tried again.
Status switch_to_wal(SqliteDatabase& database) {
  const TimeNs deadline = monotonic_now_ns() + kOpenWaitMs * kNsPerMs;
  for (;;) {
    Status switched = database.execute("PRAGMA journal_mode = WAL");
    if (switched || switched.error().code != ErrorCode::kTimeout || monotonic_now_ns() > deadline) return switched;
    poll(nullptr, 0, 5);
  }
}

Status create_schema(SqliteDatabase& database) {
  SqliteTransaction transaction(database);
  if (Status s = transaction.begin(); !s) return s;
  const Result<uint64_t> version = database.read_integer("PRAGMA user_version");
  if (!version) return std::unexpected(version.error());
  if (*version == kSchemaVersion) {
    const Result<uint64_t> notes = database.read_integer("SELECT count(*) FROM sqlite_master WHERE name = 'notes'");
    if (!notes) return std::unexpected(notes.error());
    if (Status s = database.begin_with_identity(); !s) return s;
    if (*notes != 0) return {};
    if (Status s = database.execute(kNotesSchema); !s) return s;
    return transaction.commit();
  }
  if (*version != 0) {
    return database.fault(ErrorCode::kUnsupported,
                          fmt::format("written by another version of Millrace (schema {}, this build knows {}): name a "
                                      "new file",
                                      *version, kSchemaVersion));
  }
  if (Status s = database.execute(kSchema); !s) return s;
  if (Status s = renew_identity(database); !s) return s;
  if (Status s = database.execute(kNotesSchema); !s) return s;
  const std::string marks =
      fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplicationId, kSchemaVersion);
  if (Status s = database.execute(marks.c_str()); !s) return s;
  return transaction.commit();
}

class SqliteTable : public MembershipTable {
 public:
  SqliteTable(std::string path, uint32_t wait_ms, std::function<TimeNs()> now)
      : leases_(path), database_(std::move(path), LockWaitPolicy(wait_ms), std::move(now)) {}

  Status open() {
    if (Status s = database_.open(); !s) return s;
    if (Status s = check_owner(database_); !s) return s;
    if (Status s = switch_to_wal(database_); !s) return s;
    // A commit is on the disk when it returns: a shard's incarnation must never be given twice, not even after a power
    // cut.
    if (Status s = database_.execute("PRAGMA synchronous = FULL"); !s) return s;
    return create_schema(database_);
  }

  Result<uint64_t> start_shard(uint32_t shard, uint32_t shard_count, std::string_view address,
                               std::string_view datagrams) override {
    if (Status s = check_start_shard(shard, shard_count, address, datagrams); !s) return std::unexpected(s.error());
    // A start that cannot hold its lease must not end the process that has the number.
    if (Status s = leases_.open(); !s) return std::unexpected(s.error());
    database_.wait_for_locks(kOpenWaitMs);
    SqliteTransaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<uint64_t> known = read_shard_count();
    if (!known) return std::unexpected(known.error());
    if (*known == 0) {
      SqliteStatement set(database_, "UPDATE counters SET value = ? WHERE name = 'shard_count'");
      if (Status s = set.bind(shard_count).run(); !s) return std::unexpected(s.error());
    } else if (*known != shard_count) {
      return std::unexpected(shard_count_error(*known, shard_count));
    }
    const Result<ShardEntry> last = read_start(shard);
    if (!last) return std::unexpected(last.error());
    return write_start(shard, {std::string(address), last->incarnation + 1, std::string(datagrams)}, transaction);
  }

  Result<uint64_t> take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                   std::string_view datagrams) override {
    database_.wait_for_locks(kOpenWaitMs);
    SqliteTransaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<uint64_t> count = read_shard_count();
    if (!count) return std::unexpected(count.error());
    const auto shards = static_cast<uint32_t>(std::min<uint64_t>(*count, kShardsMax));
    if (Status s = check_start_shard(shard, shards, address, datagrams); !s) return std::unexpected(s.error());
    const Result<ShardEntry> last = read_start(shard);
    if (!last) return std::unexpected(last.error());
    if (last->incarnation == 0 || last->incarnation != expected) return 0;
    return write_start(shard, {std::string(address), expected + 1, std::string(datagrams)}, transaction);
  }

  Status hold_lease(uint32_t shard, uint64_t) override {
    const Result<bool> held = leases_.hold(shard);
    if (!held) return std::unexpected(held.error());
    if (*held) write_note_once(key_of_lease(shard));
    return {};
  }

  Status hold_spare_lease() override {
    if (const int64_t byte = leases_.held(); byte >= kFirstSpareByte && byte < kFirstLeavingByte) {
      write_note_once(key_of_spare(static_cast<uint64_t>(byte - kFirstSpareByte)));
      return {};
    }
    for (uint32_t spare = 0; spare < kSparesMax; ++spare) {
      const Result<bool> held = leases_.hold(kFirstSpareByte + spare);
      if (!held) return std::unexpected(held.error());
      if (!*held) continue;
      write_note_once(key_of_spare(spare));
      return {};
    }
    return fail(ErrorCode::kLimitExceeded, fmt::format("membership table: {} spares wait already", kSparesMax));
  }

  Status hold_leaving_lease(uint32_t shard, uint64_t) override {
    const Result<bool> held = leases_.hold(kFirstLeavingByte + shard);
    if (!held) return std::unexpected(held.error());
    if (*held) {
      write_note_once(key_of_leaving(shard));
      return {};
    }
    noted_.clear();
    return leases_.release();
  }

  Result<ClusterView> read_cluster() override {
    Result<std::vector<ShardEntry>> map = shard_map();
    if (!map) return std::unexpected(map.error());
    ClusterView view;
    for (uint32_t shard = 0; shard < map->size(); ++shard) {
      Result<bool> held = leases_.is_held(shard);
      if (!held) return std::unexpected(held.error());
      const Result<bool> leaving = leases_.is_held(kFirstLeavingByte + shard);
      if (!leaving) return std::unexpected(leaving.error());
      if (!*held && !*leaving) held = leases_.is_held(shard);  // it may have taken its lease back meanwhile
      if (!held) return std::unexpected(held.error());
      const Result<std::string> process = read_note(*held ? key_of_lease(shard) : key_of_leaving(shard));
      if (!process) return std::unexpected(process.error());
      const Result<std::string> drain = read_note(key_of_drain(shard));
      if (!drain) return std::unexpected(drain.error());
      ClusterView::Shard& seen = view.shards.emplace_back();
      seen.entry = std::move((*map)[shard]);
      seen.held = *held;
      seen.leaving = *leaving;
      if (*held || *leaving) seen.process = decode_process_note(*process);
      seen.drain = decode_drain_note(*drain, seen.entry.incarnation);
    }
    for (uint32_t spare = 0; spare < kSparesMax; ++spare) {
      const Result<bool> held = leases_.is_held(kFirstSpareByte + spare);
      if (!held) return std::unexpected(held.error());
      if (!*held) continue;
      const Result<std::string> process = read_note(key_of_spare(spare));
      if (!process) return std::unexpected(process.error());
      view.spares.push_back(decode_process_note(*process));
    }
    return view;
  }

  Result<bool> set_drain(uint32_t shard, uint64_t incarnation, const std::optional<DrainNote>& note) override {
    database_.wait_by_policy();
    SqliteTransaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<ShardEntry> last = read_start(shard);
    if (!last) return std::unexpected(last.error());
    if (last->incarnation != incarnation) return false;
    if (note) {
      if (Status s = write_note(key_of_drain(shard), encode_drain_note(*note)); !s) return std::unexpected(s.error());
    } else {
      SqliteStatement remove(database_, "DELETE FROM notes WHERE key = ?");
      if (Status s = remove.bind(key_of_drain(shard)).run(); !s) return std::unexpected(s.error());
    }
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return true;
  }

  Result<std::optional<DrainNote>> read_drain(uint32_t shard) override {
    database_.wait_by_policy();
    const Result<ShardEntry> last = read_start(shard);
    if (!last) return std::unexpected(last.error());
    const Result<std::string> note = read_note(key_of_drain(shard));
    if (!note) return std::unexpected(note.error());
    return decode_drain_note(*note, last->incarnation);
  }

  Result<std::vector<ShardEntry>> shard_map() override {
    database_.wait_by_policy();
    // One statement, so that count and rows are of one moment.
    SqliteStatement select(database_,
                           "SELECT c.value, s.shard, s.life, s.address, s.datagrams, s.hash FROM counters c LEFT JOIN "
                           "shards s ON s.shard < c.value WHERE c.name = 'shard_count'");
    std::vector<ShardEntry> shards;
    for (;;) {
      const Result<bool> row = select.step();
      if (!row) return std::unexpected(row.error());
      if (!*row) return shards;
      if (select.integer(0) > kShardsMax)
        return database_.fault(ErrorCode::kMalformed, "its shard count is damaged; name another file");
      if (shards.empty()) shards.resize(select.integer(0));
      if (select.is_null(1)) continue;  // no shard has started
      const uint64_t shard = select.integer(1);
      if (shard >= shards.size()) continue;
      Result<ShardEntry> entry = entry_of(static_cast<uint32_t>(shard), select, 2);
      if (!entry) return std::unexpected(entry.error());
      shards[shard] = std::move(*entry);
    }
  }

  Result<std::optional<JobRecord>> read_job(std::string_view name) override {
    database_.wait_by_policy();
    SqliteStatement select(database_, "SELECT record FROM jobs WHERE name = ? AND finished = 0");
    select.bind(name);
    return read_record(select);
  }

  Result<std::optional<JobRecord>> read_job(uint64_t job) override {
    database_.wait_by_policy();
    SqliteStatement select(database_, "SELECT record FROM jobs WHERE job = ?");
    select.bind(job);
    return read_record(select);
  }

  Result<std::vector<JobRecord>> open_jobs() override {
    database_.wait_by_policy();
    SqliteStatement select(database_, "SELECT record FROM jobs WHERE finished = 0 ORDER BY job");
    std::vector<JobRecord> jobs;
    for (;;) {
      Result<std::optional<JobRecord>> record = read_record(select);
      if (!record) return std::unexpected(record.error());
      if (!*record) return jobs;
      (*record)->spec.clear();
      jobs.push_back(std::move(**record));
    }
  }

  Result<bool> remove_cluster() override {
    database_.wait_for_locks(kOpenWaitMs);
    SqliteTransaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<bool> held = leases_.is_any_held(kFirstLeavingByte + kShardsMax);
    if (!held) return std::unexpected(held.error());
    if (*held) return false;
    if (Status s = database_.execute("DELETE FROM shards; DELETE FROM jobs; DELETE FROM notes; "
                                     "UPDATE counters SET value = 0 WHERE name = 'shard_count'");
        !s)
      return std::unexpected(s.error());
    // A process that was stopped meanwhile knows by it that the cluster was removed.
    const Status renewed = renew_identity(database_);
    const Status committed = renewed ? transaction.commit() : renewed;
    if (committed) return true;
    transaction.roll_back();
    if (Status s = database_.begin_with_identity(); !s) return std::unexpected(s.error());
    return std::unexpected(committed.error());
  }

  Result<JobRecord> create_job(std::string_view name, ByteSpan spec, Path path) override {
    if (Status s = check_create_job(name, spec); !s) return std::unexpected(s.error());
    database_.wait_by_policy();
    SqliteTransaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    Result<std::optional<JobRecord>> open = read_job(name);
    if (!open) return std::unexpected(open.error());
    if (*open) return std::move(**open);
    const Result<uint64_t> last = database_.read_integer("SELECT value FROM counters WHERE name = 'last_job'");
    if (!last) return std::unexpected(last.error());
    Result<std::vector<ShardEntry>> shards = shard_map();
    if (!shards) return std::unexpected(shards.error());
    const Result<uint64_t> number = draw_job_number(*last + 1);
    if (!number) return std::unexpected(number.error());
    JobRecord record = new_job_record(name, spec, path, *number, std::move(*shards));
    SqliteStatement insert(database_, "INSERT INTO jobs VALUES (?, ?, ?, 0, ?)");
    const ByteBuffer bytes = encode_job_record(record);
    insert.bind(record.membership.job).bind(name).bind(record.membership.epoch).bind(ByteSpan(bytes));
    if (Status s = insert.run(); !s) return std::unexpected(s.error());
    if (Status s = database_.execute("UPDATE counters SET value = value + 1 WHERE name = 'last_job'"); !s) {
      return std::unexpected(s.error());
    }
    SqliteStatement prune(database_, "DELETE FROM jobs WHERE finished = 1 AND job < ?");
    if (Status s = prune.bind(first_kept_job(*last + 1)).run(); !s) return std::unexpected(s.error());
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return record;
  }

  Result<bool> compare_and_swap(uint64_t expected_epoch, const JobRecord& next) override {
    MILLRACE_CHECK(next.membership.epoch == expected_epoch + 1, next.membership.epoch, expected_epoch);
    database_.wait_by_policy();
    SqliteTransaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    {
      SqliteStatement select(database_, "SELECT epoch FROM jobs WHERE job = ?");
      const Result<bool> row = select.bind(next.membership.job).step();
      if (!row) return std::unexpected(row.error());
      if (!*row) return std::unexpected(unknown_job_error(next.membership.job));
      if (select.integer(0) != expected_epoch) return false;
    }
    const ByteBuffer bytes = encode_job_record(next);
    SqliteStatement update(database_, "UPDATE jobs SET epoch = ?, finished = ?, record = ? WHERE job = ?");
    update.bind(next.membership.epoch)
        .bind(uint64_t{next.membership.finished})
        .bind(ByteSpan(bytes))
        .bind(next.membership.job);
    if (Status s = update.run(); !s) return std::unexpected(s.error());
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return true;
  }

  Result<uint64_t> change_counter() override {
    database_.wait_by_policy();
    return database_.check_table();
  }

 private:
  Result<uint64_t> read_shard_count() {
    return database_.read_integer("SELECT value FROM counters WHERE name = 'shard_count'");
  }

  static Result<std::optional<JobRecord>> read_record(SqliteStatement& select) {
    const Result<bool> row = select.step();
    if (!row) return std::unexpected(row.error());
    if (!*row) return std::optional<JobRecord>();
    Result<JobRecord> record = decode_job_record(select.blob(0));
    if (!record) return std::unexpected(record.error());
    return std::optional(std::move(*record));
  }

  /// Returns the last start of the shard; incarnation 0: there was none.
  Result<ShardEntry> read_start(uint32_t shard) {
    SqliteStatement select(database_, "SELECT life, address, datagrams, hash FROM shards WHERE shard = ?");
    const Result<bool> row = select.bind(shard).step();
    if (!row) return std::unexpected(row.error());
    return *row ? entry_of(shard, select, 0) : ShardEntry();
  }

  /// Reads life, address, datagrams and hash from the columns that begin with `first`.
  Result<ShardEntry> entry_of(uint32_t shard, const SqliteStatement& row, int first) const {
    ShardEntry entry{std::string(text_of(row.blob(first + 1))), row.integer(first),
                     std::string(text_of(row.blob(first + 2)))};
    if (row.integer(first + 3) == hash_of_start(shard, entry)) return entry;
    return database_.fault(ErrorCode::kMalformed,
                           fmt::format("its row of shard {} is damaged; name another file for the table", shard));
  }

  Result<uint64_t> write_start(uint32_t shard, const ShardEntry& start, SqliteTransaction& transaction) {
    SqliteStatement write(database_,
                          "INSERT INTO shards (shard, address, life, datagrams, hash) VALUES (?, ?, ?, ?, ?) "
                          "ON CONFLICT (shard) DO UPDATE SET address = excluded.address, life = excluded.life, "
                          "datagrams = excluded.datagrams, hash = excluded.hash");
    write.bind(shard).bind(start.address).bind(start.incarnation).bind(start.datagrams);
    if (Status s = write.bind(hash_of_start(shard, start)).run(); !s) return std::unexpected(s.error());
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return start.incarnation;
  }

  /// Returns the note; empty: there is none.
  Result<std::string> read_note(std::string_view key) {
    SqliteStatement select(database_, "SELECT value FROM notes WHERE key = ?");
    const Result<bool> row = select.bind(key).step();
    if (!row) return std::unexpected(row.error());
    return *row ? std::string(text_of(select.blob(0))) : std::string();
  }

  Status write_note(std::string_view key, std::string_view value) {
    SqliteStatement write(database_,
                          "INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value");
    return write.bind(key).bind(value).run();
  }

  /// Writes this process's note beside its lease, unless it is there. A lease is held without a note, too: where the
  /// write fails, the next call tries again.
  void write_note_once(const std::string& key) {
    if (noted_ == key) return;
    database_.wait_by_policy();
    if (write_note(key, encode_process_note(note_))) noted_ = key;
  }

  /// Bytes of the leases: shards by number, the spares that wait, shards that leave their number.
  static constexpr uint32_t kFirstSpareByte = kShardsMax;
  static constexpr uint32_t kFirstLeavingByte = kFirstSpareByte + kSparesMax;

  LeaseFile leases_;
  std::string noted_;  ///< key of the last lease whose note is written
  SqliteDatabase database_;
};

}  // namespace

Result<std::unique_ptr<MembershipTable>> open_sqlite_table(const std::string& path, uint32_t wait_ms,
                                                           std::function<TimeNs()> now) {
  auto table = std::make_unique<SqliteTable>(path, wait_ms, std::move(now));
  if (Status opened = table->open(); !opened) return std::unexpected(opened.error());
  return table;
}

}  // namespace millrace::protocol
