#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <millrace/peer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/peer/library/library_ranks.h"

/// Every allreduce through the installed interface, against the slow sum index by index in f64, and the law.
namespace millrace::peers::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kStepsOfGrid = 3;

/// A sum of several ranks, and the forms of its inputs.
struct LibraryCase {
  uint32_t size = 1;
  AllreduceOptions options;
  AlgorithmInfo info;
  bool gives_dense = false;
  bool gives_rest = false;
  double tolerance = 0;  ///< of an index's account

  uint64_t count() const { return std::max<uint64_t>(options.dimension / 10, 1); }
};

/// The inputs and results of all ranks in one step.
struct LibraryStep {
  std::vector<SparseEntries> own;
  std::vector<std::vector<float>> rest;
  std::vector<Reduced> reduced;
};

/// Values everywhere but where `entries` has some.
std::vector<float> values_beside(const SparseEntries& entries, uint64_t dimension, uint32_t seed) {
  std::mt19937 draws(seed);
  std::vector<float> values(dimension);
  for (float& value : values) value = exact_value(draws);
  for (const uint32_t index : entries.indices) values[index] = 0;
  return values;
}

std::vector<LibraryStep> steps_of(const LibraryCase& one) {
  std::vector<LibraryStep> steps(kStepsOfGrid);
  for (uint32_t step = 0; step < kStepsOfGrid; ++step) {
    steps[step].reduced.resize(one.size);
    for (uint32_t rank = 0; rank < one.size; ++rank) {
      const uint32_t seed = 100 * step + rank + 1;
      steps[step].own.push_back(drawn_entries(one.options.dimension, one.count(), seed));
      steps[step].rest.push_back(one.gives_rest
                                     ? values_beside(steps[step].own.back(), one.options.dimension, seed + 50)
                                     : std::vector<float>());
    }
  }
  on_ranks_of_library(one.size, {}, [&](Group& group) {
    Allreduce allreduce(group, one.options);
    for (LibraryStep& step : steps) {
      const uint32_t rank = group.rank();
      Pending pending = one.gives_dense ? allreduce.start(dense_of(step.own[rank], one.options.dimension))
                                        : allreduce.start(step.own[rank], step.rest[rank]);
      step.reduced[rank] = pending.wait();
    }
  });
  return steps;
}

/// Adds the own entries that the rank still has.
void add_kept_entries(IndexSums& sums, const LibraryCase& one, const SparseEntries& own, const Reduced& reduced) {
  if (!one.info.takes_k) return;
  IndexSums mine;
  add_view(mine, view_of_entries(own, one.options.dimension));
  for (const uint32_t index : reduced.contributed) {
    // A selection of a dense vector may hand over zeros.
    if (!one.gives_dense) {
      ASSERT_TRUE(mine.contains(index)) << "index " << index << " is not of this rank";
    }
    mine.erase(index);
  }
  for (const auto& [index, value] : mine) sums[index] += value;
}

void expect_equal_sums(const IndexSums& found, const IndexSums& expected, double tolerance) {
  if (tolerance == 0) {
    EXPECT_EQ(without_zero_sums(found), without_zero_sums(expected));
    return;
  }
  IndexSums difference = found;
  for (const auto& [index, value] : expected) difference[index] -= value;
  for (const auto& [index, value] : difference) EXPECT_NEAR(value, 0, tolerance) << "index " << index;
}

/// Checks the law of `Reduced`, and that all ranks have the same bits. Returns the number of added entries.
uint64_t check_law(const LibraryCase& one) {
  SCOPED_TRACE(std::string(one.info.name) + ", ranks " + std::to_string(one.size) + ", n " +
               std::to_string(one.options.dimension));
  uint64_t added = 0;
  for (const LibraryStep& step : steps_of(one)) {
    IndexSums entered;
    IndexSums accounted;
    const Reduced& first = step.reduced[0];
    add_view(accounted, first.sum);
    for (uint32_t rank = 0; rank < one.size; ++rank) {
      const Reduced& mine = step.reduced[rank];
      EXPECT_EQ(mine.sum.dimension, one.options.dimension);
      EXPECT_TRUE(std::ranges::equal(mine.sum.indices, first.sum.indices)) << "rank " << rank;
      EXPECT_TRUE(std::ranges::equal(mine.sum.values, first.sum.values)) << "rank " << rank;
      add_view(entered, view_of_entries(step.own[rank], one.options.dimension));
      add_view(entered, mine.added);
      add_view(accounted, mine.returned);
      add_kept_entries(accounted, one, step.own[rank], mine);
      for (size_t j = 0; j < mine.added.values.size(); ++j) {
        EXPECT_EQ(mine.added.values[j], step.rest[rank][mine.added.indices[j]]);
      }
      added += mine.added.values.size();
    }
    expect_equal_sums(accounted, entered, one.tolerance);
    if (!one.info.takes_k && !one.options.codec) {
      IndexSums sum;
      add_view(sum, first.sum);
      expect_equal_sums(sum, entered, one.tolerance);
    }
  }
  return added;
}

