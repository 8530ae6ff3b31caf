#include "worker/doctor/file_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/words.h"
#include "protocol/address/host_port.h"
#include "protocol/address/stream_sockets.h"
#include "protocol/datagram/io/job_key_file.h"
#include "protocol/keys/allowed_keys.h"
#include "protocol/keys/key_files.h"

namespace millrace::doctor {
namespace {

constexpr const char* kKeys = "keys";
constexpr size_t kJobKeysMax = 4'096;
constexpr std::chrono::days kKeyEndSoon{14};  // as the alert MillraceKeyExpires

Check check_job_key(const std::filesystem::path& path) {
  Check check{kKeys, path.string(), Verdict::kOk, "a job's key that other users cannot read"};
  if (!number_from_text<uint32_t>(path.stem().string())) {
    check.verdict = Verdict::kWarning;
    check.found = "its name is no number of a job";
    check.change = "name it NUMBER.key, as the switch's list of jobs has the number";
  } else if (const auto key = protocol::read_job_key(path.string()); !key) {
    check.verdict = Verdict::kProblem;
    check.found = key.error().message;
    check.change = fmt::format(
        "let it have 64 hexadecimal digits, readable by the program's user, and its group at most: chmod 600 {}",
        path.string());
  }
  return check;
}

/// Returns the names of a folder's keys whose secret keys are in it, too. On a server that is the cluster's own alone.
std::vector<std::string> names_with_secrets(const protocol::AllowedKeys& allowed, const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& [name, key] : allowed.keys()) {
    std::error_code error;
    if (std::filesystem::exists(folder / (name + ".key"), error)) names.push_back(name);
  }
  return names;
}

/// Holds the keys as the server counts them.
struct CountedKeys {
  protocol::AllowedKeys allowed;
  std::string note = {};           ///< says which key is not counted
  bool may_have_clusters = false;  ///< the cluster's own key may be counted
};

Result<CountedKeys> count_keys(const std::string& path, const std::string& server_public) {
  auto all = protocol::AllowedKeys::read(path);
  if (!all) return std::unexpected(all.error());
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return CountedKeys{std::move(*all)};  // a list counts every key
  std::optional<protocol::PublicKey> own;
  std::string note = " beside the cluster's own";
  const std::vector<std::string> names = names_with_secrets(*all, path);
  if (!server_public.empty()) {
    if (const auto server = protocol::read_public_key(server_public)) own = *server;
  } else if (names.size() == 1) {
    own = *all->key_of(names.front());
    note = fmt::format(" beside '{}', whose secret is here", names.front());
  }
  if (!own) {
    note = all->count() == 0 ? "" : ", the cluster's own among them if its file is there";
    return CountedKeys{std::move(*all), std::move(note), true};
  }
  auto others = protocol::AllowedKeys::read(path, *own);
  if (!others) return std::unexpected(others.error());
  return CountedKeys{std::move(*others), std::move(note)};
}

}  // namespace

Check check_listen(const std::string& address, const protocol::HostResolver& resolver) {
  Check check{"listen", address, Verdict::kOk, "no process has this port"};
  const auto at = protocol::parse_host_port(address);
  if (!at) return problem("listen", address, at.error().message, "give HOST:PORT");
  if (const std::string number = protocol::loopback_of_name(at->host, resolver); !number.empty()) {
    return problem("listen", address, fmt::format("{} is {} here, which no other host reaches", at->host, number),
                   fmt::format("remove the name {} from its line of /etc/hosts; or let the server listen on "
                               "0.0.0.0:{}, with --advertise {}",
                               at->host, at->port, address));
  }
  const auto listeners = protocol::listen_on_host({at->host == "*" ? "::" : at->host, at->port}, resolver);
  if (listeners) return check;
  check.verdict = Verdict::kProblem;
  check.found = listeners.error().message;
  check.change =
      listeners.error().code == ErrorCode::kConflict
          ? fmt::format("end the process that has it (ss -ltnp 'sport = {}'), or take another port", at->port)
          : "give an address of this host (ip address)";
  return check;
}

