#include "worker/launch/namespace_hosts.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/units.h"
#include "worker/launch/child_process.h"

namespace millrace::launch {
namespace {

constexpr int kScriptTimeoutMs = 60'000;

/// A rate of the script that a link can have.
bool is_rate(const std::string& text) {
  constexpr double kBitsMin = 1e3;
  constexpr double kBitsMax = 1e12;
  const auto bits = rate_from_text(text);
  return bits ? *bits >= kBitsMin && *bits <= kBitsMax : text == "none";
}

Result<int> run_script(const std::vector<std::string>& argv, ChildSession session) {
  auto child = ChildProcess::spawn(
      {.argv = argv, .network_namespace = {}, .stdout_path = "/dev/null", .stderr_path = {}, .session = session});
  if (!child) return std::unexpected(child.error());
  auto report = child->wait(kScriptTimeoutMs);
  if (!report) return std::unexpected(report.error());
  return report->exit_code;
}

/// Nothing can be done about a failure here; the script has printed it.
void remove_hosts(const std::string& script, const std::string& prefix) {
  run_script({script, "down", prefix}, ChildSession::kOwn).value_or(0);
}

}  // namespace

std::string netlab_script() {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const auto* relative : {"../../../deploy/netlab.sh", "../share/millrace/netlab.sh"}) {
    const auto candidate = self / relative;
    if (std::filesystem::exists(candidate, ignored))
      return std::filesystem::weakly_canonical(candidate, ignored).string();
  }
  return {};
}

Status check_hosts(const std::string& rate) {
  if (rate.empty()) return {};
  if (!is_rate(rate)) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--link-rate: '" + rate + "' is not a rate: a number with kbit, mbit or gbit, from 1kbit to 1000gbit, or none");
  }
  if (::geteuid() != 0) return fail(ErrorCode::kIo, "--link-rate: network namespaces need root: run it with sudo");
  if (netlab_script().empty())
    return fail(ErrorCode::kIo, "deploy/netlab.sh was not found beside this build; a rate needs it");
  return {};
}

Result<Hosts> Hosts::make(uint32_t count, const std::string& rate, uint32_t unlimited, uint32_t mtu) {
  Hosts hosts;
  if (const Status valid = check_hosts(rate); !valid) return std::unexpected(valid.error());
  if (rate.empty()) return hosts;
  hosts.script_ = netlab_script();
  constexpr int kPrefixes = 100'000;
  const std::string prefix = "mb" + std::to_string(::getpid() % kPrefixes);
  constexpr int kEndedBySignal = 128;
  const auto made = run_script(
      {hosts.script_, "up", prefix, std::to_string(count), rate, std::to_string(unlimited), std::to_string(mtu)},
      ChildSession::kParents);
  // Where it fails it removes its own hosts; where a signal ended it, it may not have done so.
  if (!made || *made >= kEndedBySignal) remove_hosts(hosts.script_, prefix);
  if (!made) return std::unexpected(made.error());
  if (*made != 0) {
    return fail(ErrorCode::kIo, "no network namespaces behind " + rate +
                                    " (see the line above): it needs root, iproute2 and a kernel with the tbf qdisc");
  }
  hosts.prefix_ = prefix;
  return hosts;
}

Status Hosts::lose(double fraction) const { return set_links({fmt::format("{:.6f}", fraction)}); }

Status Hosts::lose_bursts(double fraction) const { return set_links({fmt::format("{:.6f}", fraction), "bursts"}); }

Status Hosts::carry_singly() const { return set_links({"single"}); }

Status Hosts::set_links(const std::vector<std::string>& how) const {
  MILLRACE_CHECK(!prefix_.empty());
  std::vector<std::string> command{script_, "lose", prefix_};
  command.insert(command.end(), how.begin(), how.end());
  const auto made = run_script(command, ChildSession::kParents);
  if (!made) return std::unexpected(made.error());
  if (*made != 0) return fail(ErrorCode::kIo, "no loss on the links (see the line above): it needs nft");
  return {};
}

Hosts::Hosts(Hosts&& other) noexcept
    : script_(std::exchange(other.script_, {})), prefix_(std::exchange(other.prefix_, {})) {}

Hosts::~Hosts() {
  if (!prefix_.empty()) remove_hosts(script_, prefix_);
}

std::string Hosts::network_namespace(uint32_t host) const {
  return prefix_.empty() ? std::string() : prefix_ + "-" + std::to_string(host + 1);
}

std::string Hosts::address(uint32_t host) const {
  return prefix_.empty() ? "127.0.0.1" : "10.77.0." + std::to_string(host + 1);
}

}  // namespace millrace::launch
