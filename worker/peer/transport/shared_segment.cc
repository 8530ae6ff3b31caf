#include "worker/peer/transport/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "kernels/base/check.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14, which the C library may be older than
#endif

namespace millrace::peer {

struct SharedSegment::Counters {
  uint64_t nonce = 0;
  std::array<std::atomic<uint32_t>, kSlots> holders{};
};

namespace {

constexpr uint64_t kBodiesBegin = SharedSegment::kPieceBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
static_assert(std::atomic<uint32_t>::is_always_lock_free);

std::unexpected<Error> no_segment(const char* what) {
  return fail(ErrorCode::kUnavailable,
              std::string("no memory shared among processes: ") + what + ": " + std::strerror(errno));
}

/// Where the limit of file sizes is lower, a signal would kill the process.
bool may_be_so_long(uint64_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes);
}

}  // namespace

Result<std::shared_ptr<SharedSegment>> SharedSegment::create(uint64_t bytes) {
  SegmentName name;
  name.pid = ::getpid();
  name.bytes = (bytes + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
  if (::getrandom(&name.nonce, sizeof name.nonce, 0) != sizeof name.nonce) return no_segment("getrandom");
  name.descriptor = ::memfd_create("millrace-bodies", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (name.descriptor < 0) return no_segment("memfd_create");
  std::shared_ptr<SharedSegment> segment(new SharedSegment(name, name.descriptor, Access::kOwner));
  errno = EFBIG;
  const uint64_t all = kBodiesBegin + name.bytes;
  if (!may_be_so_long(all) || ::ftruncate(name.descriptor, static_cast<off_t>(all)) != 0)
    return no_segment("ftruncate");
  if (::fcntl(name.descriptor, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) return no_segment("F_ADD_SEALS");
  if (Status status = segment->map(); !status) return std::unexpected(status.error());
  return segment;
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::open(const SegmentName& name) {
  const std::string path = "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (descriptor < 0) return no_segment(path.c_str());
  std::shared_ptr<SharedSegment> segment(new SharedSegment(name, descriptor, Access::kReader));
  // Another file with that number is not mapped: reading a file that shrinks raises a signal.
  struct stat status{};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  errno = ESTALE;
  const bool is_one = seals >= 0 && (seals & kSeals) == kSeals && ::fstat(descriptor, &status) == 0 &&
                      static_cast<uint64_t>(status.st_size) == kBodiesBegin + name.bytes;
  if (!is_one) return no_segment(path.c_str());
  if (Status mapped = segment->map(); !mapped) return std::unexpected(mapped.error());
  errno = ESTALE;
  if (segment->counters_->nonce != name.nonce) return no_segment(path.c_str());
  segment->close_name();
  return segment;
}

Status SharedSegment::map() {
  void* const counters = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (counters == MAP_FAILED) return no_segment("mmap");
  if (access_ == Access::kOwner) {
    // Where there is no memory for them, or the system does not report it, writing would end the process.
    if (::madvise(counters, sizeof(Counters), MADV_POPULATE_WRITE) != 0) {
      ::munmap(counters, sizeof(Counters));
      return no_segment("MADV_POPULATE_WRITE");
    }
    counters_ = new (counters) Counters;
    counters_->nonce = name_.nonce;
  } else {
    counters_ = std::launder(static_cast<Counters*>(counters));
  }
  // A huge page is mapped as one where it begins at a multiple of its size. So the reserved address space is large
  // enough to contain one.
  reserved_ = ::mmap(nullptr, name_.bytes + kPieceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved_ == MAP_FAILED) return no_segment("mmap");
  const auto begin = std::bit_cast<uintptr_t>(reserved_);
  uint8_t* const aligned = static_cast<uint8_t*>(reserved_) + (kPieceBytes - begin % kPieceBytes) % kPieceBytes;
  const int protection = access_ == Access::kOwner ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const bodies =
      ::mmap(aligned, name_.bytes, protection, MAP_SHARED | MAP_FIXED, descriptor_, static_cast<off_t>(kBodiesBegin));
  if (bodies == MAP_FAILED) return no_segment("mmap");
  // Refused where the system has none; then pages are small.
  ::madvise(bodies, name_.bytes, MADV_HUGEPAGE);
  written_ = static_cast<uint8_t*>(bodies);
  bodies_ = {written_, name_.bytes};
  return {};
}

SharedSegment::SharedSegment(const SegmentName& name, int descriptor, Access access)
    : name_(name), descriptor_(descriptor), access_(access), reserved_(MAP_FAILED) {}

SharedSegment::~SharedSegment() {
  close_name();
  if (counters_ != nullptr) ::munmap(counters_, sizeof(Counters));
  if (reserved_ != MAP_FAILED) ::munmap(reserved_, name_.bytes + kPieceBytes);
}

void SharedSegment::close_name() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

std::atomic<uint32_t>& SharedSegment::holders(uint32_t slot) const {
  MILLRACE_CHECK(slot < kSlots, slot);
  return counters_->holders[slot];
}

std::span<uint8_t> SharedSegment::writable_bodies() const {
  MILLRACE_CHECK(access_ == Access::kOwner);
  return {written_, bodies_.size()};
}

Status SharedSegment::populate(uint64_t begin) {
  MILLRACE_CHECK(begin % kPieceBytes == 0 && begin < bodies_.size(), begin, bodies_.size());
  if (::madvise(written_ + begin, kPieceBytes, MADV_POPULATE_WRITE) == 0) return {};
  return fail(ErrorCode::kLimitExceeded, std::string("no memory to share bodies in: ") + std::strerror(errno));
}

}  // namespace millrace::peer
