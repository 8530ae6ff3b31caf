#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::doctor {

/// Lists the answers of a filter of system calls (seccomp) to one call.
enum class CallOutcome : uint8_t {
  kAllowed = 0,
  kRefused = 1,   ///< the call returns an error
  kKills = 2,     ///< the process that made it was killed
  kNotTried = 3,  ///< no child process could be started, or it died otherwise
};

/// Holds a system call that Millrace makes, and what happened when a child process of this one made it.
struct TriedCall {
  std::string_view name;
  CallOutcome outcome = CallOutcome::kAllowed;
};

/// Holds the facts of this host and this process. Empty: the system does not give them.
struct HostFacts {
  uint64_t open_files = 0;                            ///< most that a program of this user may open
  std::optional<uint64_t> memory_available;           ///< bytes that one more process can take
  bool server_starts = false;                         ///< a server is to start here (--listen)
  std::optional<std::string> transparent_huge_pages;  ///< "always [madvise] never"
  std::vector<TriedCall> calls;
  std::string instruction_set;  ///< that the kernels run on: "AVX2"
  std::optional<bool> clock_synchronised;
  std::vector<std::pair<std::string, uint32_t>> interface_mtus;  ///< of network cards that are up
};

/// Reads the facts from the system. Changes nothing.
///
/// Cost     starts one short child process for each system call that it tries.
/// Threads  REQUIRES: no other thread changes the facts meanwhile.
HostFacts read_host_facts();

/// Returns the name of this host; "?" where the system gives none.
std::string host_name();

}  // namespace millrace::doctor
