#include "kernels/accumulate/accumulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/accumulate/add_and_collect.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace {
namespace {

using testing::Entries;
using testing::random_stream;

Entries nonzero(Entries entries) {
  std::erase_if(entries, [](const auto& entry) { return entry.second == 0; });
  return entries;
}
Entries nonzero(const StreamView& stream) { return nonzero(testing::entries_of(stream)); }

/// The slow reference: one map, and the operations in the words of the header.
struct SumByIndex {
  Entries sum;

  void add(const StreamView& stream, uint64_t begin = 0, float factor = 1) {
    for (const auto& [index, value] : testing::entries_of(stream)) {
      sum[static_cast<uint32_t>(begin) + index] += factor * value;
    }
  }
  Entries take(const std::vector<uint32_t>& indices, uint64_t begin = 0) {
    Entries taken;
    for (const uint32_t index : indices) {
      const auto found = sum.find(index);
      if (found == sum.end()) continue;
      taken[index - static_cast<uint32_t>(begin)] = found->second;
      sum.erase(found);
    }
    return nonzero(std::move(taken));
  }
};

/// One accumulator and its reference, which random operations change alike.
class Pair {
 public:
  Pair(uint64_t seed, bool may_be_dense)
      : random_(random_key(seed, 31)),
        dimension_(1 + random_.next_below(300)),
        may_be_dense_(may_be_dense),
        accumulator_(dimension_) {}

  void change() {
    switch (random_.next_below(8)) {
      case 0: return add(next_stream());
      case 1: return cancel();
      case 2: return add_to_dense();
      case 3: return merge();
      case 4: return take_at();
      case 5: return take_range();
      case 6: return take_selected();
      default: return take_zeros_or_all();
    }
  }

  void compare() const {
    ASSERT_TRUE(validate(accumulator_.view()).has_value());
    ASSERT_EQ(accumulator_.dimension(), dimension_);
    ASSERT_EQ(nonzero(accumulator_.view()), nonzero(by_index_.sum));
  }
  bool is_dense() const { return accumulator_.is_dense(); }

