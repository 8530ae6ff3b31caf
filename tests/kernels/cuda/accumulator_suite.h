#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/accumulate/accumulator.h"
#include "kernels/accumulate/add_and_collect.h"
#include "kernels/cuda/accumulator.h"
#include "kernels/reduce/reduce.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "tests/kernels/cuda/quantize_suite.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace::cuda {

/// Returns the bits of values without the sign of zeros.
inline std::vector<uint32_t> bits_of_sums(std::span<const float> values) {
  std::vector<float> sums(values.begin(), values.end());
  for (float& sum : sums) sum += 0.0F;
  return bits_of_values(sums);
}

/// An accumulator of the host and one under test, which the same operations change.
template <class Queue>
class AccumulatorPair {
 public:
  AccumulatorPair(Queue& queue, uint64_t dimension)
      : queue_(queue), host_(dimension), under_test_(queue, dimension), crossed_(crossed()) {}

  void add_dense(std::span<const float> values, float weight, NonFiniteValues rule, size_t offset) {
    const Array<Queue> array(queue_, values, offset);
    crossed_ = crossed();
    const auto done = under_test_.add(array.data, weight, rule);
    expect_crossed(8);
    std::vector<float> clean(values.begin(), values.end());
    uint64_t not_finite = 0;
    for (float& value : clean) {
      if (std::isfinite(value)) continue;
      value = 0;
      ++not_finite;
    }
    if (rule == NonFiniteValues::kRefused && not_finite > 0) {
      ASSERT_EQ(done.error().code, ErrorCode::kNonFinite);
    } else {
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_EQ(*done, not_finite);
      host_.add_to_dense({host_.dimension(), true, {}, clean}, weight);
    }
    compare();
  }

  void add_stream(const Stream& stream, uint64_t begin, float factor) {
    crossed_ = crossed();
    ASSERT_TRUE(under_test_.add(stream.view(), begin, factor).has_value());
    expect_crossed(stream.count() * (stream.dense ? sizeof(float) : kPairBytes));
    host_.make_dense();
    add_scaled(host_.values().subspan(begin, stream.dimension), stream.view(), factor);
    compare();
  }

  /// Selects by both, and takes the selected entries.
  void take_selected(const SelectionSpec& spec) {
    IndexBuffer positions;
    host_.make_dense();
    const auto selector = make_selector(spec, host_.dimension()).value();
    const Status wanted = selector->select(host_.view(), {}, positions);
    crossed_ = crossed();
    const bool is_top_k = spec.selection == SelectionId::kTopK;
    const auto found =
        is_top_k ? under_test_.select_top_k(spec.k) : under_test_.select_at_least(static_cast<float>(spec.threshold));
    ASSERT_EQ(found.has_value(), wanted.has_value()) << (found ? "" : found.error().message);
    if (!wanted) {
      ASSERT_EQ(found.error().code, wanted.error().code);
      return;
    }
    const Stream expected = host_.take_at(positions);
    const auto taken = under_test_.take_at(*found);
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    // Besides the entries, the state of each pass of a selection.
    ASSERT_LE(crossed() - crossed_, expected.count() * kPairBytes + 4 * sizeof(SelectState));
    expect_equal(*taken, expected);
    compare();
  }

  /// Takes the k largest entries. The errors of a code of the last half of them stay in the sum.
  void keep_errors(uint64_t k) {
    const auto found = under_test_.select_top_k(k);
    if (!found) return;  // values that are not finite, as take_selected() has them
    auto values = queue_.template allocate<float>(found->count);
    const auto taken = under_test_.take_at(*found, values.data());
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    host_.make_dense();
    const Stream expected = host_.take_at(taken->indices);
    expect_equal(*taken, expected);
    const uint64_t first = found->count / 2, count = found->count - first;
    const QsgdOptions options{.bits = 4, .bucket_size = 100, .random = RandomKey::from(5), .counter_base = 11};
    const std::span<const float> coded = std::span<const float>(expected.values).subspan(first);
    ByteBuffer bytes;
    std::vector<float> decoded(count);
    const Status host = qsgd_encode(coded, options, bytes, decoded);
    auto code = queue_.template allocate<uint8_t>(qsgd_encoded_bytes(count, options.bits, options.bucket_size));
    crossed_ = crossed();
    const Status kept = under_test_.keep_errors(
        found->positions.data() + first, values.data() + first, count,
        [&](const float* of, uint64_t n, float* meant) { return qsgd(queue_, of, n, options, code.data(), meant); });
    expect_crossed(sizeof(uint64_t));
    ASSERT_EQ(kept.has_value(), host.has_value());
    for (uint64_t i = 0; i < count && host; ++i) host_.values()[expected.indices[first + i]] = coded[i] - decoded[i];
    compare();
  }

