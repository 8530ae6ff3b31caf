#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <stdexcept>

#include "kernels/reduce/reduce.h"
#include "kernels/select/top_k.h"
#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"

/// Ok-Topk whole: its selection, its volume sent and received, and hostile peers; and gTopk's volume.
namespace millrace::peer::testing {
namespace {

using Boundaries = AllreduceSettings::Boundaries;
using Streams = std::vector<SharedStream>;

AllreduceSettings oktopk_settings_of(uint64_t dimension, uint64_t k, Boundaries boundaries) {
  AllreduceSettings settings;
  settings.dimension = dimension;
  settings.k = k;
  settings.boundaries = boundaries;
  return settings;
}

/// The volume of one step, in words of 4 bytes.
struct OktopkVolume {
  double sent_max = 0;
  double received_max = 0;
  double k = 0;  ///< as selected: the most that a rank contributes, or that the result has
};

OktopkVolume step_volume(PumpedAllreduce& all, const Streams& own) {
  std::ranges::fill(all.pump.body_bytes, 0);
  std::ranges::fill(all.pump.body_bytes_received, 0);
  const auto results = all.step(own);
  OktopkVolume volume;
  for (uint32_t rank = 0; rank < own.size(); ++rank) {
    if (!results[rank]) throw std::runtime_error(results[rank].error().message);
    volume.k = std::max(volume.k, static_cast<double>(own[rank].view.count()));
  }
  volume.k = std::max(volume.k, static_cast<double>(results[0]->sum.view.count()));
  volume.sent_max = static_cast<double>(std::ranges::max(all.pump.body_bytes)) / 4;
  volume.received_max = static_cast<double>(std::ranges::max(all.pump.body_bytes_received)) / 4;
  return volume;
}

enum class Ranks { kInOrder, kReversed };

Streams oktopk_contributions(Spread spread, uint32_t size, uint64_t dimension, uint64_t k, uint64_t seed,
                             Ranks ranks = Ranks::kInOrder) {
  Streams own;
  for (uint32_t rank = 0; rank < size; ++rank) own.push_back(contribution_of(spread, rank, size, dimension, k, seed));
  if (ranks == Ranks::kReversed) std::ranges::reverse(own);
  return own;
}

constexpr uint32_t kOktopkSizes[] = {2, 3, 4, 5, 8, 16, 31, 64};
constexpr uint64_t kOktopkDimension = 1'000'000;
constexpr uint64_t kK = 2000;

double bound(double k, uint32_t size) { return 6 * k * (size - 1) / size; }

void expect_bounded(Spread spread, Boundaries boundaries, Ranks ranks) {
  for (const uint32_t size : kOktopkSizes) {
    SCOPED_TRACE(std::string(name_of(spread)) + ", ranks " + std::to_string(size));
    PumpedAllreduce all(size, AlgorithmId::kOktopk, oktopk_settings_of(kOktopkDimension, kK, boundaries), 1);
    for (uint64_t step = 0; step < 3; ++step) {
      const OktopkVolume volume =
          step_volume(all, oktopk_contributions(spread, size, kOktopkDimension, kK, 10 + step, ranks));
      if (step == 0) continue;  // thresholds and regions are made: apart
      EXPECT_LE(volume.sent_max, bound(volume.k, size)) << "step " << step << ", k " << volume.k;
      EXPECT_LE(volume.received_max, bound(volume.k, size)) << "step " << step << ", k " << volume.k;
    }
  }
}

TEST(OktopkVolume, AveragedBoundariesForWorkersAlike) {
  for (const Spread spread : {Spread::kUniform, Spread::kClustered, Spread::kSame, Spread::kOneRegion}) {
    expect_bounded(spread, Boundaries::kAveraged, Ranks::kInOrder);
  }
}

TEST(OktopkVolume, PooledBoundariesForEveryDistribution) {
  for (const Spread spread : kSpreads) expect_bounded(spread, Boundaries::kPooled, Ranks::kInOrder);
  for (const Spread spread : {Spread::kDisjoint, Spread::kTwoEnds}) {
    expect_bounded(spread, Boundaries::kPooled, Ranks::kReversed);
  }
}

/// The naive reduce of [OkTopk22, 3.1.1]: one rank gets all that the others have.
TEST(OktopkVolume, EqualBoundariesWhereIndicesAreUniformOnly) {
  expect_bounded(Spread::kUniform, Boundaries::kEqual, Ranks::kInOrder);
  constexpr uint32_t kRanks = 16;
  PumpedAllreduce all(kRanks, AlgorithmId::kOktopk, oktopk_settings_of(kOktopkDimension, kK, Boundaries::kEqual), 1);
  for (uint64_t step = 0; step < 3; ++step) {
    const OktopkVolume volume =
        step_volume(all, oktopk_contributions(Spread::kOneRegion, kRanks, kOktopkDimension, kK, step));
    if (step == 0) continue;
    EXPECT_GT(volume.received_max, bound(volume.k, kRanks)) << "step " << step;
  }
}

TEST(OktopkVolume, TheSentVolumeIsBoundedForAnyBoundaries) {
  for (const Spread spread : {Spread::kDisjoint, Spread::kTwoEnds}) {
    for (const uint32_t size : {3u, 4u, 7u, 16u, 64u}) {
      SCOPED_TRACE(std::string(name_of(spread)) + ", ranks " + std::to_string(size));
      PumpedAllreduce all(size, AlgorithmId::kOktopk, oktopk_settings_of(kOktopkDimension, kK, Boundaries::kAveraged),
                          1);
      for (uint64_t step = 0; step < 3; ++step) {
        const OktopkVolume volume =
            step_volume(all, oktopk_contributions(spread, size, kOktopkDimension, kK, step, Ranks::kReversed));
        if (step == 0) continue;
        EXPECT_LE(volume.sent_max, bound(volume.k, size)) << "step " << step;
      }
    }
  }
}

/// Returns k entries a rank, spread evenly, no two ranks at one index. Those of one P-th of the index range are large,
/// so that the result lies in one region.
Streams hot_region(uint32_t size, uint32_t region, uint64_t seed) {
  Streams own;
  for (uint32_t rank = 0; rank < size; ++rank) {
    RandomSequence draws(RandomKey::from(seed), rank);
    Stream stream = Stream::empty(kOktopkDimension);
    const uint64_t apart = kOktopkDimension / kK;
    for (uint64_t i = 0; i < kK; ++i) {
      const uint64_t index = i * apart + draws.next_below(apart / size) * size + rank;
      const bool hot = index * size / kOktopkDimension == region;
      stream.indices.push_back(static_cast<uint32_t>(index));
      stream.values.push_back(static_cast<float>(1 + draws.next_unit()) * (hot ? 1000.0f : 1.0f));
    }
    own.push_back(SharedStream::from(std::move(stream)));
  }
  return own;
}

TEST(OktopkVolume, AllOfTheResultInOneRegionWhoseOwnerHasNoMoreOfItThanOthers) {
  for (const uint32_t size : kOktopkSizes) {
    SCOPED_TRACE("ranks " + std::to_string(size));
    PumpedAllreduce all(size, AlgorithmId::kOktopk, oktopk_settings_of(kOktopkDimension, kK, Boundaries::kPooled), 1);
    for (uint64_t step = 0; step < 3; ++step) {
      const OktopkVolume volume = step_volume(all, hot_region(size, size / 2, step));
      if (step == 0) continue;
      const double beside = 2 * (size - 1) + 2 * size;  // sizes, and uneven shares
      EXPECT_LE(volume.sent_max, bound(volume.k, size) + beside) << "step " << step;
      EXPECT_LE(volume.received_max, bound(volume.k, size) + beside) << "step " << step;
    }
  }
}

TEST(OktopkVolume, OneRankHasEverything) {
  for (const uint32_t size : kOktopkSizes) {
    SCOPED_TRACE("ranks " + std::to_string(size));
    PumpedAllreduce all(size, AlgorithmId::kOktopk, oktopk_settings_of(kOktopkDimension, kK, Boundaries::kPooled), 1);
    for (uint64_t step = 0; step < 3; ++step) {
      Streams own(size, SharedStream::from(Stream::empty(kOktopkDimension)));
      own[size / 2] = contribution_of(Spread::kUniform, 0, size, kOktopkDimension, kK, step);
      const OktopkVolume volume = step_volume(all, own);
      if (step == 0) continue;
      EXPECT_LE(volume.sent_max, bound(volume.k, size)) << "step " << step;
      EXPECT_LE(volume.received_max, bound(volume.k, size)) << "step " << step;
    }
  }
}

/// The paper's periods: what thresholds and regions take, over the steps that use them.
TEST(OktopkVolume, AmortisedOverThePeriods) {
  for (const uint32_t size : {4u, 16u}) {
    for (const Boundaries boundaries : {Boundaries::kAveraged, Boundaries::kPooled}) {
      PumpedAllreduce all(size, AlgorithmId::kOktopk, oktopk_settings_of(kOktopkDimension, kK, boundaries), 1);
      double exact = 0, reused = 0, k = 0;
      for (uint64_t step = 0; step < 64; ++step) {
        const OktopkVolume volume =
            step_volume(all, oktopk_contributions(Spread::kUniform, size, kOktopkDimension, kK, step));
        (step % 32 == 0 ? exact : reused) += volume.sent_max;
        k = std::max(k, volume.k);
      }
      const std::string name = std::to_string(size) + (boundaries == Boundaries::kPooled ? "_pooled" : "_averaged");
      const auto in_k = [k](double words) { return std::to_string(words / k) + " k"; };
      std::cout << "ranks " << name << ": words a rank, exact step " << in_k(exact / 2) << ", other steps "
                << in_k(reused / 62) << ", amortised " << in_k((exact + reused) / 64) << "\n";
      EXPECT_LE((exact + reused) / 64, bound(k, size)) << name;
    }
  }
}

/// Numbers on which f32 sums of a few ranks are exact, hardly two of a like magnitude.
std::vector<float> dense_gradient(uint64_t dimension, uint32_t rank, uint64_t seed) {
  RandomSequence draws(RandomKey::from(seed), rank);
  std::vector<float> values(dimension);
  for (float& value : values) {
    const double normal = std::clamp(draws.next_normal() * 100'000, -1e6, 1e6);
    value = static_cast<float>(std::trunc(normal)) / 1024;
  }
  return values;
}

TEST(Oktopk, AtExactThresholdsIsTopkOfTheSumOfTopk) {
  constexpr uint64_t kN = 5000, kTop = 100;
  for (const uint32_t size : {1u, 2u, 3u, 5u, 8u}) {
    AllreduceSettings settings = oktopk_settings_of(kN, kTop, Boundaries::kAveraged);
    settings.thresholds_period = 1;
    PumpedAllreduce all(size, AlgorithmId::kOktopk, settings, size);
    for (uint64_t step = 0; step < 3; ++step) {
      SCOPED_TRACE("ranks " + std::to_string(size) + ", step " + std::to_string(step));
      Streams own;
      millrace::testing::Entries sums;
      for (uint32_t rank = 0; rank < size; ++rank) {
        Stream dense = millrace::testing::dense_of(dense_gradient(kN, rank, step));
        IndexBuffer selected;
        ASSERT_TRUE(select_top_k_nonzero(dense.values, kTop, selected).has_value());
        for (const uint32_t index : selected) sums[index] += dense.values[index];
        own.push_back(SharedStream::from(std::move(dense)));
      }
      std::vector<float> magnitudes;
      for (const auto& [index, value] : sums) magnitudes.push_back(std::abs(value));
      std::ranges::sort(magnitudes, std::greater{});
      std::erase_if(sums, [&](const auto& entry) { return std::abs(entry.second) < magnitudes[kTop - 1]; });
      const Stream expected = millrace::testing::stream_of(kN, sums);
      for (const auto& result : all.step(own)) {
        ASSERT_TRUE(result.has_value()) << result.error().message;
        EXPECT_TRUE(millrace::testing::same_bits(result->sum.view, expected.view()));
        EXPECT_EQ(result->returned.count(), 0u);
      }
    }
  }
}

TEST(Oktopk, AReusedThresholdStaysNearKWhereTheScaleChanges) {
  constexpr uint64_t kN = 20'000, kTop = 200;
  AllreduceSettings settings = oktopk_settings_of(kN, kTop, Boundaries::kPooled);
  settings.thresholds_period = 1000;
  PumpedAllreduce all(4, AlgorithmId::kOktopk, settings, 1);
  float scale = 1;
  for (uint64_t step = 0; step < 30; ++step) {
    scale *= step == 10 ? 1000.0f : step == 20 ? 0.001f : step < 15 ? 1.05f : 0.95f;
    Streams own;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      std::vector<float> values = dense_gradient(kN, rank, step);
      for (float& value : values) value *= scale;
      own.push_back(SharedStream::from(millrace::testing::dense_of(values)));
    }
    const auto results = all.step(own);
    ASSERT_TRUE(results[0].has_value()) << results[0].error().message;
    EXPECT_GE(results[0]->sum.view.count(), kTop / 2) << "step " << step;
    EXPECT_LE(results[0]->sum.view.count(), 2 * kTop) << "step " << step;
  }
}

Streams gradients_of_step(uint32_t size, uint64_t dimension, uint64_t step) {
  Streams own;
  for (uint32_t rank = 0; rank < size; ++rank) {
    std::vector<float> values = dense_gradient(dimension, rank, step);
    for (float& value : values) value *= 1 + 0.02F * static_cast<float>(step);
    own.push_back(SharedStream::from(millrace::testing::dense_of(values)));
  }
  return own;
}

TEST(Oktopk, ARestoredRunContinuesToTheSameBits) {
  constexpr uint64_t kN = 5000, kTop = 100;
  constexpr uint32_t kRanks = 3;
  for (const Boundaries boundaries : {Boundaries::kAveraged, Boundaries::kPooled}) {
    AllreduceSettings settings = oktopk_settings_of(kN, kTop, boundaries);
    settings.thresholds_period = 4;
    settings.boundaries_period = 5;
    PumpedAllreduce whole(kRanks, AlgorithmId::kOktopk, settings, 1);
    size_t differ = 0;
    for (uint64_t step = 0; step < 12; ++step) {
      PumpedAllreduce resumed(kRanks, AlgorithmId::kOktopk, settings, 1);
      PumpedAllreduce fresh(kRanks, AlgorithmId::kOktopk, settings, 1);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        ASSERT_TRUE(resumed.ranks()[rank]->restore_retained(whole.ranks()[rank]->retained()).has_value());
        EXPECT_EQ(resumed.ranks()[rank]->common_digest(), whole.ranks()[0]->common_digest());
      }
      const Streams own = gradients_of_step(kRanks, kN, step);
      const auto expected = whole.step(own), found = resumed.step(own), other = fresh.step(own);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        ASSERT_TRUE(found[rank].has_value()) << found[rank].error().message;
        EXPECT_TRUE(millrace::testing::same_bits(found[rank]->sum.view, expected[rank]->sum.view)) << "step " << step;
        EXPECT_EQ(found[rank]->contributed, expected[rank]->contributed) << "step " << step;
      }
      differ += millrace::testing::same_bits(other[0]->sum.view, expected[0]->sum.view) ? 0 : 1;
    }
    EXPECT_GT(differ, 0u) << "a run without the state gives the same sums: the test shows nothing";
  }
}

