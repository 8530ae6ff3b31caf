#include "worker/peer/transport/mpi_node.h"

#include <utility>
#include <vector>

namespace millrace::peer {
namespace {

struct Introduction {
  SegmentName segment;
  uint64_t rank = 0;
};

/// Every rank's of this machine; where MPI fails, none.
std::vector<Introduction> introduce(MPI_Comm node, const Introduction& own) {
  int size = 0;
  MPI_Comm_size(node, &size);
  std::vector<Introduction> all(static_cast<size_t>(size));
  constexpr int kBytes = sizeof(Introduction);
  if (MPI_Allgather(&own, kBytes, MPI_BYTE, all.data(), kBytes, MPI_BYTE, node) != MPI_SUCCESS) all.clear();
  return all;
}

/// All segments, by rank; empty where one cannot be had.
std::vector<std::shared_ptr<SharedSegment>> open_all(const std::vector<Introduction>& all, uint32_t rank, uint32_t size,
                                                     std::shared_ptr<SharedSegment> own) {
  std::vector<std::shared_ptr<SharedSegment>> segments(size);
  segments[rank] = std::move(own);
  for (const Introduction& one : all) {
    if (one.rank >= size) return {};
    if (one.rank == rank) continue;
    Result<std::shared_ptr<SharedSegment>> opened = SharedSegment::open(one.segment);
    if (!opened) return {};
    segments[one.rank] = std::move(*opened);
  }
  return segments;
}

bool all_of(MPI_Comm node, bool here) {
  int mine = here ? 1 : 0, least = 0;
  return MPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, node) == MPI_SUCCESS && least == 1;
}

}  // namespace

std::unique_ptr<SharedBodies> share_bodies(MPI_Comm comm, uint64_t bytes) {
  int rank = 0, size = 0, beside = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm node = MPI_COMM_NULL;
  if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node) != MPI_SUCCESS) return nullptr;
  MPI_Comm_size(node, &beside);
  const auto own_rank = static_cast<uint32_t>(rank);
  std::shared_ptr<SharedSegment> own;
  if (bytes > 0 && beside > 1) own = SharedSegment::create(bytes).value_or(nullptr);
  std::unique_ptr<SharedBodies> bodies;
  if (beside > 1 && all_of(node, own != nullptr)) {
    const std::vector<Introduction> all = introduce(node, {own->name(), own_rank});
    auto segments = open_all(all, own_rank, static_cast<uint32_t>(size), own);
    // Until all have opened it the name stays.
    const bool is_shared = all_of(node, !segments.empty() && !all.empty());
    own->close_name();
    if (is_shared) bodies = std::make_unique<SharedBodies>(own_rank, std::move(segments));
  }
  MPI_Comm_free(&node);
  return bodies;
}

}  // namespace millrace::peer