 private:
  Stream next_stream() {
    const double chance = random_.next_unit();
    Stream stream = random_stream(random_, dimension_, chance * chance);
    return may_be_dense_ && random_.next_below(4) == 0 ? to_dense(stream.view()) : stream;
  }
  void add(Stream stream) {
    by_index_.add(stream.view());
    accumulator_.add(std::move(stream));
  }
  /// Makes stored zeros of half of the entries.
  void cancel() {
    Stream opposite = Stream::empty(dimension_);
    for (const auto& [index, value] : by_index_.sum) {
      if (random_.next_below(2) == 0) continue;
      opposite.indices.push_back(index);
      opposite.values.push_back(-value);
    }
    add(std::move(opposite));
  }
  void add_to_dense() {
    if (!may_be_dense_) return;
    const Stream stream = next_stream();
    by_index_.add(stream.view(), 0, -0.3f);
    accumulator_.add_to_dense(stream.view(), -0.3f);
    const uint64_t begin = random_.next_below(dimension_);
    const Stream later = random_stream(random_, dimension_ - begin, 0.5);
    by_index_.add(later.view(), begin, 0.7f);
    accumulator_.add_to_dense(later.view(), 0.7f, begin);
  }
  void merge() {
    if (accumulator_.is_dense()) return;
    std::vector<Stream> streams;
    std::vector<uint64_t> begins;
    for (uint64_t begin = random_.next_below(3); begin < dimension_;) {
      const uint64_t length = 1 + random_.next_below(dimension_ - begin);
      streams.push_back(random_stream(random_, length, 0.2));
      begins.push_back(begin);
      begin += length + random_.next_below(5);
    }
    std::vector<PlacedStream> pieces;
    for (size_t i = 0; i < streams.size(); ++i) pieces.push_back({begins[i], streams[i].view()});
    for (const PlacedStream& piece : pieces) by_index_.add(piece.stream, piece.begin);
    accumulator_.merge(pieces);
    if (may_be_dense_) accumulator_.make_dense_where_smaller();
  }
  void take_at() {
    const StreamView all = accumulator_.view();
    IndexBuffer positions;
    std::vector<uint32_t> indices;
    for (uint32_t at = 0; at < all.count(); ++at) {
      if (random_.next_below(3) != 0) continue;
      positions.push_back(at);
      indices.push_back(all.dense ? at : all.indices[at]);
    }
    const Stream taken = accumulator_.take_at(positions);
    EXPECT_FALSE(taken.dense);
    EXPECT_EQ(taken.count(), positions.size()) << "a selected zero is taken as well";
    EXPECT_EQ(nonzero(taken.view()), by_index_.take(indices));
  }
  void take_selected() {
    const auto selector = make_selector(selection_from_text("threshold:0.5").value(), dimension_).value();
    std::vector<uint32_t> indices;
    for (const auto& [index, value] : by_index_.sum) {
      if (std::abs(value) >= 0.5f) indices.push_back(index);
    }
    const auto taken = accumulator_.take_selected(*selector, {});
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    EXPECT_FALSE(taken->dense);
    EXPECT_EQ(nonzero(taken->view()), by_index_.take(indices));
  }
  void take_range() {
    const uint64_t begin = random_.next_below(dimension_);
    const uint64_t end = begin + 1 + random_.next_below(dimension_ - begin);
    std::vector<uint32_t> indices;
    for (uint64_t index = begin; index < end; ++index) indices.push_back(static_cast<uint32_t>(index));
    const Stream taken = accumulator_.take_range(begin, end);
    EXPECT_FALSE(taken.dense || accumulator_.is_dense());
    EXPECT_EQ(taken.dimension, end - begin);
    EXPECT_EQ(nonzero(taken.view()), by_index_.take(indices, begin));
  }
  void take_zeros_or_all() {
    if (random_.next_below(4) != 0) {
      accumulator_.drop_zeros();
      EXPECT_TRUE(accumulator_.is_dense() || accumulator_.view().count() == nonzero(accumulator_.view()).size());
      return;
    }
    const Stream taken = accumulator_.take_all();
    EXPECT_EQ(nonzero(taken.view()), nonzero(std::exchange(by_index_.sum, {})));
    EXPECT_TRUE(accumulator_.is_empty());
    EXPECT_FALSE(accumulator_.is_dense());
  }

  RandomSequence random_;
  uint64_t dimension_ = 0;
  bool may_be_dense_ = false;
  Accumulator accumulator_;
  SumByIndex by_index_;
};

TEST(Accumulator, IsTheSumByIndexAfterAnyOperations) {
  uint64_t dense = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Pair pair(seed, seed % 2 == 0);
    for (int round = 0; round < 30; ++round) {
      pair.change();
      pair.compare();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", round " << round;
      dense += pair.is_dense() ? 1 : 0;
    }
  }
  EXPECT_GT(dense, 100u) << "dense sums were not met";
}

TEST(Accumulator, KeepsTheArraysOfTheFirstStream) {
  Accumulator accumulator(100);
  Stream stream{100, false, {3, 7}, {1, 2}};
  const float* const values = stream.values.data();
  accumulator.add(std::move(stream));
  EXPECT_EQ(accumulator.view().values.data(), values) << "the first stream was copied";
  const Stream taken = accumulator.take_all();
  EXPECT_EQ(taken.values.data(), values);
}