TEST(Oktopk, DamagedNumbersAreRefusedAndChangeNothing) {
  constexpr uint64_t kN = 5000;
  PumpedAllreduce all(3, AlgorithmId::kOktopk, oktopk_settings_of(kN, 100, Boundaries::kPooled), 1);
  for (uint64_t step = 0; step < 2; ++step) ASSERT_TRUE(all.step(gradients_of_step(3, kN, step))[0].has_value());
  Allreduce& one = *all.ranks()[0];
  const Retained retained = one.retained();
  for (size_t length = 0; length < retained.size(); ++length) {
    EXPECT_FALSE(one.restore_retained(std::span(retained).first(length)).has_value()) << length;
  }
  for (size_t at = 0; at < retained.size(); ++at) {
    if (at == 1) continue;  // the step: any number is one
    Retained damaged = retained;
    damaged[at] = uint64_t{1} << 63;
    EXPECT_FALSE(one.restore_retained(damaged).has_value()) << at;
  }
  EXPECT_EQ(one.retained(), retained);
  // Ranks whose boundaries differ would wait for each other: their descriptions differ first.
  Retained shifted = retained;
  constexpr size_t kFirstBoundary = 5;  // behind two lengths, step, threshold and the boundary 0
  ++shifted[kFirstBoundary];
  ASSERT_TRUE(one.restore_retained(shifted).has_value());
  EXPECT_NE(one.common_digest(), all.ranks()[1]->common_digest());
}

