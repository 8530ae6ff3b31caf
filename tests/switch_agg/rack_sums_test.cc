// SWITCH.md, section 7, at the rack: each row of its table; and that no unit is ever sent up twice.
#include "switch_agg/rack_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/base/random.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {
namespace {

using protocol::DatagramHeader;
using protocol::DatagramType;
using switch_agg::RackSums;
using Verdict = RackSums::Verdict;
namespace flag = protocol::datagram_flag;

struct Partial {
  DatagramHeader header;
  protocol::PartialTerms terms;
  Entries entries;
};

class KeepingPartials : public switch_agg::PartialSink {
 public:
  explicit KeepingPartials(uint32_t window_indices) : window_indices_(window_indices) {}
  void partial(const DatagramHeader& header, const protocol::PartialTerms& terms, ByteSpan payload) override {
    EXPECT_EQ(header.type, DatagramType::kPartial);
    EXPECT_EQ(header.payload_bytes, payload.size());
    protocol::Datagram datagram;
    datagram.header = header;
    datagram.payload = payload;
    sent.push_back({header, terms, entries_of(datagram, window_indices_)});
  }
  std::vector<Partial> sent;

 private:
  uint32_t window_indices_;
};

class RackSumsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kIndices = 512;
  static constexpr uint64_t kRack = 0b111;

  struct Unit {
    uint16_t worker = 0;
    uint64_t turn = 1;
    uint32_t epoch = 1;
    uint8_t fragment = 0;
    uint8_t flags = flag::kLast;
    uint16_t slot = 0;
    uint32_t window = 0;
    uint32_t next = protocol::kNoWindow;
  };
  RackSums::Done give(const Unit& unit, const Entries& entries) {
    sink_.sent.clear();
    DatagramHeader header;
    header.worker = unit.worker;
    header.turn = unit.turn;
    header.epoch = unit.epoch;
    header.fragment = unit.fragment;
    header.flags = unit.flags;
    header.slot = unit.slot;
    header.window = unit.window;
    header.next = unit.next;
    std::vector<uint16_t> indices;
    std::vector<int32_t> values;
    for (const auto& [index, value] : entries) {
      indices.push_back(index);
      values.push_back(value);
    }
    return rack_.take(header, {indices, values}, kRack, sink_);
  }

  RackSums rack_{{.cells = 8, .window_indices = kIndices, .payload_bytes_max = 1000, .headroom = INT32_MAX / 4}};
  KeepingPartials sink_{kIndices};
};

