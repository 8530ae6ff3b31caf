#include <fmt/format.h>
#include <poll.h>
#include <sqlite3.h>

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
#include "protocol/table/lock_wait_policy.h"
#include "protocol/table/membership_table.h"
#include "protocol/table/table_rules.h"

/// The membership table as an SQLite file. SQLite's write-ahead log keeps it whole through a kill at any moment. Every
/// write is one BEGIN IMMEDIATE transaction; its lock makes the write a compare-and-swap.
namespace millrace::protocol {
namespace {

constexpr int kOpenWaitMs = static_cast<int>(kTableOpenWaitMs);
constexpr int64_t kApplicationId = 0x4D4C5243;  // "MLRC" in the file's header: no other program's database is touched
/// Raised with every change of the schema (protocol/wire/versions.md). A file of another one is refused: the records of
/// its jobs are others, too.
constexpr int64_t kSchemaVersion = 2;

constexpr const char* kSchema = R"sql(
  CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  INSERT INTO counters VALUES ('changes', 0), ('shard_count', 0), ('last_job', 0);
  CREATE TABLE shards (shard INTEGER PRIMARY KEY, address TEXT NOT NULL, life INTEGER NOT NULL,
                       datagrams TEXT NOT NULL);
  CREATE TABLE jobs (job INTEGER PRIMARY KEY, name TEXT NOT NULL, epoch INTEGER NOT NULL, finished INTEGER NOT NULL,
                     record BLOB NOT NULL);
  CREATE UNIQUE INDEX open_jobs ON jobs (name) WHERE finished = 0;
)sql";

/// Notes for operators. Their version is kNotesVersion: a build with another one, or none, leaves this table alone, and
/// the schema's version covers the other tables.
constexpr const char* kNotesSchema = "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID";

/// Returns the remedy for SQLite's commonest errors about a file.
const char* advice(int primary_code) {
  switch (primary_code) {
    case SQLITE_CANTOPEN: return "; name a file in a folder that exists and can be written";
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: return "; name another file for the membership table";
    default: return "";
  }
}

/// A connection to the file. Its errors name the file.
class Database {
 public:
  Database(std::string path, LockWaitPolicy patience, std::function<TimeNs()> now)
      : path_(std::move(path)), wait_policy_(patience), now_(std::move(now)) {}
  ~Database() { sqlite3_close_v2(handle_); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  Status open() {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (const int rc = sqlite3_open_v2(path_.c_str(), &handle_, flags, nullptr); rc != SQLITE_OK) return error(rc);
    wait_for_locks(kOpenWaitMs);
    return {};
  }

  /// Sets how long statements wait for another process's lock from now on.
  void wait_for_locks(int wait_ms) {
    if (std::exchange(wait_ms_, wait_ms) != wait_ms) sqlite3_busy_timeout(handle_, wait_ms);
  }
  /// Sets the wait that the lock wait policy gives now.
  void wait_by_policy() { wait_for_locks(static_cast<int>(wait_policy_.wait_ms(now_()))); }
  void had_the_lock() { wait_policy_.had_it(); }

  Status execute(const char* sql) {
    const int rc = sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr);
    return rc == SQLITE_OK ? Status() : Status(error(rc));
  }

  std::unexpected<Error> error(int rc) {
    const int primary = rc & 0xFF;  // the rest of an extended code is the place, which the message names as well
    if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED) {
      if (wait_ms_ > 0) wait_policy_.waited_in_vain(now_());
      return fail(ErrorCode::kTimeout,
                  fmt::format("membership table {}: another process holds its lock (waited {} ms)", path_, wait_ms_));
    }
    const char* what = handle_ == nullptr ? sqlite3_errstr(rc) : sqlite3_errmsg(handle_);
    const bool damaged = primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT;
    return fail(damaged ? ErrorCode::kMalformed : ErrorCode::kIo,
                fmt::format("membership table {}: {}{}", path_, what, advice(primary)));
  }

