#pragma once

#include <CLI/CLI.hpp>
#include <cctype>
#include <string>

#include "monitoring/command_line/table_flags.h"
#include "monitoring/command_line/text_check.h"

/// Flags of every program that serves HTTP, or asks such a program. `Options` is HttpSecurityOptions
/// (monitoring/http/secure/http_security.h).
namespace millrace::monitoring {

/// Writes a help text in the case of the program's other ones.
inline std::string help_in_case(std::string help, HelpCase help_case) {
  if (help_case == HelpCase::kSmall) help[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(help[0])));
  return help;
}

/// Adds --http-token-file, of a port or of a client.
template <typename Options>
void add_http_token_flag(CLI::App& app, Options& options, const std::string& help, HelpCase help_case) {
  app.add_option("--http-token-file", options.token_file, help_in_case(help, help_case))
      ->type_name("FILE")
      ->check(not_empty());
}

/// Adds --http-ca of a client.
template <typename Options>
void add_http_ca_flag(CLI::App& app, Options& options, HelpCase help_case) {
  app.add_option("--http-ca", options.ca_file,
                 help_in_case("Asks other HTTP ports by HTTPS: the certificates to trust (PEM)", help_case))
      ->type_name("FILE")
      ->check(not_empty());
}

/// Adds --http-tls, --http-token-file and --http-insecure of a port.
///
/// REQUIRES  `options` outlives the parsing.
template <typename Options>
void add_http_port_flags(CLI::App& app, Options& options, HelpCase help_case) {
  app.add_option("--http-tls", options.tls,
                 help_in_case("Speaks HTTPS: files of the certificate chain and of its key (PEM), CERT,KEY", help_case))
      ->type_name("FILE")
      ->check(not_empty());
  add_http_token_flag(
      app, options,
      "Asks HTTP clients for a token, the first line of this file (umask 077; openssl rand -hex 32 > FILE)", help_case);
  app.add_flag("--http-insecure", options.insecure,
               help_in_case("Serves HTTP without --http-tls or without --http-token-file on addresses that other "
                            "machines reach. Every process that reaches the port may read the status of all jobs",
                            help_case));
}

/// Adds --http-ca and --http-token-file of a client.
template <typename Options>
void add_http_caller_flags(CLI::App& app, Options& options, HelpCase help_case) {
  add_http_ca_flag(app, options, help_case);
  add_http_token_flag(app, options, "File with the token of the HTTP ports, in its first line", help_case);
}

}  // namespace millrace::monitoring
