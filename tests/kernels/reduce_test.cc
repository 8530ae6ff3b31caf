#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/isa.h"
#include "tests/support/stream_oracle.h"

namespace millrace {
namespace {

using testing::dense_of;
using testing::describe;
using testing::Entries;
using testing::entries_of;
using testing::random_stream;
using testing::same_bits;
using testing::stream_of;

template <typename T>
using Views = std::vector<StreamView<T>>;

/// The sum by its definition: at each index, what is carried there, added in the order of the streams.
template <typename T>
Stream<T> oracle_sum(const Views<T>& streams) {
  Entries<T> sum;
  for (const StreamView<T>& stream : streams) {
    for (const auto& [index, value] : entries_of(stream)) {
      const auto [at, inserted] = sum.try_emplace(index, value);
      if (!inserted) at->second += value;
    }
  }
  const uint64_t dimension = streams.front().dimension;
  Stream<T> out = stream_of(dimension, sum);
  return out.count() >= dense_from_count<T>(dimension) ? to_dense(out.view()) : out;
}

template <typename T>
Views<T> views_of(const std::vector<Stream<T>>& streams) {
  Views<T> views;
  for (const Stream<T>& stream : streams) views.push_back(stream.view());
  return views;
}

/// sum_at_least() against its definition, `sum` being the reference: with the least edge, one beyond most, one on a sum.
template <typename T>
void expect_large_sums(const Views<T>& views, const Stream<T>& sum) {
  std::vector<T> edges = {std::numeric_limits<T>::denorm_min(), T(0.25)};
  if (sum.count() > 0) edges.push_back(std::fabs(sum.values[sum.count() / 2]));
  for (const T edge : edges) {
    if (!(edge > 0) || !std::isfinite(edge)) continue;
    Stream<T> expected = Stream<T>::empty(sum.dimension);
    for (size_t at = 0; at < sum.count(); ++at) {
      if (!(std::fabs(sum.values[at]) >= edge)) continue;
      expected.indices.push_back(sum.dense ? static_cast<uint32_t>(at) : sum.indices[at]);
      expected.values.push_back(sum.values[at]);
    }
    const Result<Stream<T>> got = sum_at_least<T>(views, edge);
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(same_bits(got->view(), expected.view()))
        << edge << ": " << describe(got->view()) << "\nexpected " << describe(expected.view());
    EXPECT_TRUE(same_bits(entries_at_least<T>(sum.view(), edge).view(), expected.view())) << edge;
  }
}

template <typename T>
void expect_sum(const std::vector<Stream<T>>& streams) {
  const Views<T> views = views_of(streams);
  const Stream<T> expected = oracle_sum(views);
  const Result<Stream<T>> got = sum_many<T>(views);
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(validate(got->view()));
  EXPECT_TRUE(same_bits(got->view(), expected.view()))
      << describe(got->view()) << "\nexpected " << describe(expected.view());
  expect_large_sums(views, expected);
  if (streams.size() != 2) return;
  const Result<Stream<T>> two = sum_two<T>(views[0], views[1]);
  ASSERT_TRUE(two.has_value());
  EXPECT_TRUE(same_bits(two->view(), expected.view())) << describe(two->view());
}

template <typename T>
class ReduceTest : public ::testing::Test {};
using ValueTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ReduceTest, ValueTypes);

TYPED_TEST(ReduceTest, SumsAreThoseOfTheSequentialReferenceBitByBit) {
  RandomSequence random(RandomKey::from(1));
  for (const uint64_t dimension : {1, 2, 7, 63, 64, 65, 1000, 4097, 70'001}) {
    for (const size_t streams : {1, 2, 3, 4, 9, 70}) {
      if (dimension * streams > 400'000) continue;
      for (const double density : {0.0, 0.001, 0.02, 0.2, 0.6}) {
        std::vector<Stream<TypeParam>> inputs;
        for (size_t i = 0; i < streams; ++i) inputs.push_back(random_stream<TypeParam>(random, dimension, density));
        expect_sum(inputs);
      }
    }
  }
}

TYPED_TEST(ReduceTest, TwoOfFewEntriesWhereverTheyLie) {
  constexpr uint64_t kDimension = 100'000;
  RandomSequence random(RandomKey::from(11));
  const auto drawn = [&](uint64_t count, uint64_t begin, uint64_t width) {
    Entries<TypeParam> entries;
    while (entries.size() < count) {
      const auto index = static_cast<uint32_t>(begin + random.next_below(static_cast<uint32_t>(width)));
      entries[index] = random.next_below(4) == 0 ? -TypeParam{0} : static_cast<TypeParam>(random.next_normal());
    }
    return stream_of(kDimension, entries);
  };
  for (const uint64_t a : {0, 1, 2, 3, 4, 5, 8, 9, 40}) {
    for (const uint64_t b : {0, 1, 2, 3, 4, 5, 8, 9, 40}) {
      expect_sum<TypeParam>({drawn(a, 0, 50), drawn(b, 0, 50)});           // mixed, many alike
      expect_sum<TypeParam>({drawn(a, 0, 50), drawn(b, 60'000, 50)});      // all before
      expect_sum<TypeParam>({drawn(a, 99'000, 1'000), drawn(b, 10, 50)});  // all behind
      expect_sum<TypeParam>({drawn(a, 0, 100'000), drawn(b, 500, 60)});    // in one gap, or two
    }
    const Stream<TypeParam> alike = drawn(a, 0, 90'000);
    expect_sum<TypeParam>({alike, alike});
  }
}

TYPED_TEST(ReduceTest, SumsOfUnequalDensitiesAndClusters) {
  RandomSequence random(RandomKey::from(2));
  const uint64_t dimension = 300'000;
  // A cluster that is full, one that is half full, a long empty stretch and scattered rest.
  std::vector<Stream<TypeParam>> inputs;
  for (int i = 0; i < 5; ++i) {
    Entries<TypeParam> entries;
    for (uint32_t at = 60'000; at < 66'000; ++at) entries[at] = static_cast<TypeParam>(random.next_normal());
    for (uint32_t at = 131'000; at < 133'000; at += 1 + random.next_u32() % 3) entries[at] = static_cast<TypeParam>(i);
    for (int j = 0; j < 50 * i; ++j) {
      entries[static_cast<uint32_t>(200'000 + random.next_below(100'000))] =
          static_cast<TypeParam>(random.next_normal());
    }
    inputs.push_back(stream_of(dimension, entries));
  }
  expect_sum(inputs);
  inputs.push_back(random_stream<TypeParam>(random, dimension, 0.3));
  inputs.push_back(stream_of<TypeParam>(dimension, {{299'999, 7}}));
  inputs.push_back(Stream<TypeParam>::empty(dimension));
  expect_sum(inputs);
}

TYPED_TEST(ReduceTest, SumsAtTheEdgesOfTheLargestDimension) {
  const auto edges = stream_of<TypeParam>(kDimensionMax, {{0, 1}, {1, 2}, {0x8000'0000u, 3}, {0xffff'ffffu, 4}});
  const auto others = stream_of<TypeParam>(kDimensionMax, {{1, 5}, {0xffff'fffeu, 6}, {0xffff'ffffu, 7}});
  expect_sum<TypeParam>({edges, others});
  expect_sum<TypeParam>({others, edges, others});
  expect_sum<TypeParam>({Stream<TypeParam>::empty(kDimensionMax), Stream<TypeParam>::empty(kDimensionMax)});
}

TYPED_TEST(ReduceTest, SumOfTheLargestDimensionNeedsMemoryForItsEntriesOnly) {
  RandomSequence random(RandomKey::from(3));
  std::vector<Stream<TypeParam>> inputs;
  for (int i = 0; i < 4; ++i) {
    Entries<TypeParam> entries;
    for (int j = 0; j < 11'000; ++j) entries[random.next_u32()] = static_cast<TypeParam>(random.next_normal());
    inputs.push_back(stream_of(kDimensionMax, entries));
  }
  expect_sum(inputs);
  const Result<Stream<TypeParam>> got = sum_many<TypeParam>(views_of(inputs));
  EXPECT_LE(got->memory_bytes(), 2 * 44'000 * (4 + sizeof(TypeParam)));
}

TYPED_TEST(ReduceTest, SumsOfClustersInTheLargestDimension) {
  RandomSequence random(RandomKey::from(9));
  std::vector<Stream<TypeParam>> inputs;
  for (int i = 0; i < 3; ++i) {
    Entries<TypeParam> entries;
    for (int j = 0; j < 6'000; ++j) entries[random.next_u32()] = static_cast<TypeParam>(random.next_normal());
    for (const uint32_t begin : {0u, 0x7fff'f000u, 0xffff'e000u}) {
      for (uint32_t at = 0; at < 0x2000; at += 1 + random.next_u32() % 8) {
        entries[begin + at] = static_cast<TypeParam>(random.next_normal() * 1000);
      }
    }
    inputs.push_back(stream_of(kDimensionMax, entries));
  }
  expect_sum(inputs);
  inputs.pop_back();
  expect_sum(inputs);
}

TYPED_TEST(ReduceTest, DenseStreamsAloneAndAmongSparseOnesGiveADenseSum) {
  RandomSequence random(RandomKey::from(4));
  for (const uint64_t dimension : {1, 5, 64, 1001, 66'000}) {
    const auto dense = [&] { return to_dense(random_stream<TypeParam>(random, dimension, 0.9).view()); };
    const auto sparse = [&](double density) { return random_stream<TypeParam>(random, dimension, density); };
    expect_sum<TypeParam>({dense(), dense()});
    expect_sum<TypeParam>({dense(), dense(), dense()});
    expect_sum<TypeParam>({sparse(0.1), dense()});
    expect_sum<TypeParam>({dense(), sparse(0.1)});
    expect_sum<TypeParam>(
        {sparse(0.01), sparse(0.3), dense(), sparse(0.2), dense(), Stream<TypeParam>::empty(dimension)});
    expect_sum<TypeParam>({dense()});
  }
}

TYPED_TEST(ReduceTest, EntriesThatCancelStayStored) {
  const auto plus = stream_of<TypeParam>(100, {{3, 2}, {50, 1}});
  const auto minus = stream_of<TypeParam>(100, {{3, -2}, {51, 1}});
  const auto sum = sum_two<TypeParam>(plus.view(), minus.view());
  ASSERT_TRUE(sum.has_value());
  EXPECT_EQ(entries_of(sum->view()), (Entries<TypeParam>{{3, 0}, {50, 1}, {51, 1}}));
  expect_sum<TypeParam>({plus, minus});
  expect_sum<TypeParam>({plus, minus, plus, minus});
}

TYPED_TEST(ReduceTest, SignsOfZerosAndNonFiniteValuesAreThoseOfTheReference) {
  const TypeParam zero = 0, inf = std::numeric_limits<TypeParam>::infinity();
  const auto a = stream_of<TypeParam>(50, {{1, -zero}, {2, zero}, {3, -zero}, {4, inf}, {5, -zero}});
  const auto b = stream_of<TypeParam>(50, {{1, -zero}, {2, -zero}, {4, inf}, {6, -inf}});
  expect_sum<TypeParam>({a, b});
  expect_sum<TypeParam>({a});
  expect_sum<TypeParam>({a, b, a});
  const auto small_a = cut(a.view(), 0, 7), small_b = cut(b.view(), 0, 7);
  expect_sum<TypeParam>({small_a, small_b});
  expect_sum<TypeParam>({dense_of<TypeParam>({-zero, zero, -zero, 1, 2, 3, 4}), small_a, small_b});
  expect_sum<TypeParam>({small_a, dense_of<TypeParam>({-zero, zero, -zero, -zero, 2, 3, 4})});
}

TYPED_TEST(ReduceTest, TheSumIsDenseFromExactlyDenseFromCountOn) {
  const uint64_t dimension = 999;
  const uint64_t count = dense_from_count<TypeParam>(dimension);
  Entries<TypeParam> even, odd;
  for (uint32_t i = 0; i + 1 < count; ++i) (i % 2 == 0 ? even : odd)[i] = 1;
  const auto a = stream_of(dimension, even);
  EXPECT_FALSE(sum_two<TypeParam>(a.view(), stream_of(dimension, odd).view())->dense);
  EXPECT_FALSE(sum_many<TypeParam>(views_of<TypeParam>({a, stream_of(dimension, odd), a}))->dense);
  odd[998] = 1;
  EXPECT_TRUE(sum_two<TypeParam>(a.view(), stream_of(dimension, odd).view())->dense);
  EXPECT_TRUE(sum_many<TypeParam>(views_of<TypeParam>({a, stream_of(dimension, odd), a}))->dense);
  expect_sum<TypeParam>({a, stream_of(dimension, odd)});
}

TYPED_TEST(ReduceTest, LargeSumsOfTiesDenormalsCancellationsAndFullSlices) {
  RandomSequence random(RandomKey::from(12));
  const TypeParam tiny = std::numeric_limits<TypeParam>::denorm_min();
  // A slice of the kernel is 8192 or 4096 indices: lengths around it, with every index taken somewhere.
  for (const uint64_t dimension : {1, 64, 100, 4095, 4096, 4097, 8191, 8193, 20'000}) {
    std::vector<Stream<TypeParam>> ties, small, cancel;
    for (int i = 0; i < 3; ++i) {
      Entries<TypeParam> same, tinies, opposite;
      for (uint32_t at = 0; at < dimension; ++at) {
        if (i == 0 || random.next_below(2) == 0)
          same[at] = random.next_below(2) == 0 ? TypeParam(0.25) : TypeParam(-0.25);
        if (random.next_below(20) == 0) tinies[at] = random.next_below(2) == 0 ? tiny : -TypeParam{0};
        if (i < 2 && random.next_below(30) != 0) opposite[at] = i == 0 ? TypeParam(3) : TypeParam(-3);
      }
      ties.push_back(stream_of(dimension, same));
      small.push_back(stream_of(dimension, tinies));
      cancel.push_back(stream_of(dimension, opposite));
    }
    expect_sum(ties);
    expect_sum(small);
    expect_sum(cancel);
    expect_sum<TypeParam>({stream_of<TypeParam>(dimension, {{static_cast<uint32_t>(dimension - 1), 7}})});
    expect_sum<TypeParam>({Stream<TypeParam>::empty(dimension)});
  }
}

TYPED_TEST(ReduceTest, DifferentDimensionsAndNoStreamsAreRefused) {
  const auto a = Stream<TypeParam>::empty(10), b = Stream<TypeParam>::empty(11);
  EXPECT_EQ(sum_at_least<TypeParam>(Views<TypeParam>{a.view(), b.view()}, TypeParam(1)).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_at_least<TypeParam>(Views<TypeParam>{}, TypeParam(1)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_two<TypeParam>(a.view(), b.view()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_many<TypeParam>(Views<TypeParam>{a.view(), a.view(), b.view()}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(sum_many<TypeParam>(Views<TypeParam>{}).error().code, ErrorCode::kInvalidArgument);
}

TYPED_TEST(ReduceTest, ConcatenateUndoesCut) {
  RandomSequence random(RandomKey::from(5));
  const Stream<TypeParam> whole = random_stream<TypeParam>(random, 1000, 0.3);
  const Stream<TypeParam> dense = to_dense(whole.view());
  for (const StreamView<TypeParam>& view : {whole.view(), dense.view()}) {
    std::vector<Stream<TypeParam>> pieces;
    for (const auto& [begin, end] :
         {std::pair<uint64_t, uint64_t>{0, 1}, {1, 400}, {400, 400}, {400, 999}, {999, 1000}}) {
      pieces.push_back(cut(view, begin, end));
    }
    const Result<Stream<TypeParam>> joined = concatenate<TypeParam>(views_of(pieces));
    ASSERT_TRUE(joined.has_value());
    EXPECT_TRUE(same_bits(joined->view(), view));
  }
}

TYPED_TEST(ReduceTest, ConcatenateOfMixedPiecesCarriesExactlyWhatTheyCarry) {
  const auto dense = dense_of<TypeParam>({0, 1, 0});
  const auto sparse = stream_of<TypeParam>(3, {{2, 5}});
  const auto joined = concatenate<TypeParam>(views_of<TypeParam>({dense, sparse, dense}));
  ASSERT_TRUE(joined.has_value());
  EXPECT_FALSE(joined->dense);
  EXPECT_EQ(entries_of(joined->view()), (Entries<TypeParam>{{0, 0}, {1, 1}, {2, 0}, {5, 5}, {6, 0}, {7, 1}, {8, 0}}));
}

TYPED_TEST(ReduceTest, ConcatenateReachesTheLargestDimensionAndNotFurther) {
  const auto half = stream_of<TypeParam>(kDimensionMax / 2, {{0x7fff'ffffu, 1}});
  const auto joined = concatenate<TypeParam>(views_of<TypeParam>({half, half}));
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ(entries_of(joined->view()), (Entries<TypeParam>{{0x7fff'ffffu, 1}, {0xffff'ffffu, 1}}));
  const auto over = concatenate<TypeParam>(views_of<TypeParam>({half, half, Stream<TypeParam>::empty(1)}));
  ASSERT_FALSE(over.has_value());
  EXPECT_EQ(over.error().code, ErrorCode::kInvalidArgument);
}

TYPED_TEST(ReduceTest, NotCarriedKeepsWhatTheUpdateLeftOut) {
  RandomSequence random(RandomKey::from(6));
  for (const uint64_t dimension : {1, 3, 64, 1000, 50'000}) {
    for (const double sent_density : {0.0, 0.001, 0.05, 0.6}) {
      for (const double carried_density : {0.0, 0.001, 0.05, 0.6}) {
        const auto sent = random_stream<TypeParam>(random, dimension, sent_density);
        const auto carried = random_stream<TypeParam>(random, dimension, carried_density);
        Entries<TypeParam> expected = entries_of(sent.view());
        for (const auto& [index, value] : entries_of(carried.view())) expected.erase(index);
        const auto got = not_carried<TypeParam>(sent.view(), carried.view());
        EXPECT_TRUE(same_bits(got.view(), stream_of(dimension, expected).view()))
            << sent_density << ' ' << carried_density << ' ' << describe(got.view());
        const auto from_dense = not_carried<TypeParam>(to_dense(sent.view()).view(), carried.view());
        EXPECT_TRUE(same_bits(from_dense.view(), got.view()));
      }
    }
  }
}

TYPED_TEST(ReduceTest, NotCarriedInTheLargestDimension) {
  RandomSequence random(RandomKey::from(10));
  Entries<TypeParam> sent, carried;
  for (int i = 0; i < 9'000; ++i) {
    const uint32_t index = random.next_u32() % 3 == 0 ? 0x9000'0000u + random.next_u32() % 20'000 : random.next_u32();
    sent[index] = static_cast<TypeParam>(i);
    if (i % 3 == 0) carried[index] = 1;
    if (i % 5 == 0) carried[random.next_u32()] = 1;
  }
  Entries<TypeParam> expected = sent;
  for (const auto& [index, value] : carried) expected.erase(index);
  const auto got =
      not_carried<TypeParam>(stream_of(kDimensionMax, sent).view(), stream_of(kDimensionMax, carried).view());
  EXPECT_TRUE(same_bits(got.view(), stream_of(kDimensionMax, expected).view())) << describe(got.view());
}

TYPED_TEST(ReduceTest, NotCarriedOfOverlappingAndEqualStreams) {
  RandomSequence random(RandomKey::from(7));
  const auto sent = random_stream<TypeParam>(random, 9000, 0.2);
  EXPECT_EQ(not_carried<TypeParam>(sent.view(), sent.view()).count(), 0u);
  EXPECT_EQ(not_carried<TypeParam>(sent.view(), to_dense(sent.view()).view()).count(), 0u);
  EXPECT_FALSE(not_carried<TypeParam>(sent.view(), to_dense(sent.view()).view()).dense);
  const auto none = Stream<TypeParam>::empty(9000);
  EXPECT_TRUE(same_bits(not_carried<TypeParam>(sent.view(), none.view()).view(), sent.view()));
  // A stored zero of a sparse stream was sent: it is returned.
  const auto zero = stream_of<TypeParam>(4, {{1, 0}, {2, 1}});
  EXPECT_EQ(entries_of(not_carried<TypeParam>(zero.view(), stream_of<TypeParam>(4, {{2, 9}}).view()).view()),
            (Entries<TypeParam>{{1, 0}}));
  const auto edges = stream_of<TypeParam>(kDimensionMax, {{0, 1}, {0xffff'fffeu, 2}, {0xffff'ffffu, 3}});
  const auto last = stream_of<TypeParam>(kDimensionMax, {{0xffff'ffffu, 1}});
  EXPECT_EQ(entries_of(not_carried<TypeParam>(edges.view(), last.view()).view()),
            (Entries<TypeParam>{{0, 1}, {0xffff'fffeu, 2}}));
}

TYPED_TEST(ReduceTest, AddScaledRoundsTheProductAndThenTheSum) {
  RandomSequence random(RandomKey::from(8));
  for (const uint64_t dimension : {1, 15, 16, 17, 33, 1000, 4099}) {
    for (const double density : {0.0, 0.1, 1.0}) {
      for (const TypeParam scale : {TypeParam(1), TypeParam(-0.1), TypeParam(1) / 3}) {
        const auto stream = random_stream<TypeParam>(random, dimension, density);
        const auto target = to_dense(random_stream<TypeParam>(random, dimension, 1).view()).values;
        auto expected = target;
        for (const auto& [index, value] : entries_of(stream.view())) {
          // volatile: the compiler may not fuse the multiplication and the addition.
          const volatile TypeParam product = scale * value;
          expected[index] = expected[index] + product;
        }
        auto sparse = target, dense = target;
        add_scaled<TypeParam>(sparse, stream.view(), scale);
        add_scaled<TypeParam>(dense, to_dense(stream.view()).view(), scale);
        EXPECT_EQ(sparse, expected);
        EXPECT_EQ(dense, expected);
      }
    }
  }
}

TYPED_TEST(ReduceTest, EveryInstructionSetGivesTheSameBits) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    RandomSequence random(RandomKey::from(11));
    for (const uint64_t dimension : {1, 63, 65, 1000, 40'001}) {
      for (const double density : {0.01, 0.3, 0.97}) {
        std::vector<Stream<TypeParam>> inputs;
        for (int i = 0; i < 3; ++i) inputs.push_back(random_stream<TypeParam>(random, dimension, density));
        expect_sum(inputs);
        inputs[1] = to_dense(inputs[1].view());
        expect_sum(inputs);
        auto target = to_dense(inputs[0].view()).values, expected = target;
        for (uint64_t i = 0; i < dimension; ++i) {
          const volatile TypeParam product = TypeParam(0.3) * inputs[1].values[i];
          expected[i] = expected[i] + product;
        }
        add_scaled<TypeParam>(target, inputs[1].view(), TypeParam(0.3));
        EXPECT_EQ(target, expected);
      }
    }
  });
}

}  // namespace
}  // namespace millrace