  sqlite3* handle() const { return handle_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  sqlite3* handle_ = nullptr;
  int wait_ms_ = -1;
  LockWaitPolicy wait_policy_;
  std::function<TimeNs()> now_;
};

/// One statement, prepared and bound; a failure is kept and comes out of step().
class Statement {
 public:
  Statement(Database& database, const char* sql) : database_(database) {
    rc_ = sqlite3_prepare_v2(database.handle(), sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(uint64_t value) { return bound(sqlite3_bind_int64(statement_, next_, static_cast<int64_t>(value))); }
  Statement& bind(std::string_view text) {
    // No pointer would be SQL's NULL, not the empty text.
    const char* data = text.empty() ? "" : text.data();
    return bound(sqlite3_bind_text64(statement_, next_, data, text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  Statement& bind(ByteSpan blob) {
    return bound(sqlite3_bind_blob64(statement_, next_, blob.data(), blob.size(), SQLITE_TRANSIENT));
  }

  /// Steps the statement. True: a row is there; false: done.
  Result<bool> step() {
    if (rc_ == SQLITE_OK) rc_ = sqlite3_step(statement_);
    const int rc = std::exchange(rc_, SQLITE_OK);
    if (rc == SQLITE_ROW) return true;
    if (rc == SQLITE_DONE) return false;
    return database_.error(rc);
  }
  /// Runs a statement without rows.
  Status run() {
    const Result<bool> stepped = step();
    return stepped ? Status() : Status(std::unexpected(stepped.error()));
  }

  // Columns of the current row; valid until the next step.
  uint64_t integer(int column) const { return static_cast<uint64_t>(sqlite3_column_int64(statement_, column)); }
  ByteSpan blob(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    return {static_cast<const uint8_t*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  Statement& bound(int rc) {
    if (rc_ == SQLITE_OK) rc_ = rc;
    ++next_;
    return *this;
  }

  Database& database_;
  sqlite3_stmt* statement_ = nullptr;
  int rc_ = SQLITE_OK;
  int next_ = 1;
};

/// BEGIN IMMEDIATE ... COMMIT; rolled back unless committed.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) {}
  ~Transaction() {
    if (open_) sqlite3_exec(database_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  Status begin() {
    Status begun = database_.execute("BEGIN IMMEDIATE");
    open_ = begun.has_value();
    if (open_) database_.had_the_lock();  // reads show nothing: they continue beside the lock's holder
    return begun;
  }
  /// Counts the change and commits.
  Status commit() {
    if (Status s = database_.execute("UPDATE counters SET value = value + 1 WHERE name = 'changes'"); !s) return s;
    Status committed = database_.execute("COMMIT");
    open_ = !committed.has_value();
    return committed;
  }

 private:
  Database& database_;
  bool open_ = false;
};

Result<uint64_t> read_integer(Database& database, const char* sql) {
  Statement statement(database, sql);
  const Result<bool> row = statement.step();
  if (!row) return std::unexpected(row.error());
  return *row ? statement.integer(0) : 0;
}

/// Refuses files that are not ours, before anything in them is changed.
Status check_owner(Database& database) {
  // Tables first: another process may be creating them and the mark, in one transaction.
  const Result<uint64_t> tables = read_integer(database, "SELECT count(*) FROM sqlite_master");
  if (!tables) return std::unexpected(tables.error());
  const Result<uint64_t> owner = read_integer(database, "PRAGMA application_id");
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
Status switch_to_wal(Database& database) {
  const TimeNs deadline = monotonic_now_ns() + kOpenWaitMs * kNsPerMs;
  for (;;) {
    Status switched = database.execute("PRAGMA journal_mode = WAL");
    if (switched || switched.error().code != ErrorCode::kTimeout || monotonic_now_ns() > deadline) return switched;
    poll(nullptr, 0, 5);
  }
}

Status create_schema(Database& database) {
  Transaction transaction(database);
  if (Status s = transaction.begin(); !s) return s;
  const Result<uint64_t> version = read_integer(database, "PRAGMA user_version");
  if (!version) return std::unexpected(version.error());
  if (*version == kSchemaVersion) {
    const Result<uint64_t> notes = read_integer(database, "SELECT count(*) FROM sqlite_master WHERE name = 'notes'");
    if (!notes) return std::unexpected(notes.error());
    if (*notes != 0) return {};
    if (Status s = database.execute(kNotesSchema); !s) return s;
    return transaction.commit();
  }
  if (*version != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("membership table {}: written by another version of Millrace (schema {}, "
                            "this build knows {}): name a new file",
                            database.path(), *version, kSchemaVersion));
  }
  if (Status s = database.execute(kSchema); !s) return s;
  if (Status s = database.execute(kNotesSchema); !s) return s;
  const std::string marks =
      fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplicationId, kSchemaVersion);
  if (Status s = database.execute(marks.c_str()); !s) return s;
  return transaction.commit();
}

class SqliteTable : public MembershipTable {
 public:
  SqliteTable(std::string path, uint32_t wait_ms, std::function<TimeNs()> now)
      : leases_(path + "-leases"), database_(std::move(path), LockWaitPolicy(wait_ms), std::move(now)) {}

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
    database_.wait_for_locks(kOpenWaitMs);
    Transaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<uint64_t> known = read_shard_count();
    if (!known) return std::unexpected(known.error());
    if (*known == 0) {
      Statement set(database_, "UPDATE counters SET value = ? WHERE name = 'shard_count'");
      if (Status s = set.bind(shard_count).run(); !s) return std::unexpected(s.error());
    } else if (*known != shard_count) {
      return std::unexpected(shard_count_error(*known, shard_count));
    }
    Statement insert(database_,
                     "INSERT INTO shards (shard, address, datagrams, life) VALUES (?, ?, ?, 1) "
                     "ON CONFLICT (shard) DO UPDATE SET address = excluded.address, datagrams = excluded.datagrams, "
                     "life = life + 1 RETURNING life");
    const Result<bool> row = insert.bind(shard).bind(address).bind(datagrams).step();
    if (!row) return std::unexpected(row.error());
    const uint64_t incarnation = insert.integer(0);
    if (Status s = insert.run(); !s)
      return std::unexpected(s.error());  // to the end: an open statement holds up the commit
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return incarnation;
  }

  Result<uint64_t> take_over_shard(uint32_t shard, uint64_t expected, std::string_view address,
                                   std::string_view datagrams) override {
    database_.wait_for_locks(kOpenWaitMs);
    Transaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<uint64_t> count = read_shard_count();
    if (!count) return std::unexpected(count.error());
    const auto shards = static_cast<uint32_t>(std::min<uint64_t>(*count, kShardsMax));
    if (Status s = check_start_shard(shard, shards, address, datagrams); !s) return std::unexpected(s.error());
    Statement update(database_,
                     "UPDATE shards SET address = ?, datagrams = ?, life = life + 1 WHERE shard = ? AND life = ? "
                     "RETURNING life");
    const Result<bool> row = update.bind(address).bind(datagrams).bind(shard).bind(expected).step();
    if (!row) return std::unexpected(row.error());
    if (!*row) return 0;
    const uint64_t incarnation = update.integer(0);
    if (Status s = update.run(); !s) return std::unexpected(s.error());
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return incarnation;
  }

  Status hold_lease(uint32_t shard, uint64_t) override {
    const Result<bool> held = leases_.hold(shard);
    if (!held) return std::unexpected(held.error());
    return *held ? write_note_once(key_of_lease(shard)) : Status();
  }

  Status hold_spare_lease() override {
    if (const int64_t byte = leases_.held(); byte >= kFirstSpareByte)
      return write_note_once(key_of_spare(static_cast<uint64_t>(byte - kFirstSpareByte)));
    for (uint32_t spare = 0; spare < kSparesMax; ++spare) {
      const Result<bool> held = leases_.hold(kFirstSpareByte + spare);
      if (!held) return std::unexpected(held.error());
      if (*held) return write_note_once(key_of_spare(spare));
    }
    return fail(ErrorCode::kLimitExceeded, fmt::format("membership table: {} spares wait already", kSparesMax));
  }

  Status release_lease() override {
    noted_.clear();
    return leases_.release();
  }

  Result<ClusterView> read_cluster() override {
    Result<std::vector<ShardEntry>> map = shard_map();
    if (!map) return std::unexpected(map.error());
    ClusterView view;
    for (uint32_t shard = 0; shard < map->size(); ++shard) {
      const Result<bool> held = leases_.is_held(shard);
      if (!held) return std::unexpected(held.error());
      const Result<std::string> process = read_note(key_of_lease(shard));
      if (!process) return std::unexpected(process.error());
      const Result<std::string> drain = read_note(key_of_drain(shard));
      if (!drain) return std::unexpected(drain.error());
      const uint64_t incarnation = (*map)[shard].incarnation;
      view.shards.push_back({std::move((*map)[shard]), *held, *held ? decode_process_note(*process) : ProcessNote{},
                             decode_drain_note(*drain, incarnation)});
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
    Transaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    const Result<uint64_t> last = read_start(shard);
    if (!last) return std::unexpected(last.error());
    if (*last != incarnation) return false;
    if (note) {
      if (Status s = write_note(key_of_drain(shard), encode_drain_note(*note)); !s) return std::unexpected(s.error());
    } else {
      Statement remove(database_, "DELETE FROM notes WHERE key = ?");
      if (Status s = remove.bind(key_of_drain(shard)).run(); !s) return std::unexpected(s.error());
    }
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return true;
  }

  Result<std::optional<DrainNote>> read_drain(uint32_t shard) override {
    database_.wait_by_policy();
    const Result<uint64_t> last = read_start(shard);
    if (!last) return std::unexpected(last.error());
    const Result<std::string> note = read_note(key_of_drain(shard));
    if (!note) return std::unexpected(note.error());
    return decode_drain_note(*note, *last);
  }

  Result<std::vector<ShardEntry>> shard_map() override {
    database_.wait_by_policy();
    // One statement, so that count and rows are of one moment.
    Statement select(database_,
                     "SELECT c.value, s.shard, s.life, s.address, s.datagrams FROM counters c LEFT JOIN shards s ON "
                     "s.shard < c.value "
                     "WHERE c.name = 'shard_count'");
    std::vector<ShardEntry> shards;
    for (;;) {
      const Result<bool> row = select.step();
      if (!row) return std::unexpected(row.error());
      if (!*row) return shards;
      if (select.integer(0) > kShardsMax)
        return fail(ErrorCode::kMalformed, "membership table: its shard count is damaged");
      if (shards.empty()) shards.resize(select.integer(0));
      const uint64_t shard = select.integer(1);
      if (shard >= shards.size()) continue;
      shards[shard] = {std::string(text_of(select.blob(3))), select.integer(2), std::string(text_of(select.blob(4)))};
    }
  }

  Result<std::optional<JobRecord>> read_job(std::string_view name) override {
    database_.wait_by_policy();
    Statement select(database_, "SELECT record FROM jobs WHERE name = ? AND finished = 0");
    select.bind(name);
    return read_record(select);
  }

  Result<std::optional<JobRecord>> read_job(uint64_t job) override {
    database_.wait_by_policy();
    Statement select(database_, "SELECT record FROM jobs WHERE job = ?");
    select.bind(job);
    return read_record(select);
  }

  Result<std::vector<JobRecord>> open_jobs() override {
    database_.wait_by_policy();
    Statement select(database_, "SELECT record FROM jobs WHERE finished = 0 ORDER BY job");
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
    Transaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    for (uint32_t byte = 0; byte < kFirstSpareByte + kSparesMax; ++byte) {
      const Result<bool> held = leases_.is_held(byte);
      if (!held) return std::unexpected(held.error());
      if (*held) return false;
    }
    if (Status s = database_.execute("DELETE FROM shards; DELETE FROM jobs; DELETE FROM notes; "
                                     "UPDATE counters SET value = 0 WHERE name = 'shard_count'");
        !s)
      return std::unexpected(s.error());
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return true;
  }

  Result<JobRecord> create_job(std::string_view name, ByteSpan spec, Path path) override {
    if (Status s = check_create_job(name, spec); !s) return std::unexpected(s.error());
    database_.wait_by_policy();
    Transaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    Result<std::optional<JobRecord>> open = read_job(name);
    if (!open) return std::unexpected(open.error());
    if (*open) return std::move(**open);
    const Result<uint64_t> last = read_integer(database_, "SELECT value FROM counters WHERE name = 'last_job'");
    if (!last) return std::unexpected(last.error());
    Result<std::vector<ShardEntry>> shards = shard_map();
    if (!shards) return std::unexpected(shards.error());
    JobRecord record = new_job_record(name, spec, path, *last + 1, std::move(*shards));
    Statement insert(database_, "INSERT INTO jobs VALUES (?, ?, ?, 0, ?)");
    const ByteBuffer bytes = encode_job_record(record);
    insert.bind(record.membership.job).bind(name).bind(record.membership.epoch).bind(ByteSpan(bytes));
    if (Status s = insert.run(); !s) return std::unexpected(s.error());
    if (Status s = database_.execute("UPDATE counters SET value = value + 1 WHERE name = 'last_job'"); !s) {
      return std::unexpected(s.error());
    }
    Statement prune(database_, "DELETE FROM jobs WHERE finished = 1 AND job + ? < ?");
    if (Status s = prune.bind(kFinishedJobsKept).bind(record.membership.job).run(); !s)
      return std::unexpected(s.error());
    if (Status s = transaction.commit(); !s) return std::unexpected(s.error());
    return record;
  }

  Result<bool> compare_and_swap(uint64_t expected_epoch, const JobRecord& next) override {
    MILLRACE_CHECK(next.membership.epoch == expected_epoch + 1, next.membership.epoch, expected_epoch);
    database_.wait_by_policy();
    Transaction transaction(database_);
    if (Status s = transaction.begin(); !s) return std::unexpected(s.error());
    {
      Statement select(database_, "SELECT epoch FROM jobs WHERE job = ?");
      const Result<bool> row = select.bind(next.membership.job).step();
      if (!row) return std::unexpected(row.error());
      if (!*row) return std::unexpected(unknown_job_error(next.membership.job));
      if (select.integer(0) != expected_epoch) return false;
    }
    const ByteBuffer bytes = encode_job_record(next);
    Statement update(database_, "UPDATE jobs SET epoch = ?, finished = ?, record = ? WHERE job = ?");
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
    return read_integer(database_, "SELECT value FROM counters WHERE name = 'changes'");
  }

 private:
  Result<uint64_t> read_shard_count() {
    return read_integer(database_, "SELECT value FROM counters WHERE name = 'shard_count'");
  }

  static Result<std::optional<JobRecord>> read_record(Statement& select) {
    const Result<bool> row = select.step();
    if (!row) return std::unexpected(row.error());
    if (!*row) return std::optional<JobRecord>();
    Result<JobRecord> record = decode_job_record(select.blob(0));
    if (!record) return std::unexpected(record.error());
    return std::optional(std::move(*record));
  }

  /// Returns the last start of the shard; 0: there was none.
  Result<uint64_t> read_start(uint32_t shard) {
    Statement select(database_, "SELECT life FROM shards WHERE shard = ?");
    const Result<bool> row = select.bind(shard).step();
    if (!row) return std::unexpected(row.error());
    return *row ? select.integer(0) : 0;
  }

  /// Returns the note; empty: there is none.
  Result<std::string> read_note(std::string_view key) {
    Statement select(database_, "SELECT value FROM notes WHERE key = ?");
    const Result<bool> row = select.bind(key).step();
    if (!row) return std::unexpected(row.error());
    return *row ? std::string(text_of(select.blob(0))) : std::string();
  }

  Status write_note(std::string_view key, std::string_view value) {
    Statement write(database_,
                    "INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value");
    return write.bind(key).bind(value).run();
  }

  /// Writes this process's note beside its lease, unless it is there. Where another process has the lock, the next call
  /// writes it.
  Status write_note_once(const std::string& key) {
    if (noted_ == key) return {};
    database_.wait_by_policy();
    const Status written = write_note(key, encode_process_note(note_));
    if (written) noted_ = key;
    return written || written.error().code == ErrorCode::kTimeout ? Status() : written;
  }

  /// Bytes of the leases: shards by number, then the spares that wait.
  static constexpr uint32_t kFirstSpareByte = kShardsMax;

  LeaseFile leases_;
  std::string noted_;  ///< key of the last lease whose note is written
  Database database_;
};

}  // namespace

Result<std::unique_ptr<MembershipTable>> open_sqlite_table(const std::string& path, uint32_t wait_ms,
                                                           std::function<TimeNs()> now) {
  auto table = std::make_unique<SqliteTable>(path, wait_ms, std::move(now));
  if (Status opened = table->open(); !opened) return std::unexpected(opened.error());
  return table;
}

}  // namespace millrace::protocol
