#include "worker/training/peers/line_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::training {
namespace {

using Strings = std::vector<std::string>;

ReadAt reader_of(const std::string& text) {
  return [&text](uint64_t at, std::span<uint8_t> into) -> Status {
    if (at + into.size() > text.size()) return fail(ErrorCode::kIo, "read past the end");
    std::ranges::copy_n(text.begin() + static_cast<ptrdiff_t>(at), static_cast<ptrdiff_t>(into.size()), into.begin());
    return {};
  };
}

Result<Strings> lines_of(const std::string& text, uint32_t rank, uint32_t ranks, uint64_t block_bytes) {
  Strings lines;
  const auto keep = [&lines](std::string_view line) {
    lines.emplace_back(line);
    return Status{};
  };
  const Status status =
      for_each_line(line_share(text.size(), rank, ranks), reader_of(text), keep, {.block_bytes = block_bytes});
  if (!status) return std::unexpected(status.error());
  return lines;
}

/// The slow, obvious way: every line, by where it begins.
std::vector<Strings> expected_lines(const std::string& text, uint32_t ranks) {
  std::vector<Strings> lines(ranks);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    uint32_t rank = 0;
    while (line_share(text.size(), rank, ranks).end <= begin) ++rank;
    lines[rank].push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

void expect_every_line_once(const std::string& text) {
  const uint32_t ranks_max = static_cast<uint32_t>(text.size()) + 3;
  for (uint32_t ranks = 1; ranks <= ranks_max; ++ranks) {
    const auto expected = expected_lines(text, ranks);
    for (const uint64_t block_bytes : {1u, 2u, 7u, 1u << 20}) {
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto lines = lines_of(text, rank, ranks, block_bytes);
        ASSERT_TRUE(lines) << lines.error().message;
        ASSERT_EQ(*lines, expected[rank]) << "rank " << rank << " of " << ranks << ", blocks of " << block_bytes;
      }
    }
  }
}

TEST(LineShare, EveryLineIsReadOnceForEveryNumberOfRanks) {
  for (const std::string text : {"", "\n", "a", "a\n", "a\nb", "a\nb\n", "\n\n\n", "\na\n\n\nb\n", "a\r\nb\r\n\r\nc",
                                 "+1 1:1\n-1 2:1\n+1 3:0.5\n"}) {
    SCOPED_TRACE(text);
    expect_every_line_once(text);
  }
}

TEST(LineShare, OneHugeLineAmongShortOnesIsOneRanks) {
  for (const size_t before : {0u, 1u, 10u}) {
    std::string text;
    for (size_t i = 0; i < before; ++i) text += "x\n";
    text += std::string(60, 'h') + '\n';
    expect_every_line_once(text + "y\nz\n");
    expect_every_line_once(text);
    text.pop_back();
    expect_every_line_once(text);
  }
}

TEST(LineShare, RandomFiles) {
  constexpr uint64_t kSeed = 5;
  RandomSequence random(RandomKey::from(kSeed));
  for (int file = 0; file < 60; ++file) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", file " + std::to_string(file));
    std::string text;
    for (uint64_t left = random.next_below(40); left > 0; --left) text += random.next_below(4) == 0 ? '\n' : 'a';
    expect_every_line_once(text);
  }
}

TEST(LineShare, SharesAreConsecutiveAndEqualButForOneByte) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1'000}, uint64_t{1} << 62}) {
    for (const uint32_t ranks : {1u, 3u, 4'096u}) {
      uint64_t at = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const LineShare share = line_share(bytes, rank, ranks);
        ASSERT_EQ(share.begin, at);
        ASSERT_LE(share.end - share.begin - bytes / ranks, 1u);
        at = share.end;
      }
      ASSERT_EQ(at, bytes);
    }
  }
}

TEST(LineShare, ARankReadsNoFurtherThanItsShareAndTheRestOfItsLastLine) {
  const std::string text = std::string(50, 'a') + '\n' + std::string(50, 'b') + '\n';
  uint64_t bytes_read = 0;
  const auto count = [&](uint64_t at, std::span<uint8_t> into) {
    bytes_read += into.size();
    return reader_of(text)(at, into);
  };
  // The third of four ranks is within the second line, and has none.
  const Status status = for_each_line(line_share(text.size(), 3, 4), count, [](std::string_view) { return Status{}; });
  ASSERT_TRUE(status);
  EXPECT_LE(bytes_read, text.size() / 4 + 2);
}

TEST(LineShare, ALineOverTheLimitIsRefusedWithItsPlace) {
  const std::string text = "short\n" + std::string(100, 'l') + '\n';
  const Status status =
      for_each_line(line_share(text.size(), 0, 1), reader_of(text), [](std::string_view) { return Status{}; },
                    {.block_bytes = 16, .line_bytes_max = 64});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kMalformed);
  EXPECT_NE(status.error().message.find("begins at byte 6 has more than 64"), std::string::npos);
}

TEST(LineShare, ErrorsOfTheFileAndOfALineEndIt) {
  const std::string text = "a\nb\nc\n";
  int lines = 0;
  const auto refuse_second = [&lines](std::string_view) -> Status {
    return ++lines == 2 ? fail(ErrorCode::kMalformed, "no b") : Status{};
  };
  const Status refused = for_each_line(line_share(text.size(), 0, 1), reader_of(text), refuse_second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "no b");
  EXPECT_EQ(lines, 2);
  const auto broken = [](uint64_t, std::span<uint8_t>) -> Status { return fail(ErrorCode::kIo, "no file"); };
  const Status failed = for_each_line(line_share(6, 0, 1), broken, refuse_second);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace millrace::training
