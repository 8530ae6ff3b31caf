#include "worker/peer/mpi_bells.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>
#include <numeric>

namespace millrace::peer {
namespace {

uint32_t cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

/// For each rank of `node`, which it is of `comm`.
std::vector<int> ranks_of(MPI_Comm node, MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(node, &size);
  std::vector<int> inner(static_cast<size_t>(size)), outer(inner.size(), MPI_UNDEFINED);
  std::iota(inner.begin(), inner.end(), 0);
  MPI_Group node_group = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm_group(node, &node_group);
  MPI_Comm_group(comm, &group);
  MPI_Group_translate_ranks(node_group, size, inner.data(), group, outer.data());
  MPI_Group_free(&node_group);
  MPI_Group_free(&group);
  return outer;
}

}  // namespace

std::unique_ptr<MpiBells> MpiBells::over(MPI_Comm comm) {
  MPI_Comm node = MPI_COMM_NULL;
  if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS) return nullptr;
  MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN);
  const std::vector<int> ranks = ranks_of(node, comm);
  int size = 0;
  MPI_Comm_size(comm, &size);
  void* base = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  const bool alone = ranks.size() < 2;
  if (alone || MPI_Win_allocate_shared(sizeof(Bell), 1, MPI_INFO_NULL, node, static_cast<void*>(&base), &window) !=
                   MPI_SUCCESS) {
    MPI_Comm_free(&node);
    return nullptr;
  }
  std::unique_ptr<MpiBells> bells(new MpiBells);
  bells->own_ = new (base) Bell;
  bells->bells_.resize(static_cast<size_t>(size), nullptr);
  for (size_t at = 0; at < ranks.size(); ++at) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* theirs = nullptr;
    const int queried = MPI_Win_shared_query(window, static_cast<int>(at), &bytes, &unit, static_cast<void*>(&theirs));
    if (queried != MPI_SUCCESS || ranks[at] == MPI_UNDEFINED || static_cast<size_t>(bytes) < sizeof(Bell)) continue;
    bells->bells_[static_cast<size_t>(ranks[at])] = static_cast<Bell*>(theirs);
  }
  bells->is_crowded_ = ranks.size() > cores();
  // No bell rings before it is there.
  MPI_Barrier(node);
  return bells;
}

void MpiBells::ring(uint32_t rank) {
  Bell* const bell = bells_[rank];
  if (bell == nullptr) return;
  bell->rung.fetch_add(1, std::memory_order_seq_cst);
  if (bell->sleeps.load(std::memory_order_seq_cst) == 0) return;
  (void)syscall(SYS_futex, static_cast<void*>(&bell->rung), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool MpiBells::rest(uint32_t seen, TimeNs at_most) {
  const timespec time{.tv_sec = at_most / kNsPerS, .tv_nsec = at_most % kNsPerS};
  own_->sleeps.store(1, std::memory_order_seq_cst);
  // The kernel looks at the word again, so that no ring is missed.
  if (rung() == seen) (void)syscall(SYS_futex, static_cast<void*>(&own_->rung), FUTEX_WAIT, seen, &time, nullptr, 0);
  own_->sleeps.store(0, std::memory_order_seq_cst);
  return rung() != seen;
}

}  // namespace millrace::peer