TEST(Oktopk, BoundariesOfAnotherNumberOfRanksEndTheStep) {
  const AllreduceSettings settings = oktopk_settings_of(5000, 100, Boundaries::kPooled);
  PumpedAllreduce three(3, AlgorithmId::kOktopk, settings, 1), two(2, AlgorithmId::kOktopk, settings, 1);
  ASSERT_TRUE(three.step(gradients_of_step(3, 5000, 0))[0].has_value());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(two.ranks()[rank]->restore_retained(three.ranks()[rank]->retained()).has_value());
  }
  const auto results = two.step(gradients_of_step(2, 5000, 1));
  ASSERT_FALSE(results[0].has_value());
  EXPECT_EQ(results[0].error().code, ErrorCode::kInvalidArgument);
}

TEST(Oktopk, OfManyEqualMagnitudesTheFirstKAreTaken) {
  for (const uint32_t size : {1u, 2u, 3u, 8u}) {
    constexpr uint64_t kN = 10'000, kTop = 50;
    PumpedAllreduce all(size, AlgorithmId::kOktopk, oktopk_settings_of(kN, kTop, Boundaries::kPooled), 1);
    for (uint64_t step = 0; step < 4; ++step) {
      Streams own;
      for (uint32_t rank = 0; rank < size; ++rank) {
        Stream stream = Stream::empty(kN);
        for (uint32_t i = 0; i < kTop; ++i) {
          stream.indices.push_back((i * size + rank) * 3);
          stream.values.push_back(i % 2 == 0 ? 1.0f : -1.0f);
        }
        own.push_back(SharedStream::from(std::move(stream)));
      }
      for (const auto& result : all.step(own)) {
        ASSERT_TRUE(result.has_value()) << result.error().message;
        // With two ranks all of them are no more than 2 k.
        ASSERT_EQ(result->sum.view.count(), size == 2 ? 2 * kTop : kTop);
        for (uint32_t i = 0; i < kTop; ++i) EXPECT_EQ(result->sum.view.indices[i], i * 3);
      }
    }
  }
}

