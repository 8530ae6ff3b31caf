#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "kernels/stream/stream.h"
#include "tests/worker/temporary_folder.h"
#include "worker/training/data/data_debian.h"
#include "worker/training/data/data_synthetic.h"
#include "worker/training/data/libsvm.h"

namespace millrace::training {
namespace {

using ::testing::HasSubstr;

std::string paragraph(const std::string& name, const std::string& section, const std::string& description) {
  return "Package: " + name + "\nVersion: 1\nDescription: " + description +
         "\nTag: role::program,\n uitoolkit::x\nSection: " + section + "\n\n";
}

/// A package index of `count` packages, every third of them a library.
std::string index_of(size_t count) {
  std::string text;
  for (size_t at = 0; at < count; ++at) {
    text += paragraph("p" + std::to_string(at), at % 3 == 0 ? "libs" : "net", "Thing number " + std::to_string(at));
  }
  return text;
}

DebianDataOptions options_in(const TemporaryFolder& folder, const std::string& index) {
  return {.input = folder.write("index", index),
          .train_path = folder / "a.svm.gz",
          .held_out_path = folder / "a.test.svm.gz",
          .dimension = 1 << 16,
          .progress = {}};
}

TEST(DebianData, EveryPackageIsInOneOfTheFilesWithItsLabel) {
  const TemporaryFolder folder;
  const auto options = options_in(folder, index_of(600));
  const auto summary = make_debian_data(options);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->packages, 600U);
  EXPECT_EQ(summary->libraries, 200U);
  EXPECT_EQ(summary->train_rows + summary->held_out_rows, 600U);
  EXPECT_NEAR(static_cast<double>(summary->held_out_rows), 60, 30);
  size_t libraries = 0;
  for (const std::string& path : {options.train_path, options.held_out_path}) {
    const auto data = read_libsvm(path, {.dimension = options.dimension});
    ASSERT_TRUE(data) << data.error().message;
    for (size_t row = 0; row < data->rows(); ++row) {
      libraries += data->labels[row] > 0 ? 1 : 0;
      double squares = 0;
      for (const float value : data->row(row).values)
        squares += static_cast<double>(value) * static_cast<double>(value);
      EXPECT_NEAR(squares, 1, 1e-5);
    }
  }
  EXPECT_EQ(libraries, 200U);
}

TEST(DebianData, ThePlaceOfAPackageDependsOnItsNameAlone) {
  const TemporaryFolder folder;
  ASSERT_TRUE(make_debian_data(options_in(folder, index_of(300))));
  // The first half only: its held-out rows are a prefix of the earlier ones.
  auto half = options_in(folder, index_of(150));
  half.held_out_path = folder / "half.test.svm";
  ASSERT_TRUE(make_debian_data(half));
  const auto all = read_libsvm(folder / "a.test.svm.gz", {});
  const auto first = read_libsvm(folder / "half.test.svm", {});
  ASSERT_TRUE(all && first);
  ASSERT_GT(all->rows(), first->rows());
  for (size_t row = 0; row < first->rows(); ++row) {
    EXPECT_THAT(first->row(row).indices, ::testing::ElementsAreArray(all->row(row).indices));
  }
}

TEST(DebianData, PackageWithoutSectionOrDescriptionOrRepeated_Omitted) {
  const TemporaryFolder folder;
  std::string index = index_of(60);
  index += "Package: bare\n\nPackage: nosection\nDescription: words here\n\n" +
           paragraph("p1", "libs", "another version of it");
  EXPECT_EQ(make_debian_data(options_in(folder, index))->packages, 60U);
}

TEST(DebianData, AFileThatIsNoIndexIsRefusedAndOldFilesStay) {
  const TemporaryFolder folder;
  folder.write("a.svm.gz", "old");
  const auto summary = make_debian_data(options_in(folder, "root:x:0:0:root\n"));
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code, ErrorCode::kMalformed);
  EXPECT_EQ(folder.read("a.svm.gz"), "old");
  auto absent = options_in(folder, "");
  absent.input = folder / "absent";
  EXPECT_EQ(make_debian_data(absent).error().code, ErrorCode::kIo);
}