std::vector<Check> check_key_files(const std::string& secret, const std::string& server_public,
                                   std::optional<protocol::TransportKeys>& keys) {
  std::vector<Check> checks;
  protocol::TransportKeys read;
  if (!secret.empty()) {
    Check check{kKeys, secret, Verdict::kOk, ""};
    if (auto own = protocol::read_secret_key(secret)) {
      check.found = "a secret key, of the public key " + protocol::key_digits(own->public_key);
      read.own = std::move(*own);
    } else {
      check =
          problem(kKeys, secret, own.error().message,
                  "give a file NAME.key of millrace keys new, that this user may read and others may not (chmod 600)");
    }
    checks.push_back(std::move(check));
  }
  if (!server_public.empty()) {
    Check check{kKeys, server_public, Verdict::kOk, ""};
    if (const auto server = protocol::read_public_key(server_public)) {
      check.found = "a public key, " + protocol::key_digits(*server);
      read.server = *server;
    } else {
      check = problem(kKeys, server_public, server.error().message,
                      "copy the file NAME.pub of the servers' --key here; chmod 644 it");
    }
    checks.push_back(std::move(check));
  }
  const bool whole = !secret.empty() && !server_public.empty() && worst_of(checks) == Verdict::kOk;
  if (whole) keys = std::move(read);
  return checks;
}

std::vector<Check> check_allowed_keys(const std::string& path, const std::string& server_public) {
  auto counted = count_keys(path, server_public);
  if (!counted) {
    return {problem(kKeys, path, counted.error().message,
                    "give a folder of NAME.pub files that root or the server's user owns; chmod 750 it")};
  }
  protocol::AllowedKeys* allowed = &counted->allowed;
  std::vector<Check> checks;
  for (const protocol::EndedKey& ended : allowed->end_keys(protocol::present_day())) {
    checks.push_back({kKeys, path, Verdict::kWarning, ended.sentence, "remove its file, or put a new key there"});
  }
  for (const std::string& sentence : allowed->problems()) {
    checks.push_back({kKeys, path, Verdict::kWarning, sentence,
                      "replace this file by renaming a whole one into its place: until then its key is not allowed"});
  }
  if (allowed->count() == 0) {
    checks.push_back(problem(kKeys, path, "it allows no key" + counted->note,
                             "put each worker's NAME.pub there, and send the servers SIGHUP"));
  } else if (allowed->count() == 1 && counted->may_have_clusters) {
    checks.push_back({kKeys, path, Verdict::kWarning,
                      "it allows 1 key: if that is the cluster's own, no worker gets in", "give --server-key"});
  } else {
    const protocol::KeyEnd end = allowed->first_end();
    const bool ends_soon = end && *end - protocol::present_day() < kKeyEndSoon;
    const std::string ends = end ? "; the first ends on " + protocol::key_end_text(*end) : "";
    checks.push_back(
        {kKeys, path, ends_soon ? Verdict::kWarning : Verdict::kOk,
         fmt::format("it allows {} keys{}{}", allowed->count(), counted->note, ends),
         ends_soon ? "allow a new key beside that one (millrace keys new), then send the servers SIGHUP" : ""});
  }
  return checks;
}

std::vector<Check> check_job_keys(const std::string& folder) {
  std::vector<Check> checks;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".key" && checks.size() < kJobKeysMax)
      checks.push_back(check_job_key(entry->path()));
  }
  std::ranges::sort(checks, {}, &Check::subject);
  if (error) {
    checks.push_back(problem(kKeys, folder, error.message(), "give a folder that this user may read"));
  } else if (checks.empty()) {
    checks.push_back(problem(kKeys, folder, "it has no file NUMBER.key", "put the keys of jobs of path switch there"));
  }
  return checks;
}

}  // namespace millrace::doctor
