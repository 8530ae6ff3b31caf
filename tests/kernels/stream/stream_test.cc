#include "kernels/stream/stream.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "kernels/stream/shared_stream.h"
#include "kernels/stream/stream_scan.h"
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

// Lengths around every SIMD width and its multiples.
const std::vector<uint64_t> kAwkwardLengths = {1,  2,  3,  7,  8,  9,   15,  16,   17,  31,
                                               32, 33, 63, 64, 65, 127, 129, 1000, 4099};

TEST(StreamTest, DenseFromCountIsWhereTheDenseFormIsNotLarger) {
  constexpr uint64_t value_bytes = sizeof(float), pair_bytes = 4 + value_bytes;
  for (const uint64_t dimension : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{7}, uint64_t{1000}, kDimensionMax}) {
    const uint64_t count = dense_from_count(dimension);
    EXPECT_GE(count * pair_bytes, dimension * value_bytes) << dimension;
    EXPECT_LT((count - 1) * pair_bytes, dimension * value_bytes) << dimension;
  }
}

TEST(StreamTest, ValidateAcceptsWellFormedStreams) {
  const Entries edges = {{0, 1}, {5, 2}, {0xffff'ffffu, 3}};
  EXPECT_TRUE(validate(stream_of(kDimensionMax, edges).view()));
  EXPECT_TRUE(validate(Stream::empty(1).view()));
  EXPECT_TRUE(validate(Stream::empty(kDimensionMax).view()));
  EXPECT_TRUE(validate(dense_of({1, 2, 3}).view()));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(validate(dense_of({nan}).view()));
}

TEST(StreamTest, ValidateRefusesDimensionsAndSizesThatCannotBe) {
  const std::vector<uint32_t> indices = {1, 2, 3};
  const std::vector<float> values = {1, 2, 3};
  const auto refused = [](const StreamView& view) {
    const Status status = validate(view);
    return !status && status.error().code == ErrorCode::kMalformed;
  };
  EXPECT_TRUE(refused({0, false, {}, {}}));
  EXPECT_TRUE(refused({0, true, {}, {}}));
  EXPECT_TRUE(refused({kDimensionMax + 1, false, {}, {}}));
  EXPECT_TRUE(refused({std::numeric_limits<uint64_t>::max(), false, indices, values}));
  EXPECT_TRUE(refused({10, false, IndexSpan(indices).first(2), values}));
  EXPECT_TRUE(refused({10, false, indices, {}}));
  EXPECT_TRUE(refused({10, false, {}, values}));
  EXPECT_TRUE(refused({10, true, {}, values}));
  EXPECT_TRUE(refused({3, true, indices, values}));
  EXPECT_TRUE(refused({2, true, {}, values}));
  EXPECT_TRUE(refused({3, false, indices, values}));
  EXPECT_FALSE(refused({4, false, indices, values}));
  EXPECT_FALSE(refused({3, true, {}, values}));
}

void expect_order_faults_found() {
  for (const uint64_t length : kAwkwardLengths) {
    std::vector<uint32_t> indices(length);
    for (size_t i = 0; i < length; ++i) indices[i] = static_cast<uint32_t>(2 * i);
    const std::vector<float> values(length, 1);
    const StreamView view{2 * length, false, indices, values};
    ASSERT_TRUE(validate(view)) << length;
    for (size_t at = 1; at < length; at += 1 + length / 67) {
      const uint32_t kept = indices[at];
      indices[at] = indices[at - 1];
      EXPECT_FALSE(validate(view)) << length << " equal at " << at;
      indices[at] = kept;
      std::swap(indices[at], indices[at - 1]);
      EXPECT_FALSE(validate(view)) << length << " swapped at " << at;
      std::swap(indices[at], indices[at - 1]);
    }
    // Order is unsigned: 0x80000000 follows 0x7fffffff.
    indices[length - 1] = 0x8000'0000u;
    EXPECT_FALSE(validate(view));
    EXPECT_TRUE(validate(StreamView{kDimensionMax, false, indices, values}));
  }
}

void expect_non_finite_found() {
  using Limits = std::numeric_limits<float>;
  EXPECT_TRUE(all_finite(std::span<const float>{}));
  for (const uint64_t length : kAwkwardLengths) {
    std::vector<float> values(length + 1, Limits::max());
    // One element in: the array does not start on a vector boundary.
    const std::span<const float> span = std::span<const float>(values).subspan(1);
    values[0] = Limits::quiet_NaN();
    ASSERT_TRUE(all_finite(span)) << length;
    for (size_t at = 1; at <= length; at += 1 + length / 67) {
      for (const float bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), Limits::signaling_NaN()}) {
        values[at] = bad;
        EXPECT_FALSE(all_finite(span)) << length << " at " << at;
      }
      for (const float good : {Limits::lowest(), Limits::denorm_min(), 0.0F, -0.0F}) {
        values[at] = good;
        EXPECT_TRUE(all_finite(span)) << length << " at " << at;
      }
    }
  }
}

