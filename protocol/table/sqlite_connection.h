#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/table/lock_wait_policy.h"

/// SQLite for the membership table: connection, statement, transaction. Internal to protocol/table.
namespace millrace::protocol {

/// A connection to the file. Its errors name the file.
///
/// Threads  one at a time.
class SqliteDatabase {
 public:
  SqliteDatabase(std::string path, LockWaitPolicy patience, std::function<TimeNs()> now)
      : path_(std::move(path)), wait_policy_(patience), now_(std::move(now)) {}
  ~SqliteDatabase() { sqlite3_close_v2(handle_); }
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  Status open();

  /// Sets how long statements wait for another process's lock from now on.
  void wait_for_locks(int wait_ms);
  /// Sets the wait that the lock wait policy gives now.
  void wait_by_policy() { wait_for_locks(static_cast<int>(wait_policy_.wait_ms(now_()))); }
  void had_the_lock() { wait_policy_.had_it(); }

  Status execute(const char* sql);
  /// Returns the first column of the first row; 0: there is none.
  Result<uint64_t> read_integer(const char* sql);

  /// Returns the error for a result of SQLite.
  std::unexpected<Error> error(int rc);
  /// Returns an error whose sentence names the file.
  std::unexpected<Error> fault(ErrorCode code, std::string_view what) const;

  /// Reads the table's identity. From now on check_table() demands it.
  Status begin_with_identity();
  bool has_identity() const { return identity_ != 0; }
  /// Returns the counter of changes. REQUIRES: begin_with_identity().
  /// Errors  io: the file is not at its path any more. conflict: the table has another identity than at
  ///         begin_with_identity(). stale: its counter went back.
  Result<uint64_t> check_table();
  /// Finds out whether the file is still at its path.
  Status check_place();

  sqlite3* handle() const { return handle_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  sqlite3* handle_ = nullptr;
  int wait_ms_ = -1;
  LockWaitPolicy wait_policy_;
  std::function<TimeNs()> now_;
  uint64_t identity_ = 0;  ///< 0: not read yet
  uint64_t changes_ = 0;   ///< the largest counter that was read
};

/// One statement, prepared and bound; a failure is kept and comes out of step().
class SqliteStatement {
 public:
  SqliteStatement(SqliteDatabase& database, const char* sql);
  ~SqliteStatement() { sqlite3_finalize(statement_); }
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  SqliteStatement& bind(uint64_t value);
  SqliteStatement& bind(std::string_view text);
  SqliteStatement& bind(ByteSpan blob);

  /// Steps the statement. True: a row is there; false: done.
  Result<bool> step();
  /// Runs a statement without rows.
  Status run();

  // Columns of the current row; valid until the next step.
  uint64_t integer(int column) const { return static_cast<uint64_t>(sqlite3_column_int64(statement_, column)); }
  ByteSpan blob(int column) const;
  bool is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

 private:
  SqliteStatement& bound(int rc);

  SqliteDatabase& database_;
  sqlite3_stmt* statement_ = nullptr;
  int rc_ = SQLITE_OK;
  int next_ = 1;
};

/// BEGIN IMMEDIATE ... COMMIT; rolled back unless committed.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDatabase& database) : database_(database) {}
  ~SqliteTransaction() { roll_back(); }
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;

  /// Errors  as SqliteDatabase::check_table(), once the table has an identity.
  Status begin();
  /// Counts the change and commits.
  Status commit();
  void roll_back();

 private:
  SqliteDatabase& database_;
  bool open_ = false;
};

}  // namespace millrace::protocol