  /// A gradient enters by a velocity: value by value, as the host's Velocity computes it.
  void enter(std::span<const float> gradient, float scale, AccumulatorPair& velocity, const MomentumShares& shares) {
    Accumulator<Queue> staged(queue_, gradient.size());
    const Array<Queue> array(queue_, gradient, 0);
    ASSERT_TRUE(staged.add(array.data, 1, NonFiniteValues::kRefused).has_value());
    ASSERT_TRUE(under_test_.enter(staged, scale, velocity.under_test_, shares).has_value());
    for (AccumulatorPair* pair : {this, &velocity}) pair->host_.make_dense();
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float scaled = scale * gradient[i];
      const float kept = shares.kept * velocity.host_.values()[i];
      const float moved = kept + scaled;
      const float next = std::abs(moved) < std::numeric_limits<float>::min() ? 0.0F : moved;
      const float direct = shares.of_gradient * scaled;
      const float late = shares.of_velocity * next;
      velocity.host_.values()[i] = next;
      host_.values()[i] += direct + late;
    }
    compare();
    velocity.compare();
  }

  void clear_at(const IndexBuffer& indices) {
    ASSERT_TRUE(under_test_.clear_at(indices).has_value());
    host_.make_dense();
    for (const uint32_t index : indices) host_.values()[index] = 0;
    compare();
  }

  void take_range(uint64_t begin, uint64_t end) {
    const auto taken = under_test_.take_range(begin, end);
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    expect_equal(*taken, to_sparse(host_.take_range(begin, end).view()));
    compare();
  }

  /// Takes a range in its smaller form. Values that are not finite cross in the dense one.
  void take_part(uint64_t begin, uint64_t end) {
    host_.make_dense();
    const std::span<float> held = host_.values().subspan(begin, end - begin);
    const auto nonzero = static_cast<uint64_t>(std::ranges::count_if(held, [](float value) { return value != 0; }));
    ASSERT_EQ(under_test_.count_nonzero(begin, end).value(), nonzero);
    const Stream dense = slice_of(host_.view(), begin, end);
    const bool is_sparse = nonzero < dense_from_count(end - begin);
    crossed_ = crossed();
    const auto copied = under_test_.read_part(begin, end);
    ASSERT_TRUE(copied.has_value()) << copied.error().message;
    if (is_sparse && all_finite(held)) expect_crossed(nonzero * kPairBytes + 4 * sizeof(SelectState));
    expect_equal(*copied, is_sparse ? to_sparse(dense.view()) : dense);
    compare();
    under_test_.forget(begin, end);
    std::ranges::fill(held, 0.0F);
    compare();
  }

  /// Takes the code of a range out.
  void take_coded(uint64_t begin, uint64_t end, CodeErrors errors) {
    host_.make_dense();
    const std::span<float> held = host_.values().subspan(begin, end - begin);
    const QsgdOptions options{.bits = 4, .bucket_size = 100, .random = RandomKey::from(5), .counter_base = begin};
    ByteBuffer wanted;
    std::vector<float> decoded(held.size());
    const Status host = qsgd_encode(held, options, wanted, decoded);
    const size_t bytes = qsgd_encoded_bytes(held.size(), options.bits, options.bucket_size);
    auto code = queue_.template allocate<uint8_t>(bytes);
    const auto lost = under_test_.take_coded(begin, end, errors, [&](const float* values, uint64_t n, float* meant) {
      return qsgd(queue_, values, n, options, code.data(), meant);
    });
    ASSERT_EQ(lost.has_value(), host.has_value());
    if (!host) {
      ASSERT_EQ(lost.error().code, host.error().code);
      return compare();
    }
    ASSERT_EQ(downloaded(queue_, code.data(), bytes), std::vector<uint8_t>(wanted.begin(), wanted.end()));
    std::vector<float> beyond;
    for (size_t i = 0; i < held.size(); ++i) {
      const float stays = held[i] - decoded[i];
      const double exact = static_cast<double>(held[i]) - static_cast<double>(decoded[i]);
      beyond.push_back(static_cast<float>(exact - static_cast<double>(stays)));
      held[i] = stays;
    }
    TailSums sums = millrace::tail_sums(beyond, kInfinityKey);
    if (errors == CodeErrors::kDropped) {
      add_chunk(sums, millrace::tail_sums(held, kInfinityKey));
      std::ranges::fill(held, 0.0F);
    }
    ASSERT_EQ(lost->sum, sums.sum);
    ASSERT_EQ(lost->magnitude, sums.magnitude);
    compare();
  }

  void take_all() {
    host_.make_dense();
    const auto taken = under_test_.take_all();
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    expect_equal(*taken, host_.take_all());
    compare();
  }

  void rewrite(uint64_t begin, uint64_t end, std::span<const float> values) {
    ASSERT_TRUE(under_test_.write(begin, values.subspan(begin, end - begin)).has_value());
    host_.make_dense();
    std::ranges::copy(values.subspan(begin, end - begin), host_.values().begin() + static_cast<ptrdiff_t>(begin));
    compare();
  }

  void compare() {
    const Stream expected = to_dense(host_.view());
    const auto found = under_test_.read(0, host_.dimension());
    ASSERT_TRUE(found.has_value()) << found.error().message;
    ASSERT_EQ(bits_of_sums(found->values), bits_of_sums(expected.values));
    const uint64_t middle = host_.dimension() / 2;
    const auto part = under_test_.read(middle, host_.dimension());
    ASSERT_EQ(bits_of_values(part->values), bits_of_values(std::span<const float>(found->values).subspan(middle)));
    const IndexBuffer some = {static_cast<uint32_t>(host_.dimension() - 1), 0, static_cast<uint32_t>(middle)};
    const auto at = under_test_.read_at(some);
    ASSERT_TRUE(at.has_value()) << at.error().message;
    for (size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>((*at)[i]), std::bit_cast<uint32_t>(found->values[some[i]]));
    }
    const TailSums sums = millrace::tail_sums(expected.values, kInfinityKey);
    const auto norm = under_test_.norm();
    ASSERT_EQ(norm.has_value(), sums.above == 0);
    if (norm) {
      ASSERT_EQ(*norm, std::sqrt(sums.squares));
    }
    const Status end = queue_.finish();
    ASSERT_TRUE(end.has_value()) << end.error().message;
  }

 private:
  static void expect_equal(const Stream& found, const Stream& wanted) {
    ASSERT_TRUE(validate(found.view()).has_value());
    ASSERT_EQ(found.dense, wanted.dense);
    ASSERT_EQ(testing::listed(found.indices), testing::listed(wanted.indices));
    ASSERT_EQ(bits_of_sums(found.values), bits_of_sums(wanted.values));
  }
  uint64_t crossed() const { return queue_.bytes_up() + queue_.bytes_down(); }
  void expect_crossed(uint64_t most) const { ASSERT_LE(crossed() - crossed_, most); }

  Queue& queue_;
  millrace::Accumulator host_;
  Accumulator<Queue> under_test_;
  uint64_t crossed_ = 0;
};