TEST(StreamTest, OneEqualOrSwappedPair_ValidateFindsItOnEveryInstructionSet) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_order_faults_found();
  });
}

TEST(StreamTest, AllFiniteFindsOneNonFiniteValueAnywhereOnEveryInstructionSet) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_non_finite_found();
  });
}

void expect_copies_that_look() {
  constexpr uint64_t kLengths[] = {0, 1, 2, 63, 2047, 2048, 2049, 5000};  // a block is 2,048
  for (const uint64_t length : kLengths) {
    std::vector<uint32_t> indices(length);
    for (size_t i = 0; i < length; ++i) indices[i] = static_cast<uint32_t>(3 * i + 5);
    std::vector<float> values(length, -2.0F);
    std::vector<uint32_t> index_copy(length);
    std::vector<float> value_copy(length);
    ASSERT_TRUE(copy_increasing(indices.data(), index_copy));
    ASSERT_TRUE(copy_finite(values.data(), value_copy));
    EXPECT_EQ(index_copy, indices);
    std::vector<uint32_t> moved(length);
    // Down by 5 more than the first one: modulo 2^32.
    ASSERT_TRUE(moved_down_increasing(indices.data(), length, 10, moved.data()));
    for (size_t i = 0; i < length; ++i) ASSERT_EQ(moved[i], static_cast<uint32_t>(3 * i) - 5) << i;
    EXPECT_EQ(value_copy, values);
    for (size_t at = 1; at < length; at += 1 + length / 67) {
      const uint32_t kept = std::exchange(indices[at], indices[at - 1]);
      EXPECT_FALSE(copy_increasing(indices.data(), index_copy)) << length << " at " << at;
      EXPECT_FALSE(moved_down_increasing(indices.data(), length, 10, moved.data())) << length << " at " << at;
      indices[at] = kept;
      values[at] = std::numeric_limits<float>::infinity();
      EXPECT_FALSE(copy_finite(values.data(), value_copy)) << length << " at " << at;
      values[at] = -2.0F;
    }
  }
}

TEST(StreamTest, CopiedStream_DetectsOrderAndNonFiniteValuesOnEveryIsa) {
  testing::for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_copies_that_look();
  });
}

TEST(StreamTest, DenseAndSparseFormsConvertIntoEachOther) {
  RandomSequence random(RandomKey::from(1));
  for (const uint64_t dimension : kAwkwardLengths) {
    for (const double density : {0.0, 0.1, 0.7, 1.0}) {
      const Stream sparse = random_stream(random, dimension, density);
      const Stream dense = to_dense(sparse.view());
      ASSERT_TRUE(validate(dense.view()));
      ASSERT_TRUE(dense.dense);
      for (const auto& [index, value] : entries_of(sparse.view())) ASSERT_EQ(dense.values[index], value);
      EXPECT_TRUE(same_bits(to_sparse(dense.view()).view(), sparse.view())) << describe(sparse.view());
      EXPECT_TRUE(same_bits(to_dense(dense.view()).view(), dense.view()));
      EXPECT_TRUE(same_bits(to_sparse(sparse.view()).view(), sparse.view()));
    }
  }
}