TEST(PackageParagraph, KeepsTheLongDescriptionAndNotOtherFieldsContinuations) {
  PackageParagraph package;
  std::string field;
  for (const char* line :
       {"Package: a", "Tag: x,", " y", "Description-en: short", " long text", " .", " more", "Section: contrib/libs"}) {
    EXPECT_FALSE(read_paragraph_line(line, package, field));
  }
  EXPECT_TRUE(read_paragraph_line("", package, field));
  EXPECT_EQ(package.name, "a");
  EXPECT_EQ(package.section, "contrib/libs");
  EXPECT_EQ(package.description, "short long text\n more");
}

TEST(LibrarySection, IsLibsLibdevelAndOldlibsInAnyArea) {
  for (const char* section : {"libs", "libdevel", "oldlibs", "contrib/libs", "non-free/libdevel"})
    EXPECT_TRUE(is_library_section(section));
  for (const char* section : {"", "net", "glibs", "libs/net", "python"})
    EXPECT_FALSE(is_library_section(section)) << section;
}

TEST(TextFeatures, AreTheDistinctGramsOfTheNormalizedText) {
  constexpr uint64_t kDimension = uint64_t{1} << 32;
  IndexBuffer indices;
  Buffer<float> values;
  text_features("Ab  c", kDimension, indices, values);
  // " ab c " has 4 grams of 3, 3 of 4 and 2 of 5 characters, all distinct.
  EXPECT_EQ(indices.size(), 9U);
  for (const float value : values) EXPECT_FLOAT_EQ(value, 1 / 3.0F);
  IndexBuffer again;
  text_features(" aB\tC\n", kDimension, again, values);
  EXPECT_THAT(again, ::testing::ElementsAreArray(indices));
  text_features("aaaaaaaa", kDimension, again, values);
  // " aaaaaaaa ": at each length one gram starts with the blank, one ends with it, and all others are the same.
  EXPECT_EQ(again.size(), 9U);
  text_features("", kDimension, again, values);
  EXPECT_TRUE(again.empty());
}

TEST(SyntheticRows, HaveTheShapesDimensionAndNonZerosARow) {
  for (const SyntheticShape& shape : {kUrlShape, kWebspamShape}) {
    SyntheticRows rows(shape, 1);
    IndexBuffer indices;
    Buffer<float> values;
    double count = 0;
    int positive = 0;
    constexpr int kRows = 200;
    for (int row = 0; row < kRows; ++row) {
      positive += rows.next(indices, values) > 0 ? 1 : 0;
      count += static_cast<double>(indices.size());
      const StreamView view{shape.dimension, false, indices, values};
      ASSERT_TRUE(validate(view)) << "indices increase strictly, below the dimension";
    }
    // The mean of 200 rows: five times its standard error.
    EXPECT_NEAR(count / kRows / shape.nonzeros_mean, 1, 5 * shape.nonzeros_spread / std::sqrt(200.0)) << shape.name;
    EXPECT_NEAR(positive / double{kRows}, 0.5, 0.225) << shape.name;
  }
}

/// Returns the features' probabilities by the definition, one by one; c gives a row its number of features in
/// expectation.
std::vector<double> slow_probabilities(const SyntheticShape& shape) {
  std::vector<double> weights(shape.support), probabilities(shape.support);
  for (uint64_t rank = 1; rank <= shape.support; ++rank) {
    weights[rank - 1] = std::pow(static_cast<double>(rank), -shape.popularity_exponent);
  }
  double least = 1e-6, most = 1e12;
  while (most > least * (1 + 1e-6)) {
    const double c = std::sqrt(least * most);
    double sum = 0;
    for (size_t rank = 0; rank < weights.size(); ++rank) sum += probabilities[rank] = 1 - std::exp(-c * weights[rank]);
    (sum < shape.nonzeros_mean ? least : most) = c;
  }
  return probabilities;
}

