#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/isa.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace {
namespace {

using testing::dense_of;
using testing::describe;
using testing::Entries;
using testing::entries_of;
using testing::random_stream;
using testing::same_bits;
using testing::stream_of;

using Views = std::vector<StreamView>;

/// Returns the sum by its definition: at each index, the values there, added in the order of the streams.
Stream oracle_sum(const Views& streams) {
  Entries sum;
  for (const StreamView& stream : streams) {
    for (const auto& [index, value] : entries_of(stream)) {
      const auto [at, inserted] = sum.try_emplace(index, value);
      if (!inserted) at->second += value;
    }
  }
  const uint64_t dimension = streams.front().dimension;
  Stream out = stream_of(dimension, sum);
  return out.count() >= dense_from_count(dimension) ? to_dense(out.view()) : out;
}

Views views_of(const std::vector<Stream>& streams) {
  Views views;
  for (const Stream& stream : streams) views.push_back(stream.view());
  return views;
}

/// sum_at_least() against its definition, `sum` being the reference: with the least edge, one beyond most, one on a
/// sum.
void expect_large_sums(const Views& views, const Stream& sum) {
  std::vector<float> edges = {std::numeric_limits<float>::denorm_min(), 0.25F};
  if (sum.count() > 0) edges.push_back(std::fabs(sum.values[sum.count() / 2]));
  for (const float edge : edges) {
    if (!(edge > 0) || !std::isfinite(edge)) continue;
    Stream expected = Stream::empty(sum.dimension);
    for (size_t at = 0; at < sum.count(); ++at) {
      if (!(std::fabs(sum.values[at]) >= edge)) continue;
      expected.indices.push_back(sum.dense ? static_cast<uint32_t>(at) : sum.indices[at]);
      expected.values.push_back(sum.values[at]);
    }
    const Result<Stream> got = sum_at_least(views, edge);
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(same_bits(got->view(), expected.view()))
        << edge << ": " << describe(got->view()) << "\nexpected " << describe(expected.view());
    EXPECT_TRUE(same_bits(entries_at_least(sum.view(), edge).view(), expected.view())) << edge;
  }
}

void expect_sum(const std::vector<Stream>& streams) {
  const Views views = views_of(streams);
  const Stream expected = oracle_sum(views);
  const Result<Stream> got = sum_many(views);
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(validate(got->view()));
  EXPECT_TRUE(same_bits(got->view(), expected.view()))
      << describe(got->view()) << "\nexpected " << describe(expected.view());
  expect_large_sums(views, expected);
  if (streams.size() != 2) return;
  const Result<Stream> two = sum_two(views[0], views[1]);
  ASSERT_TRUE(two.has_value());
  EXPECT_TRUE(same_bits(two->view(), expected.view())) << describe(two->view());
}

TEST(ReduceTest, SumsAreThoseOfTheSequentialReferenceBitByBit) {
  RandomSequence random(RandomKey::from(1));
  for (const uint64_t dimension : {1, 2, 7, 63, 64, 65, 1000, 4097, 70'001}) {
    for (const size_t streams : {1, 2, 3, 4, 9, 70}) {
      if (dimension * streams > 400'000) continue;
      for (const double density : {0.0, 0.001, 0.02, 0.2, 0.6}) {
        std::vector<Stream> inputs;
        for (size_t i = 0; i < streams; ++i) inputs.push_back(random_stream(random, dimension, density));
        expect_sum(inputs);
      }
    }
  }
}

TEST(ReduceTest, TwoOfFewEntriesWhereverTheyLie) {
  constexpr uint64_t kDimension = 100'000;
  RandomSequence random(RandomKey::from(11));
  const auto drawn = [&](uint64_t count, uint64_t begin, uint64_t width) {
    Entries entries;
    while (entries.size() < count) {
      const auto index = static_cast<uint32_t>(begin + random.next_below(static_cast<uint32_t>(width)));
      entries[index] = random.next_below(4) == 0 ? -0.0F : static_cast<float>(random.next_normal());
    }
    return stream_of(kDimension, entries);
  };
  for (const uint64_t a : {0, 1, 2, 3, 4, 5, 8, 9, 40}) {
    for (const uint64_t b : {0, 1, 2, 3, 4, 5, 8, 9, 40}) {
      expect_sum({drawn(a, 0, 50), drawn(b, 0, 50)});           // mixed, many alike
      expect_sum({drawn(a, 0, 50), drawn(b, 60'000, 50)});      // all before
      expect_sum({drawn(a, 99'000, 1'000), drawn(b, 10, 50)});  // all behind
      expect_sum({drawn(a, 0, 100'000), drawn(b, 500, 60)});    // in one gap, or two
    }
    const Stream alike = drawn(a, 0, 90'000);
    expect_sum({alike, alike});
  }
}

TEST(ReduceTest, SumsOfUnequalDensitiesAndClusters) {
  RandomSequence random(RandomKey::from(2));
  const uint64_t dimension = 300'000;
  // A cluster that is full, one that is half full, a long empty stretch and scattered rest.
  std::vector<Stream> inputs;
  for (int i = 0; i < 5; ++i) {
    Entries entries;
    for (uint32_t at = 60'000; at < 66'000; ++at) entries[at] = static_cast<float>(random.next_normal());
    for (uint32_t at = 131'000; at < 133'000; at += 1 + random.next_u32() % 3) entries[at] = static_cast<float>(i);
    for (int j = 0; j < 50 * i; ++j) {
      entries[static_cast<uint32_t>(200'000 + random.next_below(100'000))] = static_cast<float>(random.next_normal());
    }
    inputs.push_back(stream_of(dimension, entries));
  }
  expect_sum(inputs);
  inputs.push_back(random_stream(random, dimension, 0.3));
  inputs.push_back(stream_of(dimension, {{299'999, 7}}));
  inputs.push_back(Stream::empty(dimension));
  expect_sum(inputs);
}

TEST(ReduceTest, SumsAtTheEdgesOfTheLargestDimension) {
  const auto edges = stream_of(kDimensionMax, {{0, 1}, {1, 2}, {0x8000'0000u, 3}, {0xffff'ffffu, 4}});
  const auto others = stream_of(kDimensionMax, {{1, 5}, {0xffff'fffeu, 6}, {0xffff'ffffu, 7}});
  expect_sum({edges, others});
  expect_sum({others, edges, others});
  expect_sum({Stream::empty(kDimensionMax), Stream::empty(kDimensionMax)});
}

TEST(ReduceTest, SumOfTheLargestDimensionNeedsMemoryForItsEntriesOnly) {
  RandomSequence random(RandomKey::from(3));
  std::vector<Stream> inputs;
  for (int i = 0; i < 4; ++i) {
    Entries entries;
    for (int j = 0; j < 11'000; ++j) entries[random.next_u32()] = static_cast<float>(random.next_normal());
    inputs.push_back(stream_of(kDimensionMax, entries));
  }
  expect_sum(inputs);
  const Result<Stream> got = sum_many(views_of(inputs));
  EXPECT_LE(got->memory_bytes(), 2 * 44'000 * (4 + sizeof(float)));
}

TEST(ReduceTest, SumsOfClustersInTheLargestDimension) {
  RandomSequence random(RandomKey::from(9));
  std::vector<Stream> inputs;
  for (int i = 0; i < 3; ++i) {
    Entries entries;
    for (int j = 0; j < 6'000; ++j) entries[random.next_u32()] = static_cast<float>(random.next_normal());
    for (const uint32_t begin : {0u, 0x7fff'f000u, 0xffff'e000u}) {
      for (uint32_t at = 0; at < 0x2000; at += 1 + random.next_u32() % 8) {
        entries[begin + at] = static_cast<float>(random.next_normal() * 1000);
      }
    }
    inputs.push_back(stream_of(kDimensionMax, entries));
  }
  expect_sum(inputs);
  inputs.pop_back();
  expect_sum(inputs);
}

TEST(ReduceTest, DenseStreamsAloneAndAmongSparseOnesGiveADenseSum) {
  RandomSequence random(RandomKey::from(4));
  for (const uint64_t dimension : {1, 5, 64, 1001, 66'000}) {
    const auto dense = [&] { return to_dense(random_stream(random, dimension, 0.9).view()); };
    const auto sparse = [&](double density) { return random_stream(random, dimension, density); };
    expect_sum({dense(), dense()});
    expect_sum({dense(), dense(), dense()});
    expect_sum({sparse(0.1), dense()});
    expect_sum({dense(), sparse(0.1)});
    expect_sum({sparse(0.01), sparse(0.3), dense(), sparse(0.2), dense(), Stream::empty(dimension)});
    expect_sum({dense()});
  }
}

TEST(ReduceTest, EntriesThatCancelStayStored) {
  const auto plus = stream_of(100, {{3, 2}, {50, 1}});
  const auto minus = stream_of(100, {{3, -2}, {51, 1}});
  const auto sum = sum_two(plus.view(), minus.view());
  ASSERT_TRUE(sum.has_value());
  EXPECT_EQ(entries_of(sum->view()), (Entries{{3, 0}, {50, 1}, {51, 1}}));
  expect_sum({plus, minus});
  expect_sum({plus, minus, plus, minus});
}

TEST(ReduceTest, SignsOfZerosAndNonFiniteValuesAreThoseOfTheReference) {
  const float zero = 0, inf = std::numeric_limits<float>::infinity();
  const auto a = stream_of(50, {{1, -zero}, {2, zero}, {3, -zero}, {4, inf}, {5, -zero}});
  const auto b = stream_of(50, {{1, -zero}, {2, -zero}, {4, inf}, {6, -inf}});
  expect_sum({a, b});
  expect_sum({a});
  expect_sum({a, b, a});
  const auto small_a = slice_of(a.view(), 0, 7), small_b = slice_of(b.view(), 0, 7);
  expect_sum({small_a, small_b});
  expect_sum({dense_of({-zero, zero, -zero, 1, 2, 3, 4}), small_a, small_b});
  expect_sum({small_a, dense_of({-zero, zero, -zero, -zero, 2, 3, 4})});
}

TEST(ReduceTest, TheSumIsDenseFromExactlyDenseFromCountOn) {
  const uint64_t dimension = 999;
  const uint64_t count = dense_from_count(dimension);
  Entries even, odd;
  for (uint32_t i = 0; i + 1 < count; ++i) (i % 2 == 0 ? even : odd)[i] = 1;
  const auto a = stream_of(dimension, even);
  EXPECT_FALSE(sum_two(a.view(), stream_of(dimension, odd).view())->dense);
  EXPECT_FALSE(sum_many(views_of({a, stream_of(dimension, odd), a}))->dense);
  odd[998] = 1;
  EXPECT_TRUE(sum_two(a.view(), stream_of(dimension, odd).view())->dense);
  EXPECT_TRUE(sum_many(views_of({a, stream_of(dimension, odd), a}))->dense);
  expect_sum({a, stream_of(dimension, odd)});
}

TEST(ReduceTest, LargeSumsOfTiesDenormalsCancellationsAndFullSlices) {
  RandomSequence random(RandomKey::from(12));
  const float tiny = std::numeric_limits<float>::denorm_min();
  // A slice of the kernel is 8192 or 4096 indices: lengths around it, with every index taken somewhere.
  for (const uint64_t dimension : {1, 64, 100, 4095, 4096, 4097, 8191, 8193, 20'000}) {
    std::vector<Stream> ties, small, cancel;
    for (int i = 0; i < 3; ++i) {
      Entries same, tinies, opposite;
      for (uint32_t at = 0; at < dimension; ++at) {
        if (i == 0 || random.next_below(2) == 0) same[at] = random.next_below(2) == 0 ? 0.25F : -0.25F;
        if (random.next_below(20) == 0) tinies[at] = random.next_below(2) == 0 ? tiny : -0.0F;
        if (i < 2 && random.next_below(30) != 0) opposite[at] = i == 0 ? 3.0F : -3.0F;
      }
      ties.push_back(stream_of(dimension, same));
      small.push_back(stream_of(dimension, tinies));
      cancel.push_back(stream_of(dimension, opposite));
    }
    expect_sum(ties);
    expect_sum(small);
    expect_sum(cancel);
    expect_sum({stream_of(dimension, {{static_cast<uint32_t>(dimension - 1), 7}})});
    expect_sum({Stream::empty(dimension)});
  }
}

TEST(ReduceTest, DifferentDimensionsAndNoStreamsAreRefused) {
  const auto a = Stream::empty(10), b = Stream::empty(11);
  EXPECT_EQ(sum_at_least(Views{a.view(), b.view()}, 1.0F).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_at_least(Views{}, 1.0F).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_two(a.view(), b.view()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_many(Views{a.view(), a.view(), b.view()}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_many(Views{}).error().code, ErrorCode::kInvalidArgument);
}

TEST(ReduceTest, ConcatenateUndoesCut) {
  RandomSequence random(RandomKey::from(5));
  const Stream whole = random_stream(random, 1000, 0.3);
  const Stream dense = to_dense(whole.view());
  for (const StreamView& view : {whole.view(), dense.view()}) {
    std::vector<Stream> pieces;
    for (const auto& [begin, end] :
         {std::pair<uint64_t, uint64_t>{0, 1}, {1, 400}, {400, 400}, {400, 999}, {999, 1000}}) {
      pieces.push_back(slice_of(view, begin, end));
    }
    const Result<Stream> joined = concatenate(views_of(pieces));
    ASSERT_TRUE(joined.has_value());
    EXPECT_TRUE(same_bits(joined->view(), view));
  }
}

TEST(ReduceTest, ConcatenateOfMixedPiecesHasExactlyTheirEntries) {
  const auto dense = dense_of({0, 1, 0});
  const auto sparse = stream_of(3, {{2, 5}});
  const auto joined = concatenate(views_of({dense, sparse, dense}));
  ASSERT_TRUE(joined.has_value());
  EXPECT_FALSE(joined->dense);
  EXPECT_EQ(entries_of(joined->view()), (Entries{{0, 0}, {1, 1}, {2, 0}, {5, 5}, {6, 0}, {7, 1}, {8, 0}}));
}

TEST(ReduceTest, ConcatenateReachesTheLargestDimensionAndNotFurther) {
  const auto half = stream_of(kDimensionMax / 2, {{0x7fff'ffffu, 1}});
  const auto joined = concatenate(views_of({half, half}));
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ(entries_of(joined->view()), (Entries{{0x7fff'ffffu, 1}, {0xffff'ffffu, 1}}));
  const auto over = concatenate(views_of({half, half, Stream::empty(1)}));
  ASSERT_FALSE(over.has_value());
  EXPECT_EQ(over.error().code, ErrorCode::kInvalidArgument);
}

TEST(ReduceTest, NotCarriedReturnsTheEntriesThatTheUpdateOmitted) {
  RandomSequence random(RandomKey::from(6));
  for (const uint64_t dimension : {1, 3, 64, 1000, 50'000}) {
    for (const double sent_density : {0.0, 0.001, 0.05, 0.6}) {
      for (const double carried_density : {0.0, 0.001, 0.05, 0.6}) {
        const auto sent = random_stream(random, dimension, sent_density);
        const auto carried = random_stream(random, dimension, carried_density);
        Entries expected = entries_of(sent.view());
        for (const auto& [index, value] : entries_of(carried.view())) expected.erase(index);
        const auto got = not_carried(sent.view(), carried.view());
        EXPECT_TRUE(same_bits(got.view(), stream_of(dimension, expected).view()))
            << sent_density << ' ' << carried_density << ' ' << describe(got.view());
        const auto from_dense = not_carried(to_dense(sent.view()).view(), carried.view());
        EXPECT_TRUE(same_bits(from_dense.view(), got.view()));
      }
    }
  }
}

TEST(ReduceTest, NotCarriedInTheLargestDimension) {
  RandomSequence random(RandomKey::from(10));
  Entries sent, carried;
  for (int i = 0; i < 9'000; ++i) {
    const uint32_t index = random.next_u32() % 3 == 0 ? 0x9000'0000u + random.next_u32() % 20'000 : random.next_u32();
    sent[index] = static_cast<float>(i);
    if (i % 3 == 0) carried[index] = 1;
    if (i % 5 == 0) carried[random.next_u32()] = 1;
  }
  Entries expected = sent;
  for (const auto& [index, value] : carried) expected.erase(index);
  const auto got = not_carried(stream_of(kDimensionMax, sent).view(), stream_of(kDimensionMax, carried).view());
  EXPECT_TRUE(same_bits(got.view(), stream_of(kDimensionMax, expected).view())) << describe(got.view());
}

TEST(ReduceTest, NotCarriedOfOverlappingAndEqualStreams) {
  RandomSequence random(RandomKey::from(7));
  const auto sent = random_stream(random, 9000, 0.2);
  EXPECT_EQ(not_carried(sent.view(), sent.view()).count(), 0u);
  EXPECT_EQ(not_carried(sent.view(), to_dense(sent.view()).view()).count(), 0u);
  EXPECT_FALSE(not_carried(sent.view(), to_dense(sent.view()).view()).dense);
  const auto none = Stream::empty(9000);
  EXPECT_TRUE(same_bits(not_carried(sent.view(), none.view()).view(), sent.view()));
  // A stored zero of a sparse stream was sent: it is returned.
  const auto zero = stream_of(4, {{1, 0}, {2, 1}});
  EXPECT_EQ(entries_of(not_carried(zero.view(), stream_of(4, {{2, 9}}).view()).view()), (Entries{{1, 0}}));
  const auto edges = stream_of(kDimensionMax, {{0, 1}, {0xffff'fffeu, 2}, {0xffff'ffffu, 3}});
  const auto last = stream_of(kDimensionMax, {{0xffff'ffffu, 1}});
  EXPECT_EQ(entries_of(not_carried(edges.view(), last.view()).view()), (Entries{{0, 1}, {0xffff'fffeu, 2}}));
}

TEST(ReduceTest, AddScaledRoundsTheProductAndThenTheSum) {
  RandomSequence random(RandomKey::from(8));
  for (const uint64_t dimension : {1, 15, 16, 17, 33, 1000, 4099}) {
    for (const double density : {0.0, 0.1, 1.0}) {
      for (const float scale : {1.0F, -0.1F, 1.0F / 3}) {
        const auto stream = random_stream(random, dimension, density);
        const auto target = to_dense(random_stream(random, dimension, 1).view()).values;
        auto expected = target;
        for (const auto& [index, value] : entries_of(stream.view())) {
          // volatile: the compiler may not fuse the multiplication and the addition.
          const volatile float product = scale * value;
          expected[index] = expected[index] + product;
        }
        auto sparse = target, dense = target;
        add_scaled(sparse, stream.view(), scale);
        add_scaled(dense, to_dense(stream.view()).view(), scale);
        EXPECT_EQ(sparse, expected);
        EXPECT_EQ(dense, expected);
      }
    }
  }
}

TEST(ReduceTest, EveryInstructionSetGivesTheSameBits) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    RandomSequence random(RandomKey::from(11));
    for (const uint64_t dimension : {1, 63, 65, 1000, 40'001}) {
      for (const double density : {0.01, 0.3, 0.97}) {
        std::vector<Stream> inputs;
        for (int i = 0; i < 3; ++i) inputs.push_back(random_stream(random, dimension, density));
        expect_sum(inputs);
        inputs[1] = to_dense(inputs[1].view());
        expect_sum(inputs);
        auto target = to_dense(inputs[0].view()).values, expected = target;
        for (uint64_t i = 0; i < dimension; ++i) {
          const volatile float product = 0.3F * inputs[1].values[i];
          expected[i] = expected[i] + product;
        }
        add_scaled(target, inputs[1].view(), 0.3F);
        EXPECT_EQ(target, expected);
      }
    }
  });
}

}  // namespace
}  // namespace millrace
