#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/result.h"
#include "protocol/table/membership_table.h"

namespace millrace::protocol {

/// Says which membership table a program uses, as its flags do.
struct TableFlags {
  std::string location = {};       ///< --table: path of an SQLite file, or etcd://HOST:PORT,...
  std::string ca_file = {};        ///< --table-ca
  std::string cert_file = {};      ///< --table-cert
  std::string key_file = {};       ///< --table-key
  std::string user = {};           ///< --table-user
  std::string password_file = {};  ///< --table-password-file
  uint32_t etcd_wait_ms = 250;     ///< --table-wait
  bool operator==(const TableFlags&) const = default;
};

/// Returns why the flags do not name a table; empty: they do. Reads no file.
std::string refuse_table(const TableFlags& flags);

/// Opens the table that the flags name.
///
/// sqlite_wait_ms  as in open_sqlite_table().
/// Errors   as those of open_sqlite_table() and open_etcd_table(); invalid_argument: refuse_table(), or the password
///          file.
Result<std::unique_ptr<MembershipTable>> open_table(const TableFlags& flags,
                                                    uint32_t sqlite_wait_ms = kTableOpenWaitMs);

}  // namespace millrace::protocol