// Supports below and above the features that are drawn one by one.
TEST(SyntheticRows, OccurAsOftenAsTheirPopularitySaysAndOnlyInTheSupport) {
  constexpr uint64_t kScatterOfRanks = 2'654'435'761;
  for (const SyntheticShape& shape :
       {SyntheticShape{"small", 1'000'003, 2'000, 120, 0, 1.7}, SyntheticShape{"large", 1'000'003, 60'000, 900, 0, 1.4},
        SyntheticShape{"flat", 1'000'003, 30'000, 200, 0, 0.9}}) {
    SCOPED_TRACE(shape.name);
    const std::vector<double> probabilities = slow_probabilities(shape);
    constexpr uint64_t kOutside = ~uint64_t{0};
    std::vector<uint64_t> rank_of(shape.dimension, kOutside);
    for (uint64_t rank = 0; rank < shape.support; ++rank) {
      uint64_t& at = rank_of[rank * kScatterOfRanks % shape.dimension];
      ASSERT_EQ(at, kOutside);
      at = rank;
    }
    SyntheticRows rows(shape, 5);
    constexpr int kRows = 400;
    std::vector<double> found(shape.support);
    double entries = 0;
    IndexBuffer indices;
    Buffer<float> values;
    for (int row = 0; row < kRows; ++row) {
      rows.next(indices, values);
      entries += static_cast<double>(indices.size());
      for (const uint32_t index : indices) {
        ASSERT_NE(rank_of[index], kOutside) << index << " is not of the support";
        ++found[rank_of[index]];
      }
    }
    EXPECT_NEAR(entries / kRows / shape.nonzeros_mean, 1, 0.02);
    // Octaves of ranks, and the features that occurred at all, which is what decides how a sum fills in.
    for (uint64_t begin = 0, end = 1; begin < shape.support; begin = end, end = std::min(2 * end, shape.support)) {
      double expected = 0, variance = 0, seen = 0;
      for (uint64_t rank = begin; rank < end; ++rank) {
        expected += kRows * probabilities[rank];
        variance += kRows * probabilities[rank] * (1 - probabilities[rank]);
        seen += found[rank];
      }
      EXPECT_NEAR(seen, expected, 5 * std::sqrt(variance) + 0.01 * expected) << begin;
    }
    double distinct = 0, expected = 0;
    for (uint64_t rank = 0; rank < shape.support; ++rank) {
      distinct += found[rank] > 0 ? 1 : 0;
      expected += 1 - std::pow(1 - probabilities[rank], kRows);
    }
    EXPECT_NEAR(distinct / expected, 1, 0.03);
  }
}

TEST(SyntheticRows, ThoseLikeWebspamFillInAsTheirShapeSays) {
  SyntheticRows rows(kWebspamShape, 1);
  std::vector<bool> occurs(kWebspamShape.dimension);
  IndexBuffer indices;
  Buffer<float> values;
  constexpr int kRows = 100;
  for (int row = 0; row < kRows; ++row) {
    rows.next(indices, values);
    for (const uint32_t index : indices) occurs[index] = true;
  }
  const auto features = std::count(occurs.begin(), occurs.end(), true);
  double expected = 0;  // of rows of one length, which have hardly more in common
  for (const double probability : slow_probabilities(kWebspamShape)) expected += 1 - std::pow(1 - probability, kRows);
  EXPECT_NEAR(static_cast<double>(features) / expected, 1, 0.1);
}

TEST(SyntheticRows, FeaturesAreSkewedAndAModelCanLearnThem) {
  SyntheticRows rows(kUrlShape, 2);
  std::map<uint32_t, int> rows_of;
  IndexBuffer indices;
  Buffer<float> values;
  for (int row = 0; row < 300; ++row) {
    rows.next(indices, values);
    for (const uint32_t index : indices) ++rows_of[index];
  }
  int common = 0;
  int once = 0;
  for (const auto& [index, count] : rows_of) {
    common += count >= 100 ? 1 : 0;
    once += count == 1 ? 1 : 0;
  }
  EXPECT_GE(common, 3) << "some features are in a third of the rows";
  EXPECT_GE(once, static_cast<int>(rows_of.size()) / 3) << "and a long tail occurs once";
}

TEST(SyntheticData, EqualSeedsGiveEqualFilesAndOthersDoNot) {
  const TemporaryFolder folder;
  const auto make = [&folder](const std::string& name, uint64_t seed) {
    SyntheticDataOptions options{
        .rows = 60, .seed = seed, .train_path = folder / name, .held_out_path = folder / (name + ".test")};
    const auto summary = make_synthetic_data(options);
    EXPECT_TRUE(summary);
    EXPECT_EQ(summary->train_rows + summary->held_out_rows, 60U);
    EXPECT_GT(summary->features, 0U);
    EXPECT_LE(summary->features, summary->entries);
    return folder.read(name);
  };
  const std::string first = make("a", 1);
  EXPECT_EQ(first, make("b", 1));
  EXPECT_NE(first, make("c", 2));
}

}  // namespace
}  // namespace millrace::training
