#include "worker/doctor/host_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "monitoring/open_files.h"

namespace millrace::doctor {
namespace {

constexpr const char* kHere = "this host";
/// A shard keeps some hundred descriptors for itself (server/connections/descriptor_room.h), and one for each worker.
constexpr uint64_t kOpenFilesLeast = 256;
constexpr uint64_t kOpenFilesEnough = 4'096;
constexpr uint64_t kMemoryLeast = uint64_t{256} << 20;
constexpr uint64_t kShardMemory = uint64_t{8} << 30;  ///< default of --shard-memory-bytes-max
constexpr uint32_t kMtuEnough = 1'500;                ///< for the default of --switch-packet-bytes
constexpr uint32_t kDatagramHeads = 28;               ///< of IPv4 and UDP

Check descriptors(const HostFacts& facts) {
  Check check{"descriptors", kHere, Verdict::kOk, fmt::format("a process may open {} files", facts.open_files)};
  if (facts.open_files >= kOpenFilesEnough) return check;
  check.verdict = facts.open_files < kOpenFilesLeast ? Verdict::kProblem : Verdict::kWarning;
  check.change = fmt::format("{}: each worker is a connection, and a shard keeps some hundred files for itself",
                             monitoring::kRaiseOpenFiles);
  return check;
}

Check memory(const HostFacts& facts) {
  if (!facts.memory_available)
    return {"memory", kHere, Verdict::kNotChecked, "the system does not say how much is free"};
  const uint64_t megabytes = *facts.memory_available >> 20;
  Check check{"memory", kHere, Verdict::kOk, fmt::format("{} MiB are free for a process", megabytes)};
  if (*facts.memory_available < kMemoryLeast) {
    check.verdict = Verdict::kProblem;
    check.change = "free memory, or raise the limit of the container or control group";
  } else if (facts.server_starts && *facts.memory_available < kShardMemory) {
    check.verdict = Verdict::kWarning;
    check.change = fmt::format(
        "a shard takes up to 8 GiB, and the kernel kills it where they are not there: start it with "
        "--shard-memory-bytes-max {}MiB --job-memory-bytes-max {}MiB",
        megabytes * 3 / 4, megabytes * 3 / 8);
  }
  return check;
}

Check huge_pages(const HostFacts& facts) {
  Check check{"huge pages", kHere, Verdict::kOk, ""};
  if (!facts.transparent_huge_pages) {
    check.verdict = Verdict::kNotChecked;
    check.found = "the kernel does not say whether it has transparent huge pages";
    return check;
  }
  check.found = "transparent: " + *facts.transparent_huge_pages;
  if (facts.transparent_huge_pages->find("[never]") == std::string::npos) return check;
  check.verdict = Verdict::kWarning;
  check.change =
      "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: sums of peers and switches ask for huge pages";
  return check;
}

/// Returns the consequence of a refused call; empty: Millrace does the same without it.
std::string_view consequence_of(std::string_view call) {
  if (call == "sched_setscheduler") return "programs that use the library, Python's among them, cannot connect";
  if (call == "memfd_create") return "peers on one machine send their bodies over TCP";
  return "";
}

Check seccomp(const HostFacts& facts) {
  Check check{"seccomp", kHere, Verdict::kOk, "no filter of system calls hinders Millrace"};
  std::string refused;
  std::string untried;
  std::string kills;
  std::string consequences;
  const auto append = [](std::string& list, std::string_view separator, std::string_view word) {
    list += fmt::format("{}{}", list.empty() ? "" : separator, word);
  };
  for (const TriedCall& call : facts.calls) {
    if (call.outcome == CallOutcome::kKills) append(kills, ", ", call.name);
    if (call.outcome == CallOutcome::kNotTried) append(untried, ", ", call.name);
    if (call.outcome != CallOutcome::kRefused || consequence_of(call.name).empty()) continue;
    append(refused, ", ", call.name);
    append(consequences, "; ", consequence_of(call.name));
  }
  if (!kills.empty()) {
    check.verdict = Verdict::kProblem;
    check.found = fmt::format("a filter of system calls kills a process that calls {}", kills);
    check.change =
        "have the filter return an error (systemd: SystemCallErrorNumber=EPERM; containers: SCMP_ACT_ERRNO): "
        "Millrace's programs run without these calls";
  } else if (!refused.empty()) {
    check.verdict = Verdict::kWarning;
    check.found = fmt::format("the kernel or a filter of system calls refuses {}", refused);
    check.change = fmt::format(
        "for a server nothing; for other programs allow them (systemd: SystemCallFilter=; containers: the seccomp "
        "profile): {}",
        consequences);
  } else if (!untried.empty()) {
    check.verdict = Verdict::kNotChecked;
    check.found = fmt::format("no child process could try {}", untried);
  }
  return check;
}

Check processor(const HostFacts& facts) {
  constexpr std::array<std::string_view, 6> kSlow = {"SCALAR", "EMU128", "SSE2", "SSSE3", "SSE4", "Unknown"};
  Check check{"cpu", kHere, Verdict::kOk, "the kernels run on " + facts.instruction_set};
  if (std::ranges::find(kSlow, facts.instruction_set) == kSlow.end()) return check;
  check.verdict = Verdict::kWarning;
  check.change =
      "show AVX2, BMI2 and FMA to this virtual machine (QEMU: -cpu host), or take another: codecs and sums need "
      "several "
      "times the time without";
  return check;
}

Check clock(const HostFacts& facts) {
  Check check{"clock", kHere, Verdict::kOk, "synchronised"};
  if (!facts.clock_synchronised) {
    check.verdict = Verdict::kNotChecked;
    check.found = "the kernel does not say whether it is synchronised";
  } else if (!*facts.clock_synchronised) {
    check.verdict = Verdict::kWarning;
    check.found = "not synchronised";
    check.change =
        "run systemd-timesyncd, or chrony with rtcsync (in a container: on its host): logs and audit logs of several "
        "hosts are "
        "compared, and TLS to etcd needs the time";
  }
  return check;
}

Check mtus(const HostFacts& facts) {
  Check check{"mtu", kHere, Verdict::kOk, ""};
  std::string low;
  uint32_t least = kMtuEnough;
  for (const auto& [name, mtu] : facts.interface_mtus) {
    check.found += fmt::format("{}{} {}", check.found.empty() ? "" : ", ", name, mtu);
    if (mtu < least) {
      least = mtu;
      low = name;
    }
  }
  if (facts.interface_mtus.empty()) {
    check.verdict = Verdict::kNotChecked;
    check.found = "no network card is up here: a container sees none";
  } else if (least < kMtuEnough) {
    check.verdict = Verdict::kWarning;
    check.change = fmt::format(
        "give jobs of path switch --switch-packet-bytes {}; ip link set dev {} mtu 1500, if its whole network has that",
        least - std::min(least, kDatagramHeads), low);
  }
  return check;
}

}  // namespace

std::vector<Check> judge_host(const HostFacts& facts) {
  return {descriptors(facts), memory(facts), huge_pages(facts), seccomp(facts),
          processor(facts),   clock(facts),  mtus(facts)};
}

}  // namespace millrace::doctor