TEST(StreamTest, ToSparse_KeepsStoredZerosOfSparseAndDropsThoseOfDense) {
  const Stream sparse = stream_of(4, {{1, 0}, {2, -0.0F}});
  EXPECT_TRUE(same_bits(to_sparse(sparse.view()).view(), sparse.view()));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Stream found = to_sparse(dense_of({0, nan, -0.0F, 3}).view());
  EXPECT_EQ(std::vector<uint32_t>(found.indices.begin(), found.indices.end()), (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(std::isnan(found.values[0]));
}

TEST(StreamTest, InSmallerForm_MakesADenseStreamSparseWhereThatIsSmaller) {
  constexpr uint64_t kDimension = 9;
  for (uint64_t nonzero = 0; nonzero <= kDimension; ++nonzero) {
    std::vector<float> values(kDimension, 0.0f);
    for (uint64_t i = 0; i < nonzero; ++i) values[i] = 1;
    const Stream dense = dense_of(values);
    const Stream formed = in_smaller_form(Stream(dense));
    EXPECT_EQ(formed.dense, nonzero >= dense_from_count(kDimension)) << nonzero;
    EXPECT_TRUE(same_bits(to_dense(formed.view()).view(), dense.view()));
  }
  const Stream sparse = stream_of(3, {{0, 1}, {1, 0}, {2, 1}});
  EXPECT_TRUE(same_bits(in_smaller_form(Stream(sparse)).view(), sparse.view())) << "a sparse stream stays";
}

TEST(StreamTest, CutRebasesTheEntriesOfTheRange) {
  RandomSequence random(RandomKey::from(2));
  const uint64_t dimension = 500;
  const Stream sparse = random_stream(random, dimension, 0.3);
  const Stream dense = to_dense(sparse.view());
  for (int i = 0; i < 200; ++i) {
    const uint64_t begin = random.next_below(dimension + 1);
    const uint64_t end = begin + random.next_below(dimension - begin + 1);
    Entries expected;
    for (const auto& [index, value] : entries_of(sparse.view())) {
      if (index >= begin && index < end) expected[static_cast<uint32_t>(index - begin)] = value;
    }
    const Stream piece = slice_of(sparse.view(), begin, end);
    EXPECT_TRUE(same_bits(piece.view(), stream_of(end - begin, expected).view())) << begin << ' ' << end;
    const SharedStream held = SharedStream::from(Stream(sparse));
    SharedStream shared = slice_of(held, begin, end);
    EXPECT_TRUE(same_bits(shared.view, piece.view()));
    EXPECT_TRUE(shared.view.count() == 0 || (shared.view.values.data() >= held.view.values.data() &&
                                             shared.view.values.data() < std::to_address(held.view.values.end())));
    const Stream dense_piece = slice_of(dense.view(), begin, end);
    EXPECT_TRUE(dense_piece.dense);
    shared = slice_of(SharedStream::from(Stream(dense)), begin, end);
    EXPECT_TRUE(same_bits(shared.view, dense_piece.view())) << "and the whole is kept";
    EXPECT_EQ(dense_piece.count(), end - begin);
    EXPECT_TRUE(same_bits(to_sparse(dense_piece.view()).view(), piece.view()));
    const auto [first, last] = range_of(sparse.indices, begin, end);
    EXPECT_EQ(last - first, expected.size());
    if (first < last) {
      EXPECT_EQ(sparse.indices[first] - begin, expected.begin()->first);
    }
  }
}

TEST(StreamTest, CutReachesTheLastIndexOfTheLargestDimension) {
  const Stream stream = stream_of(kDimensionMax, {{0, 1}, {0xffff'fffeu, 2}, {0xffff'ffffu, 3}});
  const Stream tail = slice_of(stream.view(), kDimensionMax - 1, kDimensionMax);
  EXPECT_TRUE(same_bits(tail.view(), stream_of(1, {{0, 3}}).view()));
  EXPECT_TRUE(same_bits(slice_of(stream.view(), 0, kDimensionMax).view(), stream.view()));
  EXPECT_EQ(range_of(stream.indices, 1, kDimensionMax), (std::pair<size_t, size_t>{1, 3}));
  EXPECT_EQ(range_of({}, 0, kDimensionMax), (std::pair<size_t, size_t>{0, 0}));
}

TEST(StreamTest, CoalesceSortsAndAddsDuplicatesInTheOrderGiven) {
  RandomSequence random(RandomKey::from(3));
  for (const uint64_t dimension : {uint64_t{1}, uint64_t{10}, uint64_t{1000}, uint64_t{70'000}, kDimensionMax}) {
    for (const size_t length : {0, 1, 2, 17, 1000, 9000}) {
      std::vector<uint32_t> indices(length);
      std::vector<float> values(length);
      Entries expected;
      for (size_t i = 0; i < length; ++i) {
        indices[i] = static_cast<uint32_t>(random.next_below(dimension));
        values[i] = static_cast<float>(random.next_normal() * static_cast<double>(1u << random.next_below(25)));
        const auto [at, inserted] = expected.try_emplace(indices[i], values[i]);
        if (!inserted) at->second += values[i];
      }
      const Result<Stream> got = coalesce(dimension, indices, values);
      ASSERT_TRUE(got.has_value());
      EXPECT_TRUE(validate(got->view()));
      EXPECT_TRUE(same_bits(got->view(), stream_of(dimension, expected).view())) << describe(got->view());
    }
  }
}

TEST(StreamTest, CoalesceLeavesSortedEntriesAsTheyAre) {
  RandomSequence random(RandomKey::from(4));
  const Stream sorted = random_stream(random, 5000, 0.4);
  const Result<Stream> got = coalesce(5000, sorted.indices, sorted.values);
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(same_bits(got->view(), sorted.view()));
}

TEST(StreamTest, CoalesceNamesTheFirstIndexOutOfRange) {
  const std::vector<uint32_t> indices = {3, 10, 12, 1};
  const std::vector<float> values = {1, 2, 3, 4};
  const Result<Stream> got = coalesce(10, indices, values);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(got.error().message.find("index 10 (entry 1)"), std::string::npos) << got.error().message;
  const Result<Stream> sizes = coalesce(10, indices, std::span<const float>(values).first(3));
  ASSERT_FALSE(sizes.has_value());
  EXPECT_EQ(sizes.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