template <class Under>
class CudaAccumulator : public ::testing::Test {
 protected:
  using Queue = typename Under::Queue;

  void SetUp() override {
    if (const std::string why = Under::why_not(); !why.empty()) GTEST_SKIP() << why;
  }

  /// Runs random operations on both.
  static void change(AccumulatorPair<Queue>& pair, uint64_t dimension, RandomSequence& random) {
    const auto values = testing::values_of(testing::kPatterns[random.next_below(std::size(testing::kPatterns))],
                                           dimension, random.next_below(1000));
    const float weight = random.next_below(2) == 0 ? 1.0F : -0.3F;
    const uint64_t begin = random.next_below(dimension);
    const uint64_t end = begin + 1 + random.next_below(dimension - begin);
    switch (random.next_below(13)) {
      case 0: return pair.add_dense(values, weight, NonFiniteValues::kRefused, random.next_below(4));
      case 1: return pair.add_dense(values, weight, NonFiniteValues::kLeftOut, random.next_below(4));
      case 2: return pair.add_stream(testing::random_stream(random, end - begin, 0.1), begin, 1);
      case 3: return pair.add_stream(testing::random_stream(random, end - begin, 0.6), begin, weight);
      case 4: return pair.add_stream(to_dense(testing::random_stream(random, end - begin, 0.1).view()), begin, weight);
      case 5: return pair.take_selected({.selection = SelectionId::kTopK, .k = 1 + random.next_below(dimension)});
      case 6: return pair.take_selected({.selection = SelectionId::kThreshold, .threshold = 0.1 + random.next_unit()});
      case 7: return pair.take_range(begin, end);
      case 8: return pair.take_part(begin, end);
      case 9: return pair.take_coded(begin, end, CodeErrors::kStay);
      case 10: return pair.take_coded(begin, end, CodeErrors::kDropped);
      case 11: return pair.keep_errors(1 + random.next_below(dimension));
      default: return random.next_below(3) == 0 ? pair.take_all() : pair.rewrite(begin, end, values);
    }
  }
};