TEST_F(RackSumsTest, AFreeCellIsClaimedAndTheLastOfTheRackSendsTheSumUp) {
  EXPECT_EQ(give({.worker = 0, .next = 8}, {{1, 5}, {2, 70'000}}).verdict, Verdict::kAdded);
  EXPECT_EQ(give({.worker = 2, .flags = 0, .next = 4}, {{2, 1}}).verdict, Verdict::kAdded);
  EXPECT_EQ(sink_.sent.size(), 0);
  const RackSums::Done done = give({.worker = 1, .next = 6}, {{9, -3}});
  EXPECT_EQ(done.completed, 1);
  ASSERT_EQ(sink_.sent.size(), 1);
  EXPECT_EQ(sink_.sent[0].entries, (Entries{{1, 5}, {2, 70'001}, {9, -3}}));
  EXPECT_EQ(sink_.sent[0].terms.have, 7);
  EXPECT_EQ(sink_.sent[0].terms.last, 3);
  EXPECT_EQ(sink_.sent[0].header.next, 4);
  // Freed: the same key again is a claim.
  EXPECT_EQ(give({.worker = 1}, {{9, -3}}).verdict, Verdict::kAdded);
}

TEST_F(RackSumsTest, ADuplicateIsDropped) {
  give({.worker = 0}, {{1, 5}});
  EXPECT_EQ(give({.worker = 0}, {{1, 5}}).verdict, Verdict::kDuplicate);
  give({.worker = 1}, {{1, 5}});
  give({.worker = 2}, {{1, 5}});
  EXPECT_EQ(sink_.sent.at(0).entries, (Entries{{1, 15}}));
}

TEST_F(RackSumsTest, FlushSendsTheSumWithTheUnitInItOnce) {
  give({.worker = 0}, {{1, 5}});
  RackSums::Done done = give({.worker = 1, .flags = flag::kLast | flag::kFlush}, {{1, 6}});
  EXPECT_EQ(done.verdict, Verdict::kAdded);
  EXPECT_EQ(done.flushed, 1);
  EXPECT_EQ(sink_.sent.at(0).entries, (Entries{{1, 11}}));
  EXPECT_EQ(sink_.sent.at(0).terms.have, 3);
  give({.worker = 0, .turn = 2}, {{1, 5}});
  done = give({.worker = 0, .turn = 2, .flags = flag::kLast | flag::kFlush}, {{1, 5}});
  EXPECT_EQ(done.verdict, Verdict::kDuplicate);
  EXPECT_EQ(sink_.sent.at(0).entries, (Entries{{1, 5}}));
}

TEST_F(RackSumsTest, FlushWithoutASumIsForwarded) {
  EXPECT_EQ(give({.worker = 1, .flags = flag::kLast | flag::kFlush}, {{1, 6}}).verdict, Verdict::kForward);
  EXPECT_EQ(sink_.sent.size(), 0);
}

TEST_F(RackSumsTest, AnOlderKeyIsForwardedAndANewerOneSendsTheOldSum) {
  give({.worker = 0, .turn = 5}, {{1, 5}});
  EXPECT_EQ(give({.worker = 1, .turn = 4}, {{1, 6}}).verdict, Verdict::kForward);
  EXPECT_EQ(give({.worker = 1, .turn = 9, .epoch = 0}, {{1, 6}}).verdict, Verdict::kForward);
  const RackSums::Done done = give({.worker = 1, .turn = 1, .epoch = 2}, {{1, 6}});
  EXPECT_EQ(done.verdict, Verdict::kAdded);
  EXPECT_EQ(done.evicted, 1);
  EXPECT_EQ(sink_.sent.at(0).entries, (Entries{{1, 5}}));
  EXPECT_EQ(sink_.sent.at(0).header.turn, 5);
  EXPECT_EQ(sink_.sent.at(0).header.epoch, 1);
}

TEST_F(RackSumsTest, ACellThatAnotherKeyHasForwards) {
  give({.worker = 0, .fragment = 0}, {{1, 5}});
  // 8 cells: slot 1 fragment 0 is 16 % 8, the same one.
  EXPECT_EQ(give({.worker = 0, .slot = 1}, {{1, 5}}).verdict, Verdict::kForward);
  EXPECT_EQ(give({.worker = 0, .fragment = 1}, {{1, 5}}).verdict, Verdict::kAdded);
}

TEST_F(RackSumsTest, AnotherBindingIsForwarded) {
  give({.worker = 0}, {{1, 5}});
  EXPECT_EQ(give({.worker = 1, .window = 2}, {{1, 5}}).verdict, Verdict::kForward);
}

TEST_F(RackSumsTest, AValueOverTheHeadroomIsForwarded) {
  EXPECT_EQ(give({.worker = 0}, {{1, INT32_MAX / 4 + 1}}).verdict, Verdict::kForward);
  EXPECT_EQ(give({.worker = 0}, {{1, INT32_MIN}}).verdict, Verdict::kForward);
}

TEST_F(RackSumsTest, ASumThatMightNotFitAPacketIsSentAsItIs) {
  Entries low;
  Entries high;
  for (uint16_t at = 0; at < 150; ++at) {
    low[at] = 100'000 + at;
    high[static_cast<uint16_t>(300 + at)] = 200'000 + at;
  }
  EXPECT_EQ(give({.worker = 0}, low).verdict, Verdict::kAdded);
  EXPECT_EQ(give({.worker = 1}, low).verdict, Verdict::kAdded);  // the same indices
  const RackSums::Done done = give({.worker = 2}, high);
  EXPECT_EQ(done.evicted, 1);
  EXPECT_EQ(done.verdict, Verdict::kAdded);
  ASSERT_EQ(sink_.sent.size(), 1);
  EXPECT_EQ(sink_.sent[0].terms.have, 3);
  EXPECT_EQ(sink_.sent[0].entries.size(), 150);
  EXPECT_EQ(rack_.flush_all(sink_), 1);
  EXPECT_EQ(sink_.sent[1].entries, high);
}

TEST_F(RackSumsTest, EmptyUnitsCount) {
  const auto empty = static_cast<uint8_t>(flag::kLast | flag::kEmpty | flag::kFin);
  give({.worker = 0, .flags = empty}, {});
  give({.worker = 1, .flags = empty}, {});
  give({.worker = 2, .flags = empty}, {});
  ASSERT_EQ(sink_.sent.size(), 1);
  EXPECT_EQ(sink_.sent[0].header.flags, flag::kEmpty | flag::kFin);
  EXPECT_EQ(sink_.sent[0].terms.have, 7);
}

TEST_F(RackSumsTest, WhatIsForgottenIsGone) {
  give({.worker = 0}, {{1, 5}});
  rack_.clear();
  give({.worker = 1}, {{2, 5}});
  EXPECT_EQ(rack_.flush_all(sink_), 1);
  EXPECT_EQ(sink_.sent[0].entries, (Entries{{2, 5}}));
}

/// Units of three workers in any order, resent at random with FLUSH: each unit goes up in one PARTIAL, raw, or waits;
/// never twice
/// without having been sent twice.
TEST_F(RackSumsTest, EveryUnitGoesUpAsOftenAsItWasTaken) {
  RandomSequence random(RandomKey::from(4));
  using Key = std::tuple<uint16_t, uint64_t, uint8_t, uint16_t>;  // slot, turn, fragment, worker
  std::map<Key, int> taken;
  std::map<Key, int> sent;
  const auto value_of = [](const Key& key) {
    return static_cast<int32_t>(std::get<0>(key) + 7 * std::get<1>(key) + 100 * std::get<2>(key) +
                                1000 * std::get<3>(key));
  };
  const auto note = [&](const Partial& partial) {
    Entries expected;
    for (uint64_t left = partial.terms.have; left != 0; left &= left - 1) {
      const Key key{partial.header.slot, partial.header.turn, partial.header.fragment,
                    static_cast<uint16_t>(std::countr_zero(left))};
      ++sent[key];
      expected[static_cast<uint16_t>(std::get<3>(key))] += value_of(key);
      expected[50] += value_of(key);
    }
    EXPECT_EQ(partial.entries, expected);
  };
  for (int packet = 0; packet < 20'000; ++packet) {
    const Key key{static_cast<uint16_t>(random.next_below(3)),
                  1 + static_cast<uint64_t>(packet) / 200 + random.next_below(2),
                  static_cast<uint8_t>(random.next_below(3)), static_cast<uint16_t>(random.next_below(3))};
    const uint8_t flags = random.next_below(5) == 0 ? flag::kFlush : uint8_t{0};
    const RackSums::Done done = give({.worker = std::get<3>(key),
                                      .turn = std::get<1>(key),
                                      .fragment = std::get<2>(key),
                                      .flags = flags,
                                      .slot = std::get<0>(key)},
                                     {{static_cast<uint16_t>(std::get<3>(key)), value_of(key)}, {50, value_of(key)}});
    taken[key] += done.verdict == Verdict::kAdded;
    for (const Partial& partial : sink_.sent) note(partial);
  }
  sink_.sent.clear();
  rack_.flush_all(sink_);
  for (const Partial& partial : sink_.sent) note(partial);
  std::erase_if(taken, [](const auto& entry) { return entry.second == 0; });
  EXPECT_EQ(taken, sent);
}

}  // namespace
}  // namespace millrace::testing