TEST(Oktopk, BucketsOfAnySizeGiveTheSameBits) {
  constexpr uint32_t kRanks = 7;
  Streams own;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    RandomSequence draws(RandomKey::from(3), rank);
    std::vector<float> values(5000);
    for (float& value : values) value = static_cast<float>(draws.next_normal());
    own.push_back(SharedStream::from(millrace::testing::dense_of(values)));
  }
  std::optional<SharedStream> first;
  for (const uint32_t in_flight : {1u, 2u, 6u, 100u}) {
    AllreduceSettings settings = oktopk_settings_of(5000, 500, Boundaries::kAveraged);
    settings.messages_in_flight = in_flight;
    PumpedAllreduce all(kRanks, AlgorithmId::kOktopk, settings, in_flight);
    for (const auto& result : all.step(own)) {
      ASSERT_TRUE(result.has_value()) << result.error().message;
      if (!first) first = result->sum;
      EXPECT_TRUE(millrace::testing::same_bits(result->sum.view, first->view));
    }
  }
}

TEST(Oktopk, NotFiniteAndOtherDimensionsAreErrorsOnAllRanks) {
  for (const AlgorithmId id :
       {AlgorithmId::kOktopk, AlgorithmId::kGtopk, AlgorithmId::kTopkA, AlgorithmId::kGaussianK}) {
    for (const bool finite : {true, false}) {
      Streams own = oktopk_contributions(Spread::kUniform, 3, 1000, 20, 3);
      Stream bad = Stream::empty(finite ? 999 : 1000);
      bad.indices = {5};
      bad.values = {finite ? 1.0f : std::numeric_limits<float>::infinity()};
      own[1] = SharedStream::from(std::move(bad));
      PumpedAllreduce all(3, id, oktopk_settings_of(1000, 20, Boundaries::kPooled), 1);
      for (const auto& result : all.step(own)) EXPECT_FALSE(result.has_value());
    }
  }
}

