#include "kernels/base/allocator.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>

namespace millrace {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// Whether malloc gives a block of that size a mapping of its own, which goes back to the system when it is freed.
bool allocator_maps(size_t bytes) {
  const size_t mapped_before = ::mallinfo2().hblks;
  void* block = std::malloc(bytes);
  *static_cast<volatile char*>(block) = 1;  // so that the compiler keeps the allocation
  const bool mapped = ::mallinfo2().hblks > mapped_before;
  std::free(block);
  return mapped;
}

TEST(Allocator, FreedMemoryStaysUpToTheStatedBytesAndNotBefore) {
  // glibc adjusts its threshold up to 32 MiB by itself; a larger block always has a mapping of its own.
  if (!allocator_maps(48 * kMiB)) GTEST_SKIP() << "the allocator is not glibc's: a sanitizer's, perhaps";
  ASSERT_TRUE(keep_freed_memory());
  EXPECT_FALSE(allocator_maps(24 * kMiB)) << "glibc before 2.35 takes no larger threshold";
  EXPECT_TRUE(allocator_maps(kFreedBytesKept + kMiB)) << "larger blocks go back to the system";
  // Memory that is freed at the end of the heap stays: the heap does not shrink.
  void* block = std::malloc(24 * kMiB);
  *static_cast<volatile char*>(block) = 1;
  const size_t heap = ::mallinfo2().arena;
  std::free(block);
  EXPECT_EQ(::mallinfo2().arena, heap);
}

}  // namespace
}  // namespace millrace
