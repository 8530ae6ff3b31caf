#include "worker/peer/transport/shared_bodies.h"
#include "tests/support/shared_bodies_peek.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

/// Bodies that ranks of a machine share: the ranks are here objects of one process, each with mappings of its own.
namespace millrace::peer::testing {
namespace {

constexpr uint64_t kSharedBodiesPiece = SharedSegment::kPieceBytes;

ByteBuffer bytes_from(uint8_t first, size_t count) {
  ByteBuffer bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(first + i * 7);
  return bytes;
}

std::vector<std::unique_ptr<SharedBodies>> ranks_of(uint32_t count, uint64_t bytes) {
  std::vector<std::shared_ptr<SharedSegment>> own;
  for (uint32_t rank = 0; rank < count; ++rank) own.push_back(SharedSegment::create(bytes).value());
  std::vector<std::unique_ptr<SharedBodies>> ranks;
  for (uint32_t rank = 0; rank < count; ++rank) {
    std::vector<std::shared_ptr<SharedSegment>> segments;
    for (uint32_t other = 0; other < count; ++other) {
      segments.push_back(other == rank ? own[rank] : SharedSegment::open(own[other]->name()).value());
    }
    ranks.push_back(std::make_unique<SharedBodies>(rank, std::move(segments)));
  }
  return ranks;
}

TEST(SharedBodiesTest, ABodyIsReadWhereItLies) {
  const auto ranks = ranks_of(2, kSharedBodiesPiece);
  WritableBody body = ranks[0]->take(100'000).value();
  const ByteBuffer wanted = bytes_from(3, 100'000);
  std::ranges::copy(wanted, body.bytes.begin());
  const SharedBytes sent = std::move(body).share();
  const auto reference = ranks[0]->hold(sent.bytes);
  ASSERT_TRUE(reference.has_value());
  EXPECT_EQ(ranks[0]->counters().in_place, 1u);
  EXPECT_EQ(ranks[0]->counters().copied, 0u);
  const Result<SharedBytes> received = ranks[1]->body_of(*reference, sent.bytes.size());
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(std::ranges::equal(received->bytes, wanted));
  EXPECT_EQ(std::bit_cast<uintptr_t>(received->bytes.data()) % 8, 0u);
}

TEST(SharedBodiesTest, ABodyFromElsewhereIsCopiedOnce) {
  const auto ranks = ranks_of(2, kSharedBodiesPiece);
  const ByteBuffer wanted = bytes_from(9, 20'001);
  const auto reference = ranks[0]->hold(wanted);
  ASSERT_TRUE(reference.has_value());
  EXPECT_EQ(ranks[0]->counters().copied, 1u);
  const auto received = ranks[1]->body_of(*reference, wanted.size());
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(std::ranges::equal(received->bytes, wanted));
}

TEST(SharedBodiesTest, AForwardedBodyStaysInPlaceUntilItsLastOwnerReleasesIt) {
  const auto ranks = ranks_of(3, kSharedBodiesPiece);
  const ByteBuffer wanted = bytes_from(1, 50'000);
  auto first = ranks[1]->body_of(ranks[0]->hold(wanted).value(), wanted.size());
  ASSERT_TRUE(first.has_value());
  const auto onward = ranks[1]->hold(first->bytes);
  ASSERT_TRUE(onward.has_value());
  EXPECT_EQ(onward->owner, 0u);
  EXPECT_EQ(ranks[1]->counters().in_place, 1u);
  EXPECT_EQ(ranks[1]->counters().copied, 0u);
  auto second = ranks[2]->body_of(*onward, wanted.size());
  ASSERT_TRUE(second.has_value());
  first->owner.reset();
  EXPECT_EQ(SharedBodiesPeek::held_slots(*ranks[0]), 1u);
  EXPECT_TRUE(std::ranges::equal(second->bytes, wanted));
  second->owner.reset();
  EXPECT_EQ(SharedBodiesPeek::held_slots(*ranks[0]), 0u);
}

TEST(SharedBodiesTest, PartsOfOneBodyGoToSeveral) {
  const auto ranks = ranks_of(3, kSharedBodiesPiece);
  WritableBody body = ranks[0]->take(64'000).value();
  const ByteBuffer wanted = bytes_from(5, 64'000);
  std::ranges::copy(wanted, body.bytes.begin());
  SharedBytes all = std::move(body).share();
  std::vector<SharedBytes> parts;
  for (uint32_t to = 1; to < 3; ++to) {
    const ByteSpan part = all.bytes.subspan(to * 16'000, 16'000);
    parts.push_back(ranks[to]->body_of(ranks[0]->hold(part).value(), part.size()).value());
    EXPECT_TRUE(std::ranges::equal(parts.back().bytes, ByteSpan(wanted).subspan(to * 16'000, 16'000)));
  }
  EXPECT_EQ(ranks[0]->counters().copied, 0u);
  all = {};
  EXPECT_EQ(SharedBodiesPeek::held_slots(*ranks[0]), 1u);
  parts.clear();
  EXPECT_EQ(SharedBodiesPeek::held_slots(*ranks[0]), 0u);
}

TEST(SharedBodiesTest, APartThatBeginsAtNoMultipleOfEightIsCopied) {
  const auto ranks = ranks_of(2, kSharedBodiesPiece);
  const WritableBody body = ranks[0]->take(1000).value();
  std::ranges::fill(body.bytes, uint8_t{7});
  const auto reference = ranks[0]->hold(ByteSpan(body.bytes).subspan(4, 500));
  ASSERT_TRUE(reference.has_value());
  EXPECT_EQ(reference->offset % 8, 0u);
  EXPECT_EQ(ranks[0]->counters().copied, 1u);
}

TEST(SharedBodiesTest, WhatReachesBeyondABodyIsCopied) {
  const auto ranks = ranks_of(2, kSharedBodiesPiece);
  const WritableBody first = ranks[0]->take(1024).value(), second = ranks[0]->take(1024).value();
  std::ranges::fill(first.bytes, uint8_t{1});
  std::ranges::fill(second.bytes, uint8_t{2});
  ASSERT_EQ(first.bytes.data() + 1024, second.bytes.data());
  ASSERT_TRUE(ranks[0]->hold(ByteSpan(first.bytes.data() + 512, 1024)).has_value());
  EXPECT_EQ(ranks[0]->counters().copied, 1u);
  EXPECT_EQ(ranks[0]->counters().in_place, 0u);
}

TEST(SharedBodiesTest, AFullSegmentRefusesBodiesUntilMemoryIsFreed) {
  const auto ranks = ranks_of(2, kSharedBodiesPiece);
  const ByteBuffer half = bytes_from(0, kSharedBodiesPiece / 2);
  std::vector<SharedBytes> held;
  for (int i = 0; i < 2; ++i) held.push_back(ranks[1]->body_of(ranks[0]->hold(half).value(), half.size()).value());
  EXPECT_FALSE(ranks[0]->hold(half).has_value());
  EXPECT_FALSE(ranks[0]->take(64).has_value());
  EXPECT_EQ(ranks[0]->counters().full, 2u);
  held.erase(held.begin());
  EXPECT_TRUE(ranks[0]->take(half.size()).has_value());
  held.clear();
  // Memory that is free again is one piece again.
  EXPECT_TRUE(ranks[0]->take(kSharedBodiesPiece).has_value());
}

TEST(SharedBodiesTest, FreedNeighboursMergeInAnyOrder) {
  const auto ranks = ranks_of(1, kSharedBodiesPiece);
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}};
  for (const std::vector<size_t>& order : orders) {
    std::vector<std::optional<WritableBody>> bodies;
    for (int i = 0; i < 4; ++i) bodies.push_back(ranks[0]->take(kSharedBodiesPiece / 4));
    for (const size_t at : order) {
      ASSERT_TRUE(bodies[at].has_value());
      bodies[at].reset();
      EXPECT_LE(SharedBodiesPeek::held_slots(*ranks[0]), 3u);
    }
    EXPECT_TRUE(ranks[0]->take(kSharedBodiesPiece).has_value());
  }
}

TEST(SharedBodiesTest, ThereAreAsManyBodiesAsSlots) {
  const auto ranks = ranks_of(1, kSharedBodiesPiece);
  std::vector<std::optional<WritableBody>> bodies;
  for (uint32_t i = 0; i < SharedSegment::kSlots; ++i) bodies.push_back(ranks[0]->take(8));
  EXPECT_TRUE(std::ranges::all_of(bodies, [](const auto& body) { return body.has_value(); }));
  EXPECT_FALSE(ranks[0]->take(8).has_value());
  bodies.pop_back();
  EXPECT_TRUE(ranks[0]->take(8).has_value());
}

TEST(SharedBodiesTest, AReferenceThatPointsNowhereIsMalformed) {
  const auto ranks = ranks_of(2, kSharedBodiesPiece);
  const BodyReference good = ranks[0]->hold(bytes_from(0, 4096)).value();
  const auto refused = [&](const BodyReference& reference, uint64_t bytes) {
    const auto body = ranks[1]->body_of(reference, bytes);
    return !body && body.error().code == ErrorCode::kMalformed;
  };
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_TRUE(refused({2, good.slot, good.offset}, 4096));
  EXPECT_TRUE(refused({0xffffffff, good.slot, good.offset}, 4096));
  EXPECT_TRUE(refused({0, SharedSegment::kSlots, good.offset}, 4096));
  EXPECT_TRUE(refused({0, good.slot + 1 == SharedSegment::kSlots ? 0 : good.slot + 1, good.offset}, 4096))
      << "no rank holds it";
  EXPECT_TRUE(refused({0, good.slot, kSharedBodiesPiece}, 1));
  EXPECT_TRUE(refused({0, good.slot, kSharedBodiesPiece - 8}, 9));
  EXPECT_TRUE(refused({0, good.slot, 8}, kMax));
  EXPECT_TRUE(refused({0, good.slot, kMax - 7}, 16));
  EXPECT_TRUE(refused({0, good.slot, 4}, 16));
  EXPECT_TRUE(ranks[1]->body_of(good, 4096).has_value());
}

TEST(SharedBodiesTest, ARankOnAnotherMachineIsNotReached) {
  std::vector<std::shared_ptr<SharedSegment>> segments(3);
  segments[0] = SharedSegment::create(kSharedBodiesPiece).value();
  segments[2] = SharedSegment::open(segments[0]->name()).value();
  SharedBodies bodies(0, segments);
  EXPECT_FALSE(bodies.reaches(1));
  EXPECT_TRUE(bodies.reaches(2));
  EXPECT_FALSE(bodies.reaches(3));
}

TEST(SharedBodiesTest, ABodyOutlivesItsSenderAndItsReceiver) {
  auto ranks = ranks_of(2, kSharedBodiesPiece);
  const ByteBuffer wanted = bytes_from(2, 30'000);
  const SharedBytes received = ranks[1]->body_of(ranks[0]->hold(wanted).value(), wanted.size()).value();
  ranks.clear();
  EXPECT_TRUE(std::ranges::equal(received.bytes, wanted));
}

TEST(SharedBodiesTest, AnotherThreadReleasesBodiesWhileTheOwnerTakesNewOnes) {
  const auto ranks = ranks_of(2, 4 * kSharedBodiesPiece);
  for (int round = 0; round < 50; ++round) {
    std::vector<SharedBytes> received;
    for (uint8_t i = 0; i < 8; ++i) {
      const ByteBuffer wanted = bytes_from(i, 40'000);
      received.push_back(ranks[1]->body_of(ranks[0]->hold(wanted).value(), wanted.size()).value());
      EXPECT_TRUE(std::ranges::equal(received.back().bytes, wanted));
    }
    std::jthread elsewhere([held = std::move(received)]() mutable { held.clear(); });
    const auto own = ranks[0]->take(100'000);
    ASSERT_TRUE(own.has_value());
    std::ranges::fill(own->bytes, uint8_t{1});
  }
  EXPECT_EQ(SharedBodiesPeek::held_slots(*ranks[0]), 0u);
}

TEST(SharedSegmentTest, OnlyTheOwnerCanWrite) {
  const auto own = SharedSegment::create(kSharedBodiesPiece).value();
  const auto theirs = SharedSegment::open(own->name()).value();
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  // Asked of the system, which would end the process: a read into memory that cannot be written fails.
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(zeros, 0);
  EXPECT_EQ(::read(zeros, const_cast<uint8_t*>(own->bodies().data()), page), static_cast<ssize_t>(page));
  EXPECT_EQ(::read(zeros, const_cast<uint8_t*>(theirs->bodies().data()), page), -1);
  ::close(zeros);
}

TEST(SharedSegmentTest, OpenRefusesASegmentThatDoesNotMatchItsName) {
  const auto own = SharedSegment::create(kSharedBodiesPiece).value();
  SegmentName name = own->name();
  ASSERT_TRUE(SharedSegment::open(name).has_value());
  name.nonce ^= 1;
  EXPECT_FALSE(SharedSegment::open(name).has_value());
  name = own->name();
  name.bytes += kSharedBodiesPiece;
  EXPECT_FALSE(SharedSegment::open(name).has_value());
  name = own->name();
  name.pid = 0;
  EXPECT_FALSE(SharedSegment::open(name).has_value());
  // A segment that may shrink would send its reader a signal.
  name = own->name();
  name.descriptor = ::memfd_create("another", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(name.descriptor, static_cast<off_t>(2 * kSharedBodiesPiece)), 0);
  ASSERT_EQ(::pwrite(name.descriptor, &name.nonce, sizeof name.nonce, 0), static_cast<ssize_t>(sizeof name.nonce));
  EXPECT_FALSE(SharedSegment::open(name).has_value());
  ::close(name.descriptor);
}

TEST(SharedSegmentTest, OpenRefusesAClosedName) {
  const auto own = SharedSegment::create(kSharedBodiesPiece).value();
  const SegmentName name = own->name();
  own->close_name();
  EXPECT_FALSE(SharedSegment::open(name).has_value());
}

TEST(SharedSegmentTest, AnOpenedSegmentOutlivesItsKilledOwnerButCannotBeReopened) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto own = SharedSegment::create(kSharedBodiesPiece).value();
    if (!own->populate(0)) ::_exit(1);
    own->writable_bodies()[77] = 123;
    const SegmentName name = own->name();
    if (::write(ends[1], &name, sizeof name) != sizeof name) ::_exit(1);
    for (;;) ::pause();
  }
  SegmentName name;
  ASSERT_EQ(::read(ends[0], &name, sizeof name), static_cast<ssize_t>(sizeof name));
  auto theirs = SharedSegment::open(name);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message;
  EXPECT_EQ((*theirs)->bodies()[77], 123);
  EXPECT_FALSE(SharedSegment::open(name).has_value());
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace millrace::peer::testing
