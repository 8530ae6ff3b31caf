#include "switch_agg/slot/kept_result.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace millrace::testing {
namespace {

using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::RetainedMarks;
using switch_agg::KeptResult;
using switch_agg::RackEntries;

constexpr uint32_t kWindowIndices = 2048;

/// Rack r retains every (r + 2)th index of the window.
bool retains(size_t rack, uint32_t index) { return index % (rack + 2) == 0; }

/// A turn of all indices whose sum every rack cut.
class AllRacksCut {
 public:
  explicit AllRacksCut(size_t racks) : bits_(racks, std::vector<uint64_t>(kWindowIndices / 64)) {
    std::iota(indices_.begin(), indices_.end(), uint16_t{0});
    for (size_t rack = 0; rack < racks; ++rack) {
      for (uint32_t index = 0; index < kWindowIndices; ++index)
        bits_[rack][index / 64] |= uint64_t{retains(rack, index) ? 1U : 0U} << (index % 64);
      racks_.push_back({.workers = uint64_t{1} << rack, .indices = bits_[rack]});
      selected_ |= uint64_t{1} << rack;
    }
  }

  /// Returns the number of entries that fit no fragment.
  uint32_t encode(KeptResult& result) {
    DatagramHeader header;
    header.type = DatagramType::kResult;
    header.turn = 1;
    const protocol::WindowCodecs codecs{.index = protocol::WindowIndexCodec::kGap,
                                        .value = protocol::WindowValueCodec::kFixed32};
    return result.encode(header, {.contributors = selected_, .selected = selected_, .decided_epoch = 1}, codecs,
                         kWindowIndices,
                         {.indices = indices_, .values = values_, .decoded = decoded_, .racks = racks_});
  }

 private:
  std::vector<uint16_t> indices_ = std::vector<uint16_t>(kWindowIndices);
  std::vector<int32_t> values_ = std::vector<int32_t>(kWindowIndices, 70'000);
  std::vector<int32_t> decoded_ = std::vector<int32_t>(kWindowIndices);
  std::vector<std::vector<uint64_t>> bits_;
  std::vector<RackEntries> racks_;
  uint64_t selected_ = 0;
};

/// Returns the number of entries of a fragment whose marks are right; 0: they are not.
uint32_t entries_of_fragment(const KeptResult& result, uint32_t fragment, size_t racks) {
  std::vector<uint16_t> indices(protocol::kFragmentEntriesMax);
  std::vector<int32_t> values(protocol::kFragmentEntriesMax);
  const DatagramHeader header = result.header(fragment);
  const ByteSpan body = result.body(fragment);
  const size_t extension_bytes = size_t{header.extension_words} * 8;
  const auto count = decode_window(header, body.subspan(extension_bytes), kWindowIndices, {indices, values});
  if (!count) return 0;
  const auto marks = RetainedMarks::read(body.first(extension_bytes), *count);
  if (!marks || marks->racks() != racks) return 0;
  for (size_t rack = 0; rack < racks; ++rack) {
    if (marks->workers(rack) != uint64_t{1} << rack) return 0;
    for (uint32_t entry = 0; entry < *count; ++entry) {
      if (marks->is_retained(rack, entry) != retains(rack, indices[entry])) return 0;
    }
  }
  return *count;
}

TEST(KeptResultTest, FragmentsHoldTheMarksOfAllRacks) {
  for (const size_t bytes : {size_t{1200}, size_t{1472}, size_t{8972}}) {
    std::vector<uint8_t> memory(protocol::kFragmentsMax * bytes);
    for (size_t racks = 1; racks <= protocol::kSwitchWorkersMax; ++racks) {
      KeptResult result(memory, bytes);
      AllRacksCut turn(racks);
      const uint32_t left_out = turn.encode(result);
      uint32_t entries = 0;
      for (uint32_t fragment = 0; fragment < result.fragments(); ++fragment) {
        EXPECT_LE(datagram_bytes(result.header(fragment)), bytes) << racks << " racks";
        const uint32_t here = entries_of_fragment(result, fragment, racks);
        ASSERT_GT(here, 0U) << racks << " racks, fragment " << fragment << " of " << bytes << " bytes";
        entries += here;
      }
      EXPECT_EQ(entries + left_out, kWindowIndices) << racks << " racks, " << bytes << " bytes";
    }
  }
}

TEST(KeptResultTest, ATurnWithoutEntriesHoldsTheMarksOfAllRacks) {
  std::vector<uint8_t> memory(protocol::kFragmentsMax * switch_agg::kFragmentBytesMin);
  KeptResult result(memory, switch_agg::kFragmentBytesMin);
  std::vector<RackEntries> racks;
  const std::vector<uint64_t> none(kWindowIndices / 64);
  for (size_t rack = 0; rack < protocol::kSwitchWorkersMax; ++rack)
    racks.push_back({.workers = uint64_t{1} << rack, .indices = none});
  const protocol::ResultTerms terms{.contributors = UINT64_MAX, .selected = UINT64_MAX, .decided_epoch = 1};
  EXPECT_EQ(result.encode({}, terms, {}, kWindowIndices, {.indices = {}, .values = {}, .decoded = {}, .racks = racks}),
            0U);
  ASSERT_EQ(result.fragments(), 1U);
  const auto marks = RetainedMarks::read(result.body(0), 0);
  ASSERT_TRUE(marks);
  EXPECT_EQ(marks->racks(), size_t{protocol::kSwitchWorkersMax});
}

}  // namespace
}  // namespace millrace::testing