/// Flips a bit, cuts off, or takes for something else.
void damage(PeerMessage& message, RandomSequence& draws) {
  if (draws.next_below(8) != 0) return;
  ByteBuffer bytes(message.body.bytes.begin(), message.body.bytes.end());
  switch (draws.next_below(4)) {
    case 0: message.form = static_cast<BodyForm>(draws.next_below(5)); break;
    case 1: bytes.resize(draws.next_below(bytes.size() + 1)); break;
    case 2: bytes.resize(bytes.size() + 8, 0xff); break;
    default:
      if (!bytes.empty()) bytes[draws.next_below(bytes.size())] ^= static_cast<uint8_t>(1 + draws.next_below(255));
  }
  message.body = SharedBytes::from(std::move(bytes));
}

TEST(Oktopk, DamagedMessagesAreErrorsOrHarmless) {
  int errors = 0;
  for (const AlgorithmId id : {AlgorithmId::kOktopk, AlgorithmId::kGtopk, AlgorithmId::kTopkA}) {
    for (uint64_t seed = 1; seed <= 150; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      AllreduceSettings settings =
          oktopk_settings_of(2000, 50, seed % 2 == 0 ? Boundaries::kPooled : Boundaries::kAveraged);
      if (seed % 3 == 0) settings.wire.contribution = settings.wire.sums = codec_from_text("gap+raw").value();
      PumpedAllreduce all(5, id, settings, seed);
      RandomSequence draws(RandomKey::from(seed), 99);
      all.pump.tamper = [&draws](Outgoing& out) { damage(out.message, draws); };
      for (const auto& result : all.step(oktopk_contributions(Spread::kUniform, 5, 2000, 50, seed))) {
        EXPECT_TRUE(!result || validate(result->sum.view).has_value());
        errors += result ? 0 : 1;
      }
    }
  }
  EXPECT_GT(errors, 100);
}