TEST(Accumulator, EveryChangeAfterACollectionEndsIt) {
  const uint64_t n = kCollectFrom;
  const Stream one{n, false, {5}, {1}};
  const std::vector<void (*)(Accumulator&, const Stream&)> changes = {
      [](Accumulator& sum, const Stream& stream) { sum.add(Stream(stream)); },
      [](Accumulator& sum, const Stream& stream) { sum.add_to_dense(stream.view(), 2); },
      [](Accumulator& sum, const Stream&) { sum.values()[3] = 7; },
      [](Accumulator& sum, const Stream&) { sum.take_all(); },
      [](Accumulator& sum, const Stream&) { sum.take_at(IndexBuffer{1, 2}); },
      [](Accumulator& sum, const Stream&) { sum.take_range(0, 9); }};
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>((i * 7919) % n);
  for (const auto& change : changes) {
    Accumulator sum(n);
    sum.add(Stream{n, true, {}, Buffer<float>(n, 1.0f)});
    EXPECT_EQ(sum.largest(), nullptr);
    sum.add_and_collect(values, 1, 100);
    ASSERT_NE(sum.largest(), nullptr);
    EXPECT_GE(sum.largest()->keys.size(), 100u);
    sum.make_dense();
    sum.drop_zeros();
    ASSERT_NE(sum.largest(), nullptr) << "of a dense sum they change nothing";
    change(sum, one);
    EXPECT_EQ(sum.largest(), nullptr) << "change " << &change - changes.data();
  }
}

TEST(Accumulator, ASelectionThatFailsTakesNothing) {
  const auto selector = make_selector(selection_from_text("topk:0.5").value(), 4).value();
  Accumulator sum(4);
  EXPECT_EQ(sum.take_selected(*selector, {}).value().count(), 0u) << "nothing is stored";
  const Stream stream{4, true, {}, {1, std::numeric_limits<float>::infinity(), 2, 3}};
  sum.add(Stream(stream));
  EXPECT_EQ(sum.take_selected(*selector, {}).error().code, ErrorCode::kNonFinite);
  EXPECT_EQ(testing::entries_of(sum.view()), testing::entries_of(stream.view()));
}

TEST(Accumulator, TheCollectedEntriesAreSelectedAsAScanWould) {
  const uint64_t n = kCollectFrom;
  const auto selector = make_selector(selection_from_text("topk:100").value(), n).value();
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>((i * 7919) % n);
  std::vector<Stream> taken;
  for (const uint64_t wanted : {uint64_t{0}, uint64_t{100}}) {
    Accumulator sum(n);
    sum.add(Stream{n, true, {}, Buffer<float>(n, 1.0f)});
    sum.add_and_collect(values, 1, wanted);
    EXPECT_EQ(sum.largest() != nullptr, wanted != 0);
    taken.push_back(sum.take_selected(*selector, {}).value());
    EXPECT_EQ(sum.largest(), nullptr);
  }
  EXPECT_EQ(taken[0].count(), 100u);
  EXPECT_EQ(testing::entries_of(taken[0].view()), testing::entries_of(taken[1].view()));
}

TEST(Accumulator, KeepsTheLastIndexOfTheLargestDimension) {
  Accumulator accumulator(kDimensionMax);
  accumulator.add(Stream{kDimensionMax, false, {0, 0xffff'ffffu}, {1, 2}});
  const Stream piece{2, false, {1}, {4}};
  accumulator.merge({{kDimensionMax - 2, piece.view()}});
  accumulator.make_dense_where_smaller();
  ASSERT_FALSE(accumulator.is_dense());
  const Stream taken = accumulator.take_range(kDimensionMax - 1, kDimensionMax);
  EXPECT_EQ(testing::entries_of(taken.view()), (Entries{{0, 6.0f}}));
  EXPECT_EQ(testing::entries_of(accumulator.view()), (Entries{{0, 1.0f}}));
}

TEST(Accumulator, AStreamOfAnotherDimensionIsRefused) {
  Accumulator accumulator(10);
  EXPECT_DEATH(accumulator.add(Stream::empty(11)), "stream.dimension");
  EXPECT_DEATH(accumulator.take_range(4, 11), "end <= ");
  EXPECT_DEATH(accumulator.add_to_dense(Stream::empty(9).view(), 1, 2), "begin [+] stream.dimension");
}

}  // namespace
}  // namespace millrace