class LibraryAlgorithms : public ::testing::TestWithParam<AlgorithmInfo> {
 protected:
  /// The algorithm with a k of a twentieth of the dimension.
  static LibraryCase case_of(uint32_t size, uint64_t dimension) {
    const AlgorithmInfo& info = GetParam();
    const Amount k = Amount::count(std::max<uint64_t>(dimension / 20, 1));
    return {.size = size,
            .options = {.dimension = dimension,
                        .algorithm = Algorithm::numbered(info.number, info.takes_k ? std::optional(k) : std::nullopt)},
            .info = info};
  }
};

TEST_P(LibraryAlgorithms, SumsOfEntriesKeepTheLaw) {
  for (uint32_t size = 1; size <= 5; ++size) {
    for (const uint64_t dimension : {uint64_t{1}, uint64_t{7}, uint64_t{1'000}}) check_law(case_of(size, dimension));
  }
}

TEST_P(LibraryAlgorithms, SumsOfVectorsKeepTheLaw) {
  for (const uint32_t size : {1U, 3U, 4U}) {
    LibraryCase one = case_of(size, 600);
    one.gives_dense = true;
    check_law(one);
  }
}

TEST_P(LibraryAlgorithms, ACodecsLossIsReturned) {
  LibraryCase one = case_of(3, 1'000);
  one.options.codec = Codec(index::gap, value::bf16);
  check_law(one);
}

INSTANTIATE_TEST_SUITE_P(All, LibraryAlgorithms, ::testing::ValuesIn(algorithms()),
                         [](const auto& one) { return std::string(one.param.name); });

LibraryCase library_case_of(uint32_t size, uint64_t dimension, const Algorithm& algorithm) {
  return {.size = size, .options = {.dimension = dimension, .algorithm = algorithm}, .info = {.name = "a sum"}};
}

TEST(PeersLibrary, FalsePositivesOfACodecTakeValuesOfTheRest) {
  LibraryCase one = library_case_of(3, 2'000, Algorithm::ssar_recursive_doubling());
  one.options.codec = Codec(index::bloom(0.1));
  one.gives_rest = true;
  EXPECT_GT(check_law(one), 0U);
}

TEST(PeersLibrary, AQuantizerOfSumsReturnsItsErrorToTheOwner) {
  LibraryCase one = library_case_of(3, 500, Algorithm::dsar_split_allgather(Codec(index::raw, value::qsgd(4))));
  one.gives_dense = true;
  one.tolerance = 1e-4;
  one.options.codec = Codec();  // so that the sum alone is not compared: it is not exact
  check_law(one);
}

TEST(PeersLibrary, AlgorithmsAreListedByNumberWithTheirPapers) {
  uint8_t last = 0;
  for (const AlgorithmInfo& info : algorithms()) {
    EXPECT_GT(info.number, last);
    last = info.number;
    EXPECT_FALSE(info.name.empty());
    EXPECT_FALSE(info.source.empty());
  }
  EXPECT_GE(algorithms().size(), 13U);
}

TEST(PeersLibrary, ADensityOfTheDimensionIsRoundedUp) {
  on_ranks_of_library(2, {}, [](Group& group) {
    Allreduce allreduce(group, {.dimension = 1'001, .algorithm = Algorithm::gtopk(0.01)});
    std::vector<float> dense(1'001, 1.0F);
    EXPECT_EQ(allreduce.start(std::move(dense)).wait().contributed.size(), 11U);
  });
}

struct RefusedOptions {
  AllreduceOptions options;
  JobErrorCode code;
  std::string_view word;  ///< of the sentence
};

TEST(PeersLibrary, ImpossibleOptionsAreRefusedAndNamed) {
  const auto of = [](const Algorithm& algorithm, std::optional<Codec> codec = {}) {
    return AllreduceOptions{.dimension = 100, .algorithm = algorithm, .codec = codec};
  };
  static constexpr auto kInvalid = JobErrorCode::kInvalidArgument;
  const std::vector<RefusedOptions> cases = {
      {{}, kInvalid, "dimension of 0"},
      {{.dimension = (uint64_t{1} << 32) + 1, .algorithm = Algorithm::sparse_ring()}, kInvalid, "2^32"},
      {of(Algorithm::oktopk(Amount::count(101))), kInvalid, "k = 101"},
      {of(Algorithm::oktopk(Amount::count(0))), kInvalid, "density in (0, 1]"},
      {of(Algorithm::topk_a(1.5)), kInvalid, "density in (0, 1]"},
      {of(Algorithm::numbered(11)), kInvalid, "needs a k"},
      {of(Algorithm::numbered(4, 0.1)), kInvalid, "takes no k"},
      {of(Algorithm::numbered(200)), JobErrorCode::kUnsupported, "200"},
      {of(Algorithm::oktopk(0.1, {.thresholds_period = 0})), kInvalid, "period"},
      {of(Algorithm::oktopk(0.1, {.balance_ratio = 0.5})), kInvalid, "balance ratio"},
      {of(Algorithm::sparse_ring(), Codec::automatic()), kInvalid, "AllreduceOptions::codec"},
      {of(Algorithm::sparse_ring(), Codec(index::gap, value::qsgd(1))), kInvalid, ""},
      {of(Algorithm::dsar_split_allgather(Codec::automatic())), kInvalid, "quantizer"},
  };
  on_ranks_of_library(1, {}, [&cases](Group& group) {
    for (const RefusedOptions& one : cases) {
      const auto [code, sentence] = thrown_by([&] { Allreduce refused(group, one.options); });
      EXPECT_NE(sentence, "") << "accepted: " << one.word;
      EXPECT_EQ(code, one.code) << sentence;
      EXPECT_THAT(sentence, HasSubstr(std::string(one.word)));
    }
  });
}

TEST(PeersLibrary, ImpossibleInputsAreRefusedAndTheGroupContinues) {
  static constexpr auto kInvalid = JobErrorCode::kInvalidArgument;
  on_ranks_of_library(2, {}, [](Group& group) {
    Allreduce allreduce(group, {.dimension = 4, .algorithm = Algorithm::ssar_recursive_doubling()});
    const auto code_of = [](auto call) { return thrown_by(call).first; };
    const std::vector<float> wrong(3, 1.0F);
    const std::vector<float> finite(4, 1.0F);
    const std::vector<float> with_nan = {1, std::nanf(""), 1, 1};
    EXPECT_EQ(code_of([&] { allreduce.start(wrong); }), kInvalid);
    EXPECT_EQ(code_of([&] { allreduce.start(std::vector<float>(5, 1.0F)); }), kInvalid);
    EXPECT_EQ(code_of([&] { allreduce.start(with_nan); }), JobErrorCode::kNonFinite);
    EXPECT_EQ(code_of([&] { allreduce.start(std::vector<float>(with_nan)); }), JobErrorCode::kNonFinite);
    EXPECT_EQ(code_of([&] { allreduce.start(SparseEntries{{1, 1}, {2, 3}}); }), kInvalid);
    EXPECT_EQ(code_of([&] { allreduce.start(SparseEntries{{4}, {2}}); }), kInvalid);
    EXPECT_EQ(code_of([&] { allreduce.start(SparseEntries{{1, 2}, {2}}); }), kInvalid);
    EXPECT_EQ(code_of([&] { allreduce.start(SparseEntries{{1}, {HUGE_VALF}}); }), JobErrorCode::kNonFinite);
    EXPECT_EQ(code_of([&] { allreduce.start(SparseEntries{{1}, {2}}, wrong); }), kInvalid);
    EXPECT_EQ(code_of([&] { allreduce.start(SparseEntries{{1}, {2}}, with_nan); }), JobErrorCode::kNonFinite);
    EXPECT_FALSE(group.failure().has_value());
    std::vector<float> sum(4, 0.0F);
    allreduce.start(finite).wait().sum.add_to(sum);
    EXPECT_EQ(sum, std::vector<float>(4, 2.0F));
  });
}

TEST(PeersLibrary, ImpossibleGroupsAreRefused) {
  EXPECT_EQ(thrown_by([] { Communicator::in_process(0); }).first, JobErrorCode::kInvalidArgument);
  const auto [code, sentence] = thrown_by(
      [] { Group group(std::move(Communicator::in_process(1)[0]), {.silence_max = std::chrono::milliseconds(3)}); });
  EXPECT_EQ(code, JobErrorCode::kInvalidArgument);
  EXPECT_THAT(sentence, HasSubstr("GroupOptions::silence_max"));
  auto ranks = Communicator::in_process(1);
  const Group first(std::move(ranks[0]));
  EXPECT_EQ(thrown_by([&] { const Group second(std::move(ranks[0])); }).first, JobErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::peers::testing