TEST(Oktopk, ARestartedRanksDescriptionDiffersFromTheOthers) {
  const auto settings = oktopk_settings_of(kOktopkDimension, kK, Boundaries::kAveraged);
  PumpedAllreduce all(2, AlgorithmId::kOktopk, settings, 1);
  for (const auto& result : all.step(oktopk_contributions(Spread::kUniform, 2, kOktopkDimension, kK, 7)))
    ASSERT_TRUE(result.has_value());
  const auto anew = make_allreduce(AlgorithmId::kOktopk, settings).value();
  EXPECT_NE(description_of(*all.ranks()[0], settings), description_of(*anew, settings));
}

TEST(Gtopk, ATreeOfKEntriesAMessage) {
  for (const uint32_t size : kOktopkSizes) {
    PumpedAllreduce all(size, AlgorithmId::kGtopk, oktopk_settings_of(kOktopkDimension, kK, Boundaries::kAveraged), 1);
    const OktopkVolume volume =
        step_volume(all, oktopk_contributions(Spread::kDisjoint, size, kOktopkDimension, kK, 7));
    const double steps = std::ceil(std::log2(size));
    EXPECT_LE(volume.sent_max, 2 * kK * (steps + 1));
    EXPECT_LE(volume.received_max, 2 * kK * (steps + 1));
    EXPECT_LE(volume.k, kK);
  }
}

TEST(Gtopk, WhereAllRanksSelectTheSameItIsTheExactSum) {
  const Streams own = oktopk_contributions(Spread::kSame, 6, 5000, 100, 7);
  std::vector<StreamView> views;
  for (const auto& one : own) views.push_back(one.view);
  const Stream sum = sum_many(views).value();
  PumpedAllreduce all(6, AlgorithmId::kGtopk, oktopk_settings_of(5000, 100, Boundaries::kAveraged), 1);
  for (const auto& result : all.step(own)) {
    ASSERT_TRUE(result.has_value()) << result.error().message;
    for (size_t i = 0, at = 0; i < sum.indices.size(); ++i) {
      if (sum.values[i] == 0) continue;
      ASSERT_EQ(result->sum.view.indices[at], sum.indices[i]);
      ASSERT_EQ(result->sum.view.values[at++], sum.values[i]);
    }
  }
}

}  // namespace
}  // namespace millrace::peer::testing