TYPED_TEST_SUITE(CudaAccumulator, QueuesUnderTest);

TYPED_TEST(CudaAccumulator, EveryOperationEqualsTheHosts) {
  for (const uint64_t dimension : {1, 3, 255, 1023, 8193}) {
    for (const auto& queue : TypeParam::queues()) {
      SCOPED_TRACE("dimension " + std::to_string(dimension));
      RandomSequence random(random_key(dimension, 4));
      AccumulatorPair pair(*queue, dimension);
      pair.compare();
      for (int step = 0; step < 40; ++step) {
        this->change(pair, dimension, random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaAccumulator, StreamsLongerThanTheirRoomAreAddedInPieces) {
  constexpr uint64_t kEntries = StreamRoom<typename TypeParam::Queue>::kPiece + 3;
  const auto values = testing::values_of(testing::Pattern::kGaussian, kEntries, 5);
  Stream dense{kEntries, true, {}, {}};
  dense.values.assign(values.begin(), values.end());
  Stream sparse{2 * kEntries, false, {}, dense.values};
  for (uint32_t at = 0; at < kEntries; ++at) sparse.indices.push_back(2 * at + 1);
  for (const auto& queue : TypeParam::queues()) {
    AccumulatorPair pair(*queue, 2 * kEntries);
    pair.add_stream(sparse, 0, 0.7F);
    pair.add_stream(dense, 1, -0.3F);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(CudaAccumulator, ValuesThatAreNotFiniteAreRefusedWholeOrLeftOut) {
  for (const size_t dimension : {size_t{1}, size_t{4099}}) {
    for (const auto& queue : TypeParam::queues()) {
      for (const std::vector<float>& values : values_to_code(dimension)) {
        AccumulatorPair pair(*queue, dimension);
        pair.add_dense(testing::values_of(testing::Pattern::kGaussian, dimension, 7), 1, NonFiniteValues::kRefused, 0);
        for (const NonFiniteValues rule : {NonFiniteValues::kRefused, NonFiniteValues::kLeftOut}) {
          pair.add_dense(values, 0.7F, rule, 1);
          if (::testing::Test::HasFatalFailure()) return;
        }
        pair.take_selected({.selection = SelectionId::kTopK, .k = dimension / 100 + 1});
        pair.take_selected({.selection = SelectionId::kThreshold, .threshold = 0.5});
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TYPED_TEST(CudaAccumulator, NothingIsSelectedFromZerosOrAboveTheLargest) {
  constexpr uint64_t kDimension = 4099;
  for (const auto& queue : TypeParam::queues()) {
    Accumulator sum(*queue, kDimension);
    EXPECT_EQ(sum.select_top_k(10).value().count, 0);
    const Array<typename TypeParam::Queue> array(*queue,
                                                 testing::values_of(testing::Pattern::kDenormal, kDimension, 3));
    ASSERT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
    const auto none = sum.select_at_least(1);
    ASSERT_TRUE(none.has_value()) << none.error().message;
    EXPECT_EQ(none->count, 0);
    EXPECT_EQ(sum.take_at(*none).value().count(), 0);
    EXPECT_EQ(sum.select_at_least(-1).error().code, ErrorCode::kInvalidArgument);
  }
}

TYPED_TEST(CudaAccumulator, GradientsEnterByAVelocityAsOnTheHost) {
  const MomentumShares rules[] = {{0.9F, 0, 1}, {0.9F, 1, 0.9F}, {0.5F, 1, 1}};  // as Velocity has them
  for (const uint64_t dimension : {1, 255, 4099}) {
    for (const auto& queue : TypeParam::queues()) {
      for (const MomentumShares& shares : rules) {
        AccumulatorPair sum(*queue, dimension);
        AccumulatorPair velocity(*queue, dimension);
        for (int step = 0; step < 6; ++step) {
          const auto pattern = step == 2   ? testing::Pattern::kAllZero
                               : step == 4 ? testing::Pattern::kDenormal
                                           : testing::Pattern::kGaussian;
          const float scale = step % 2 == 0 ? 1.0F : 0.7F;
          sum.enter(testing::values_of(pattern, dimension, static_cast<uint64_t>(step)), scale, velocity, shares);
          IndexBuffer masked;
          for (uint32_t index = static_cast<uint32_t>(step); index < dimension; index += 7) masked.push_back(index);
          velocity.clear_at(masked);
          sum.take_selected({.selection = SelectionId::kTopK, .k = dimension / 100 + 1});
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// A step that sends everything sends the gradient's own zeros, as the host does.
TYPED_TEST(CudaAccumulator, TheSumOfOneGradientHasItsBits) {
  std::vector<float> values(1025, -0.0F);
  values[7] = 0.0F;
  values[8] = -1e-42F;
  for (const auto& queue : TypeParam::queues()) {
    Accumulator sum(*queue, values.size());
    const Array<typename TypeParam::Queue> array(*queue, values);
    for (int step = 0; step < 2; ++step) {
      ASSERT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
      EXPECT_EQ(bits_of_values(sum.take_all().value().values), bits_of_values(values));
    }
  }
}

/// Zeros included, whose signs are the host's while every stream is dense.
TYPED_TEST(CudaAccumulator, SumsOfDenseGradientsHaveTheHostsBits) {
  for (const uint64_t dimension : {3, 8193}) {
    for (const auto& queue : TypeParam::queues()) {
      millrace::Accumulator host(dimension);
      Accumulator sum(*queue, dimension);
      for (const testing::Pattern pattern : {testing::Pattern::kMostlyZero, testing::Pattern::kDenormal,
                                             testing::Pattern::kAllZero, testing::Pattern::kGaussian}) {
        auto values = testing::values_of(pattern, dimension, 3);
        for (size_t at = 0; at < values.size(); at += 3) values[at] = -values[at];
        const Array<typename TypeParam::Queue> array(*queue, values);
        ASSERT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
        host.add(Stream{dimension, true, {}, {values.begin(), values.end()}});
        EXPECT_EQ(bits_of_values(sum.read(0, dimension).value().values), bits_of_values(host.view().values));
      }
    }
  }
}

TYPED_TEST(CudaAccumulator, ASparseSumOfTheHostHasTheSameEntries) {
  constexpr uint64_t kDimension = 4099;
  constexpr uint64_t kWanted = 9;
  const SelectionSpec spec{.selection = SelectionId::kTopK, .k = kWanted};
  for (const auto& queue : TypeParam::queues()) {
    millrace::Accumulator host(kDimension);
    Accumulator sum(*queue, kDimension);
    RandomSequence random(random_key(7, 4));
    for (int step = 0; step < 6; ++step) {
      Stream stream = testing::random_stream(random, kDimension, 0.02);
      ASSERT_TRUE(sum.add(stream.view(), 0, 1).has_value());
      host.add(std::move(stream));
      ASSERT_FALSE(host.is_dense());
      const auto selector = make_selector(spec, kDimension).value();
      const Stream wanted = host.take_selected(*selector, {}).value();
      const Stream taken = sum.take_at(sum.select_top_k(kWanted).value()).value();
      EXPECT_EQ(testing::listed(taken.indices), testing::listed(wanted.indices));
      EXPECT_EQ(bits_of_values(taken.values), bits_of_values(wanted.values));
    }
    EXPECT_EQ(bits_of_sums(sum.read(0, kDimension).value().values), bits_of_sums(to_dense(host.view()).values));
  }
}

/// A push of this size has one pass on the host, which adds and collects the entries to select from.
TYPED_TEST(CudaAccumulator, TheHostsFusedAdditionSelectsTheSameEntries) {
  constexpr uint64_t kDimension = kCollectFrom + 3;
  constexpr uint64_t kWanted = kDimension / 100;
  const SelectionSpec spec{.selection = SelectionId::kTopK, .k = kWanted};
  for (const auto& queue : TypeParam::queues()) {
    millrace::Accumulator host(kDimension);
    host.make_dense();
    Accumulator sum(*queue, kDimension);
    for (uint64_t step = 0; step < 2; ++step) {
      const auto values = testing::values_of(testing::Pattern::kGaussian, kDimension, step);
      host.add_and_collect(values, 1, kWanted);
      ASSERT_NE(host.largest(), nullptr);
      const Array<typename TypeParam::Queue> array(*queue, values);
      ASSERT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
      const auto selector = make_selector(spec, kDimension).value();
      const Stream wanted = host.take_selected(*selector, {}).value();
      const Stream taken = sum.take_at(sum.select_top_k(kWanted).value()).value();
      ASSERT_EQ(testing::listed(taken.indices), testing::listed(wanted.indices));
      ASSERT_EQ(bits_of_values(taken.values), bits_of_values(wanted.values));
    }
    EXPECT_EQ(bits_of_sums(sum.read(0, kDimension).value().values), bits_of_sums(host.view().values));
  }
}

/// A range of few entries, one of many, and the sum of nothing after both.
TYPED_TEST(CudaAccumulator, PartsAreTakenInTheSmallerForm) {
  constexpr uint64_t kDimension = 8193;
  for (const auto& queue : TypeParam::queues()) {
    AccumulatorPair pair(*queue, kDimension);
    for (const testing::Pattern pattern : {testing::Pattern::kMostlyZero, testing::Pattern::kAllZero}) {
      pair.add_dense(testing::values_of(pattern, kDimension, 1), 1, NonFiniteValues::kRefused, 0);
      pair.take_part(5, 4000);
      pair.take_coded(4000, 8001, CodeErrors::kStay);
      pair.add_dense(testing::values_of(testing::Pattern::kGaussian, kDimension, 2), 1, NonFiniteValues::kRefused, 0);
      pair.take_part(3, 8000);
      pair.take_part(0, kDimension);
      if (::testing::Test::HasFatalFailure()) return;
    }
    Accumulator sum(*queue, kDimension);
    ASSERT_TRUE(sum.check_finite().has_value());
    sum.forget(0, 9);
    EXPECT_EQ(bits_of_values(sum.read(0, 9).value().values), bits_of_values(std::vector<float>(9, -0.0F)));
  }
}

/// Sums that overflow are found by the selection, as on the host.
TYPED_TEST(CudaAccumulator, SumsThatOverflowAreNotSelectedFrom) {
  const std::vector<float> values(100, std::numeric_limits<float>::max());
  for (const auto& queue : TypeParam::queues()) {
    Accumulator sum(*queue, values.size());
    const Array<typename TypeParam::Queue> array(*queue, values);
    ASSERT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
    ASSERT_TRUE(sum.add(array.data, 1, NonFiniteValues::kRefused).has_value());
    EXPECT_EQ(sum.select_top_k(3).error().code, ErrorCode::kNonFinite);
    EXPECT_EQ(sum.select_at_least(1).error().code, ErrorCode::kNonFinite);
    EXPECT_EQ(sum.norm().error().code, ErrorCode::kNonFinite);
    EXPECT_EQ(sum.check_finite().error().code, ErrorCode::kNonFinite);
  }
}

}  // namespace millrace::cuda
