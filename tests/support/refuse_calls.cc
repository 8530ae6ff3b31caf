#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

/// Runs a program under a filter that refuses system calls, as the profiles of containers do. systemd's
/// SystemCallFilter= with SystemCallErrorNumber= does the same. The program's children have the filter too.
///
///     refuse_calls EPERM|ENOSYS CALL[,CALL...] PROGRAM [ARGUMENT...]
///
/// CALL: a name of the list below, or @resources, systemd's group of them.
namespace {

constexpr int kUsage = 2;
constexpr int kNotRun = 126;

struct Call {
  std::string_view name;
  long number = 0;
};

constexpr auto kResources = std::to_array<Call>({{"ioprio_set", SYS_ioprio_set},
                                                 {"mbind", SYS_mbind},
                                                 {"migrate_pages", SYS_migrate_pages},
                                                 {"move_pages", SYS_move_pages},
                                                 {"prlimit64", SYS_prlimit64},
                                                 {"sched_setaffinity", SYS_sched_setaffinity},
                                                 {"sched_setattr", SYS_sched_setattr},
                                                 {"sched_setparam", SYS_sched_setparam},
                                                 {"sched_setscheduler", SYS_sched_setscheduler},
                                                 {"set_mempolicy", SYS_set_mempolicy},
                                                 {"setpriority", SYS_setpriority},
                                                 {"setrlimit", SYS_setrlimit}});
constexpr auto kOthers = std::to_array<Call>({{"madvise", SYS_madvise},
                                              {"memfd_create", SYS_memfd_create},
                                              {"pidfd_open", SYS_pidfd_open},
                                              {"process_vm_readv", SYS_process_vm_readv},
                                              {"sched_getattr", SYS_sched_getattr},
                                              {"sched_yield", SYS_sched_yield}});

/// Empty: there is no such call here.
std::vector<long> numbers_of(std::string_view name) {
  std::vector<long> numbers;
  for (const auto& [known, number] : kResources) {
    if (name == known || name == "@resources") numbers.push_back(number);
  }
  for (const auto& [known, number] : kOthers) {
    if (name == known) numbers.push_back(number);
  }
  return numbers;
}

bool install(const std::vector<long>& refused, int error) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (size_t i = 0; i < refused.size(); ++i) {
    const auto to_refusal = static_cast<uint8_t>(refused.size() - i);
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(refused[i]), to_refusal, 0));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kProgramAt = 3;
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (argc <= kProgramAt || (word != "EPERM" && word != "ENOSYS")) {
    std::fputs("usage: refuse_calls EPERM|ENOSYS CALL[,CALL...] PROGRAM [ARGUMENT...]\n", stderr);
    return kUsage;
  }
  std::vector<long> refused;
  const std::string_view list = argv[2];
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::vector<long> numbers = numbers_of(list.substr(begin, end - begin));
    if (numbers.empty()) {
      std::fprintf(stderr, "refuse_calls: no such call in '%s'\n", argv[2]);
      return kUsage;
    }
    refused.insert(refused.end(), numbers.begin(), numbers.end());
    begin = end + 1;
  }
  if (!install(refused, word == "EPERM" ? EPERM : ENOSYS)) {
    std::fprintf(stderr, "refuse_calls: no filter: %s\n", std::strerror(errno));
    return kNotRun;
  }
  execvp(argv[kProgramAt], argv + kProgramAt);
  std::fprintf(stderr, "refuse_calls: %s: %s\n", argv[kProgramAt], std::strerror(errno));
  return kNotRun;
}
