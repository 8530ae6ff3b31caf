#include "protocol/table/sqlite_connection.h"

#include <fmt/format.h>

#include "protocol/table/membership_table.h"
#include "protocol/table/table_rules.h"

namespace millrace::protocol {
namespace {

/// Returns the remedy for SQLite's commonest errors about a file.
const char* advice(int primary_code) {
  switch (primary_code) {
    case SQLITE_CANTOPEN: return "; name a file in a folder that exists and can be written";
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: return "; name another file for the membership table";
    default: return "";
  }
}

}  // namespace

Status SqliteDatabase::open() {
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (const int rc = sqlite3_open_v2(path_.c_str(), &handle_, flags, nullptr); rc != SQLITE_OK) return error(rc);
  wait_for_locks(static_cast<int>(kTableOpenWaitMs));
  return {};
}

void SqliteDatabase::wait_for_locks(int wait_ms) {
  if (std::exchange(wait_ms_, wait_ms) != wait_ms) sqlite3_busy_timeout(handle_, wait_ms);
}

Status SqliteDatabase::execute(const char* sql) {
  const int rc = sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? Status() : Status(error(rc));
}

Result<uint64_t> SqliteDatabase::read_integer(const char* sql) {
  SqliteStatement statement(*this, sql);
  const Result<bool> row = statement.step();
  if (!row) return std::unexpected(row.error());
  return *row ? statement.integer(0) : 0;
}

std::unexpected<Error> SqliteDatabase::fault(ErrorCode code, std::string_view what) const {
  return fail(code, fmt::format("membership table {}: {}", path_, what));
}

std::unexpected<Error> SqliteDatabase::error(int rc) {
  const int primary = rc & 0xFF;  // the rest of an extended code is the place, which the message names as well
  if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED) {
    if (wait_ms_ > 0) wait_policy_.waited_in_vain(now_());
    return fault(ErrorCode::kTimeout, fmt::format("another process holds its lock (waited {} ms)", wait_ms_));
  }
  const char* what = handle_ == nullptr ? sqlite3_errstr(rc) : sqlite3_errmsg(handle_);
  const bool damaged = primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT;
  return fault(damaged ? ErrorCode::kMalformed : ErrorCode::kIo, fmt::format("{}{}", what, advice(primary)));
}

Status SqliteDatabase::begin_with_identity() {
  const Result<uint64_t> identity = read_integer("SELECT value FROM counters WHERE name = 'identity'");
  if (!identity) return std::unexpected(identity.error());
  if (*identity == 0) return fault(ErrorCode::kMalformed, "its identity is damaged; name another file");
  identity_ = *identity;
  changes_ = 0;
  return {};
}

/// SQLite continues with a file that was removed. A process that starts later makes another one, and both would give
/// the same incarnations.
Status SqliteDatabase::check_place() {
  int moved = 0;
  if (sqlite3_file_control(handle_, nullptr, SQLITE_FCNTL_HAS_MOVED, &moved) != SQLITE_OK || moved == 0) return {};
  return fault(ErrorCode::kIo,
               "the file was removed or replaced while this process uses it; jobs go on, and their members stay as "
               "they are: let them end, then start all shards again");
}

Result<uint64_t> SqliteDatabase::check_table() {
  if (Status there = check_place(); !there) return std::unexpected(there.error());
  SqliteStatement select(*this,
                         "SELECT i.value, c.value FROM counters i, counters c WHERE i.name = 'identity' AND c.name = "
                         "'changes'");
  const Result<bool> row = select.step();
  if (!row) return std::unexpected(row.error());
  const uint64_t changes = *row ? select.integer(1) : 0;
  if (!*row || select.integer(0) != identity_) return fault(ErrorCode::kConflict, kAnotherTable);
  if (changes < changes_) return fault(ErrorCode::kStale, kOlderTable);
  changes_ = changes;
  return changes;
}

SqliteStatement::SqliteStatement(SqliteDatabase& database, const char* sql) : database_(database) {
  rc_ = sqlite3_prepare_v2(database.handle(), sql, -1, &statement_, nullptr);
}

SqliteStatement& SqliteStatement::bind(uint64_t value) {
  return bound(sqlite3_bind_int64(statement_, next_, static_cast<int64_t>(value)));
}

SqliteStatement& SqliteStatement::bind(std::string_view text) {
  // No pointer would be SQL's NULL, not the empty text.
  const char* data = text.empty() ? "" : text.data();
  return bound(sqlite3_bind_text64(statement_, next_, data, text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

SqliteStatement& SqliteStatement::bind(ByteSpan blob) {
  return bound(sqlite3_bind_blob64(statement_, next_, blob.data(), blob.size(), SQLITE_TRANSIENT));
}

Result<bool> SqliteStatement::step() {
  if (rc_ == SQLITE_OK) rc_ = sqlite3_step(statement_);
  const int rc = std::exchange(rc_, SQLITE_OK);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  return database_.error(rc);
}

Status SqliteStatement::run() {
  const Result<bool> stepped = step();
  return stepped ? Status() : Status(std::unexpected(stepped.error()));
}

ByteSpan SqliteStatement::blob(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  return {static_cast<const uint8_t*>(data), static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

SqliteStatement& SqliteStatement::bound(int rc) {
  if (rc_ == SQLITE_OK) rc_ = rc;
  ++next_;
  return *this;
}

void SqliteTransaction::roll_back() {
  if (std::exchange(open_, false)) sqlite3_exec(database_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

Status SqliteTransaction::begin() {
  Status begun = database_.execute("BEGIN IMMEDIATE");
  open_ = begun.has_value();
  if (!open_) return begun;
  database_.had_the_lock();  // reads show nothing: they continue beside the lock's holder
  if (!database_.has_identity()) return database_.check_place();
  const Result<uint64_t> checked = database_.check_table();
  return checked ? Status() : Status(std::unexpected(checked.error()));
}

Status SqliteTransaction::commit() {
  if (Status s = database_.execute("UPDATE counters SET value = value + 1 WHERE name = 'changes'"); !s) return s;
  if (Status there = database_.check_place(); !there) return there;
  Status committed = database_.execute("COMMIT");
  open_ = !committed.has_value();
  return committed;
}

}  // namespace millrace::protocol
