#pragma once

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdint>
#include <string>

#include "monitoring/command_line/text_check.h"

/// Flags of every program that uses a membership table in etcd.
namespace millrace::monitoring {

/// Says how a program's help writes the first letter of a description.
enum class HelpCase : uint8_t { kCapital, kSmall };

/// Adds --table-ca, --table-cert, --table-key, --table-user and --table-password-file.
///
/// Table    a struct with ca_file, cert_file, key_file, user and password_file (protocol::TableFlags).
/// REQUIRES the struct outlives the parsing.
template <typename Table>
void add_etcd_flags(CLI::App& app, Table& table, HelpCase help_case) {
  const auto add = [&](const char* flag, std::string& into, std::string help, const char* type) {
    if (help_case == HelpCase::kSmall) help[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(help[0])));
    app.add_option(flag, into, help)->type_name(type)->check(not_empty());
  };
  app.option_defaults()->group("Table in etcd");
  add("--table-ca", table.ca_file, "Uses TLS; certificates of the authorities that sign etcd's (PEM)", "FILE");
  add("--table-cert", table.cert_file, "Certificate of this client (PEM)", "FILE");
  add("--table-key", table.key_file, "Key of --table-cert (PEM)", "FILE");
  add("--table-user", table.user, "User of etcd; needs read and write below the prefix", "NAME");
  add("--table-password-file", table.password_file,
      "File with that user's password in its first line; unreadable for others than owner and group", "FILE");
}

}  // namespace millrace::monitoring
