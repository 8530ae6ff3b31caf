#include "worker/switch/turn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/base/random.h"
#include "worker/switch/integer_limit.h"

namespace millrace::worker {
namespace {

using protocol::Datagram;
using protocol::WindowIndexCodec;
using protocol::WindowValueCodec;

ContributionTerms terms(size_t payload_bytes = 1000, uint32_t window_indices = 65'536) {
  ContributionTerms out{.header = {}, .codecs = {WindowIndexCodec::kRaw, WindowValueCodec::kFixed16}};
  out.header.type = protocol::DatagramType::kContribution;
  out.window_indices = window_indices;
  out.payload_bytes_max = payload_bytes;
  out.limit = 32767;
  return out;
}

struct OwnOffer {
  std::vector<uint16_t> indices;
  std::vector<float> values;
};

OwnOffer random_offer(uint32_t entries, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  OwnOffer out;
  for (uint32_t i = 0; i < entries; ++i) {
    out.indices.push_back(static_cast<uint16_t>(i * 3 + random.next_below(3)));
    out.values.push_back(static_cast<float>(static_cast<int>(random.next_below(8001)) - 4000) / 4);
  }
  return out;
}

struct MadeContribution : Contribution {
  std::vector<int32_t> sent;  ///< [as offered]
};

MadeContribution contribution_of(const OwnOffer& offer, const ContributionTerms& with) {
  MadeContribution out;
  out.sent.assign(offer.indices.size(), 77);
  make_contribution({offer.indices, offer.values}, with, out.sent, out);
  return out;
}

/// Returns the offered entries whose integer is not 0.
std::map<uint16_t, int32_t> sent_of(const OwnOffer& offer, const MadeContribution& made) {
  std::map<uint16_t, int32_t> out;
  for (size_t i = 0; i < made.sent.size(); ++i) {
    if (made.sent[i] != 0) out[offer.indices[i]] = made.sent[i];
  }
  return out;
}

/// What receivers decode, without zeros.
std::map<uint16_t, int32_t> decoded_of(const Gathering& gathering) {
  std::map<uint16_t, int32_t> out;
  for (size_t i = 0; i < gathering.indices().size(); ++i) {
    if (gathering.integers()[i] != 0) out[gathering.indices()[i]] = gathering.integers()[i];
  }
  return out;
}

/// Returns the fragment as it would arrive in a result without contributors; valid until the next call.
Datagram arrived(const Fragment& fragment) {
  static ByteBuffer extension;
  extension = fragment.extension;
  if (extension.empty()) extension.assign(protocol::kResultTermsBytes, 0);
  return {
      .header = fragment.header, .extension = extension, .payload = fragment.payload, .signed_bytes = {}, .mac = {}};
}

TEST(Contribution, NothingIsOneEmptyLastFragment) {
  const MadeContribution none = contribution_of({}, terms());
  ASSERT_EQ(none.fragments.size(), 1u);
  EXPECT_EQ(none.fragments[0].header.flags, protocol::datagram_flag::kEmpty | protocol::datagram_flag::kLast);
  EXPECT_TRUE(none.fragments[0].payload.empty());
}

TEST(Contribution, ValuesThatAllRoundToZeroAreOneEntryOfZero) {
  const MadeContribution small = contribution_of({.indices = {3, 9}, .values = {0.1F, -0.3F}}, terms());
  EXPECT_EQ(small.sent, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(small.skipped, 1u);
  ASSERT_EQ(small.fragments.size(), 1u);
  EXPECT_EQ(small.fragments[0].header.flags, protocol::datagram_flag::kLast);
  Gathering gathering;
  EXPECT_EQ(gathering.take(arrived(small.fragments[0]), 65'536), Gathering::Taken::kWhole);
  EXPECT_EQ(gathering.indices(), std::vector<uint16_t>{9});
  EXPECT_EQ(gathering.integers(), std::vector<int32_t>{0});
}

TEST(Contribution, ZerosAloneAreNothing) {
  const MadeContribution none = contribution_of({.indices = {3, 9}, .values = {0.0F, -0.0F}}, terms());
  ASSERT_EQ(none.fragments.size(), 1u);
  EXPECT_NE(none.fragments[0].header.flags & protocol::datagram_flag::kEmpty, 0);
  EXPECT_EQ(none.sent, (std::vector<int32_t>{0, 0}));
}

TEST(Contribution, FragmentsDecodeToTheContributionWithEveryCodec) {
  for (const WindowIndexCodec index :
       {WindowIndexCodec::kRaw, WindowIndexCodec::kGap, WindowIndexCodec::kBitmap, WindowIndexCodec::kBloom}) {
    for (const WindowValueCodec value :
         {WindowValueCodec::kFixed16, WindowValueCodec::kFixed32, WindowValueCodec::kQsgd8, WindowValueCodec::kQsgd4}) {
      ContributionTerms with = terms();
      with.codecs = {index, value};
      OwnOffer offer = random_offer(1700, 5);
      for (size_t i = 0; i < offer.values.size(); i += 9) offer.values[i] = 0.25F;  // these are skipped
      const MadeContribution sent = contribution_of(offer, with);
      ASSERT_GT(sent.fragments.size(), 1u);
      ASSERT_GT(sent.skipped, 0u);
      Gathering gathering;
      for (const Fragment& fragment : sent.fragments) {
        const bool is_last = &fragment == &sent.fragments.back();
        EXPECT_EQ((fragment.header.flags & protocol::datagram_flag::kLast) != 0, is_last);
        EXPECT_EQ(gathering.take(arrived(fragment), with.window_indices),
                  is_last ? Gathering::Taken::kWhole : Gathering::Taken::kMore);
      }
      EXPECT_EQ(decoded_of(gathering), sent_of(offer, sent));
    }
  }
}

TEST(Contribution, WhatDoesNotFitSixteenFragmentsIsLeftOver) {
  ContributionTerms tight = terms(100);
  const OwnOffer offer = random_offer(4000, 6);
  const MadeContribution sent = contribution_of(offer, tight);
  EXPECT_EQ(sent.fragments.size(), protocol::kFragmentsMax);
  EXPECT_GT(sent.left_over, 0u);
  Gathering gathering;
  for (const Fragment& fragment : sent.fragments) gathering.take(arrived(fragment), tight.window_indices);
  ASSERT_TRUE(gathering.whole());
  EXPECT_EQ(gathering.indices().size() + sent.skipped + sent.left_over, offer.indices.size());
  EXPECT_EQ(decoded_of(gathering), sent_of(offer, sent));
  const auto last = std::span(sent.sent).last(sent.left_over);
  EXPECT_TRUE(std::ranges::all_of(last, [](int32_t one) { return one == 0; }));
}

TEST(Contribution, InMemoryOfAnotherTurnIsTheSame) {
  Contribution used;
  for (const uint32_t entries : {1500u, 3u, 0u, 700u, 0u, 4000u, 1u}) {
    OwnOffer offer = random_offer(entries, entries);
    if (entries == 3) offer.values = {0.1F, -0.3F, 0.2F};
    const MadeContribution fresh = contribution_of(offer, terms(100));
    std::vector<int32_t> sent(offer.indices.size());
    make_contribution({offer.indices, offer.values}, terms(100), sent, used);
    EXPECT_EQ(sent, fresh.sent);
    EXPECT_EQ(used.skipped, fresh.skipped);
    EXPECT_EQ(used.left_over, fresh.left_over);
    EXPECT_EQ(used.saturated, fresh.saturated);
    ASSERT_EQ(used.fragments.size(), fresh.fragments.size());
    for (size_t i = 0; i < fresh.fragments.size(); ++i) {
      EXPECT_EQ(used.fragments[i].payload, fresh.fragments[i].payload);
      EXPECT_TRUE(used.fragments[i].header == fresh.fragments[i].header);
    }
  }
}

TEST(Gathering, AnotherTurnInTheSameMemoryKnowsNothingOfTheFirst) {
  Gathering gathering;
  std::vector<Fragment> packets;
  for (const uint32_t entries : {1200u, 5u, 0u, 2000u, 5u}) {
    const OwnOffer offer = random_offer(entries, entries);
    const MadeContribution sent = contribution_of(offer, terms());
    gathering.clear();
    EXPECT_FALSE(gathering.whole());
    for (size_t i = sent.fragments.size(); i > 0; --i)
      EXPECT_NE(gathering.take(arrived(sent.fragments[i - 1]), 65'536), Gathering::Taken::kDuplicate);
    ASSERT_TRUE(gathering.whole());
    EXPECT_EQ(decoded_of(gathering), sent_of(offer, sent));
    gathering.take_packets(packets);
    ASSERT_EQ(packets.size(), sent.fragments.size());
    for (size_t i = 0; i < packets.size(); ++i) EXPECT_EQ(packets[i].payload, sent.fragments[i].payload);
  }
  // An incomplete contribution leaves nothing behind either.
  const Contribution half = contribution_of(random_offer(1200, 3), terms());
  ASSERT_GE(half.fragments.size(), 3u);
  gathering.clear();
  gathering.take(arrived(half.fragments[1]), 65'536);
  gathering.clear();
  const OwnOffer offer = random_offer(4, 4);
  const MadeContribution last = contribution_of(offer, terms());
  EXPECT_EQ(gathering.take(arrived(last.fragments[0]), 65'536), Gathering::Taken::kWhole);
  EXPECT_EQ(decoded_of(gathering), sent_of(offer, last));
}

TEST(Gathering, TakesFragmentsInAnyOrderAndDuplicatesOnce) {
  const OwnOffer offer = random_offer(1200, 7);
  const MadeContribution sent = contribution_of(offer, terms());
  ASSERT_GE(sent.fragments.size(), 3u);
  RandomSequence random(RandomKey::from(8));
  for (int round = 0; round < 50; ++round) {
    std::vector<size_t> order;
    for (size_t i = 0; i < sent.fragments.size(); ++i) order.push_back(i);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next_below(i)]);
    Gathering gathering;
    for (const size_t i : order) {
      EXPECT_FALSE(gathering.whole());
      gathering.take(arrived(sent.fragments[i]), 65'536);
      EXPECT_EQ(gathering.take(arrived(sent.fragments[i]), 65'536), Gathering::Taken::kDuplicate);
    }
    ASSERT_TRUE(gathering.whole());
    EXPECT_EQ(decoded_of(gathering), sent_of(offer, sent));
    std::vector<Fragment> packets;
    gathering.take_packets(packets);
    ASSERT_EQ(packets.size(), sent.fragments.size());
    for (size_t i = 0; i < packets.size(); ++i) EXPECT_EQ(packets[i].payload, sent.fragments[i].payload);
  }
}

TEST(Gathering, RefusesFragmentsThatContradictEachOther) {
  const Contribution sent = contribution_of(random_offer(1200, 9), terms());
  Gathering gathering;
  gathering.take(arrived(sent.fragments[0]), 65'536);
  Fragment other_next = sent.fragments[1];
  other_next.header.next = 77;
  EXPECT_EQ(gathering.take(arrived(other_next), 65'536), Gathering::Taken::kContradiction);
  Fragment other_extension = sent.fragments[1];
  other_extension.extension.assign(protocol::kResultTermsBytes, 0);
  other_extension.extension[0] = 1;
  EXPECT_EQ(gathering.take(arrived(other_extension), 65'536), Gathering::Taken::kContradiction);
  gathering.take(arrived(sent.fragments[2]), 65'536);
  Fragment last_before = sent.fragments[1];
  last_before.header.flags |= protocol::datagram_flag::kLast;
  EXPECT_EQ(gathering.take(arrived(last_before), 65'536), Gathering::Taken::kContradiction);
}

TEST(Gathering, FragmentsWhoseIndicesOverlapAreThrownAway) {
  const Contribution sent = contribution_of(random_offer(700, 9), terms());
  ASSERT_EQ(sent.fragments.size(), 3u);
  Gathering gathering;
  Fragment first_again = sent.fragments[0];
  first_again.header.fragment = 1;
  gathering.take(arrived(sent.fragments[0]), 65'536);
  gathering.take(arrived(first_again), 65'536);
  EXPECT_EQ(gathering.take(arrived(sent.fragments[2]), 65'536), Gathering::Taken::kContradiction);
  EXPECT_FALSE(gathering.whole());
}

/// Where a result leaves something out, it begins anywhere and goes round the window's end.
TEST(Gathering, FragmentsMayGoRoundTheWindowsEnd) {
  const OwnOffer offer = random_offer(700, 9);
  const MadeContribution sent = contribution_of(offer, terms());
  ASSERT_EQ(sent.fragments.size(), 3u);
  Gathering gathering;
  for (size_t i = 0; i < 3; ++i) {
    Fragment turned = sent.fragments[(i + 2) % 3];
    turned.header.fragment = static_cast<uint8_t>(i);
    turned.header.flags = i == 2 ? protocol::datagram_flag::kLast : uint8_t{0};
    EXPECT_EQ(gathering.take(arrived(turned), 65'536), i == 2 ? Gathering::Taken::kWhole : Gathering::Taken::kMore);
  }
  EXPECT_TRUE(std::ranges::is_sorted(gathering.indices()));
  EXPECT_EQ(decoded_of(gathering), sent_of(offer, sent));
}

TEST(Gathering, SaysWhatRacksKept) {
  const Contribution sent = contribution_of(random_offer(700, 9), terms());
  ASSERT_EQ(sent.fragments.size(), 3u);
  Gathering gathering;
  size_t before = 0;
  for (Fragment fragment : sent.fragments) {
    const size_t entries = fragment.header.entries;
    fragment.extension.assign(protocol::kResultTermsBytes, 0);
    protocol::put_result_terms({.contributors = 7, .selected = 6, .decided_epoch = 1}, fragment.extension);
    std::vector<uint64_t> words(1 + (entries + 63) / 64, 0);
    words[0] = 6;
    for (size_t i = 0; i < entries; ++i) words[1 + i / 64] |= uint64_t{(before + i) % 3 == 0} << (i % 64);
    const size_t at = fragment.extension.size();
    fragment.extension.resize(at + words.size() * 8);
    std::memcpy(fragment.extension.data() + at, words.data(), words.size() * 8);
    before += entries;
    Fragment shorter = fragment;
    shorter.extension.resize(shorter.extension.size() - 8);
    EXPECT_EQ(gathering.take(arrived(shorter), 65'536), Gathering::Taken::kBadPayload);
    gathering.take(arrived(fragment), 65'536);
  }
  ASSERT_TRUE(gathering.whole());
  ASSERT_EQ(gathering.racks().size(), 1u);
  EXPECT_EQ(gathering.racks()[0].workers, 6u);
  ASSERT_EQ(gathering.racks()[0].kept.size(), before);
  for (size_t i = 0; i < before; ++i) EXPECT_EQ(gathering.racks()[0].kept[i], i % 3 == 0 ? 1 : 0) << i;
}

TEST(Gathering, RefusesPayloadsThatDoNotDecode) {
  const Contribution sent = contribution_of(random_offer(10, 9), terms());
  Fragment broken = sent.fragments[0];
  broken.payload.pop_back();
  --broken.header.payload_bytes;
  Gathering gathering;
  EXPECT_EQ(gathering.take(arrived(broken), 65'536), Gathering::Taken::kBadPayload);
  EXPECT_EQ(gathering.take(arrived(sent.fragments[0]), 65'536), Gathering::Taken::kWhole);
}

/// Of a window that begins at 65,536 times 3.
constexpr uint32_t kBegin = 3 * 65'536;

std::vector<uint32_t> in_tensor(const OwnOffer& offer) {
  std::vector<uint32_t> indices;
  for (const uint16_t index : offer.indices) indices.push_back(kBegin + index);
  return indices;
}

class SettledTest : public ::testing::Test {
 protected:
  std::map<uint32_t, float> back(const std::vector<uint16_t>& applied) const {
    const std::vector<uint32_t> indices = in_tensor(offer_);
    CompletedWindow window;
    window.begin = kBegin;
    window.offered = indices;
    window.values = offer_.values;
    window.sent = sent_.sent;
    window.applied = applied;
    std::map<uint32_t, float> values;
    window.each_returned([&values](uint32_t index, float value) { values[index - kBegin] = value; });
    return values;
  }
  OwnOffer offer_{.indices = {1, 5, 9, 11}, .values = {2.0F, 3.25F, 0.25F, 40000.0F}};
  MadeContribution sent_ = contribution_of(offer_, terms());  // 2, 3, nothing, 32767
};

TEST_F(SettledTest, AllIsBackWhereTheWorkerIsNoContributor) {
  EXPECT_EQ(back({}), (std::map<uint32_t, float>{{1, 2.0F}, {5, 3.25F}, {9, 0.25F}, {11, 40000.0F}}));
}

TEST_F(SettledTest, AppliedEntriesReturnRoundingAndSaturationErrors) {
  EXPECT_EQ(back({0, 1, 5, 9, 11, 60}), (std::map<uint32_t, float>{{5, 0.25F}, {9, 0.25F}, {11, 40000.0F - 32767.0F}}));
}

TEST_F(SettledTest, EntriesThatTheUpdateOmittedReturnWhole) {
  EXPECT_EQ(back({5}), (std::map<uint32_t, float>{{1, 2.0F}, {5, 0.25F}, {9, 0.25F}, {11, 40000.0F}}));
}

/// Against a loop that takes one at a time, where any are skipped and any are left over.
TEST(Completed, ACompletedWindowMatchesTheEntryByEntryLoop) {
  RandomSequence random(RandomKey::from(21));
  uint64_t skipped_met = 0;
  uint64_t left_over_met = 0;
  for (int round = 0; round < 200; ++round) {
    OwnOffer offer = random_offer(static_cast<uint32_t>(random.next_below(400)), 100 + static_cast<uint64_t>(round));
    const uint64_t zeros = random.next_below(4);
    for (float& value : offer.values) value = random.next_below(4) < zeros ? value / 1e6F : value;
    const ContributionTerms with = terms(64 + random.next_below(300));
    const MadeContribution made = contribution_of(offer, with);
    std::vector<uint16_t> applied;
    for (uint32_t index = 0; index < 1300; ++index) {
      if (random.next_below(3) > 0) applied.push_back(static_cast<uint16_t>(index));
    }
    const std::vector<uint32_t> indices = in_tensor(offer);
    CompletedWindow window;
    window.begin = kBegin;
    window.offered = indices;
    window.sent = made.sent;
    window.applied = applied;
    const Buffer<int32_t> taken = window.taken();
    ASSERT_EQ(taken.size(), offer.indices.size());
    size_t fits = static_cast<size_t>(std::ranges::count_if(
                      offer.values, [&](float value) { return to_grid(value, 0, with.limit) != 0; })) -
                  made.left_over;
    for (size_t i = 0; i < taken.size(); ++i) {
      int32_t sent = to_grid(offer.values[i], 0, with.limit);
      if (sent != 0 && fits == 0) sent = 0;
      if (sent != 0) --fits;
      EXPECT_EQ(made.sent[i], sent) << i;
      EXPECT_EQ(taken[i], std::ranges::binary_search(applied, offer.indices[i]) ? sent : 0) << i;
    }
    skipped_met += made.skipped;
    left_over_met += made.left_over;
  }
  EXPECT_GT(skipped_met, 1000u);
  EXPECT_GT(left_over_met, 50u);
}

}  // namespace
}  // namespace millrace::worker
