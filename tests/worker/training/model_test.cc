#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "tests/support/format_versions.h"
#include "tests/worker/temporary_folder.h"
#include "worker/program/memory_room.h"
#include "worker/training/model/descent.h"
#include "worker/training/model/linear_model.h"
#include "worker/training/model/model_file.h"

namespace millrace::training {

using program::check_model_fits;

namespace {

using ::testing::HasSubstr;

constexpr uint64_t kModelDimension = 12;

Dataset random_data(uint64_t seed, size_t rows) {
  RandomSequence random(RandomKey::from(seed));
  Dataset data;
  data.dimension = kModelDimension;
  for (size_t row = 0; row < rows; ++row) {
    for (uint32_t index = 0; index < kModelDimension; ++index) {
      if (random.next_below(2) == 0) continue;
      data.indices.push_back(index);
      data.values.push_back(static_cast<float>(random.next_normal()));
    }
    data.row_begin.push_back(data.indices.size());
    data.labels.push_back(random.next_below(2) == 0 ? int8_t{-1} : int8_t{1});
  }
  return data;
}

LinearModel random_model(Loss loss, uint64_t seed, float spread) {
  LinearModel model(loss, kModelDimension);
  RandomSequence random(RandomKey::from(seed));
  for (float& value : model.values()) value = spread * static_cast<float>(random.next_normal());
  return model;
}

std::vector<uint32_t> all_rows(const Dataset& data) {
  std::vector<uint32_t> rows(data.rows());
  std::iota(rows.begin(), rows.end(), 0U);
  return rows;
}

/// The definition, in long double: mean loss of a dense parameter vector, the intercept last.
long double model_mean_loss(Loss loss, const std::vector<long double>& parameters, const Dataset& data) {
  long double sum = 0;
  for (size_t at = 0; at < data.rows(); ++at) {
    const RowView row = data.row(at);
    long double margin = parameters.back();
    for (size_t entry = 0; entry < row.indices.size(); ++entry)
      margin += parameters[row.indices[entry]] * row.values[entry];
    const long double short_by = std::max(0.0L, 1 - row.label * margin);
    sum += loss == Loss::kLogistic ? std::log1p(std::exp(-row.label * margin))
           : loss == Loss::kHinge  ? short_by
                                   : short_by * short_by;
  }
  return sum / static_cast<long double>(data.rows());
}

TEST(BatchGradient, AgreesWithFiniteDifferencesOfTheLoss) {
  for (const Loss loss : {Loss::kLogistic, Loss::kHinge, Loss::kSquaredHinge}) {
    const Dataset data = random_data(3, 50);
    LinearModel model = random_model(loss, 4, 0.5F);
    model.set_scale(0.75F);
    std::vector<long double> parameters;
    for (uint64_t index = 0; index < model.tensor_dimension(); ++index) parameters.push_back(model.weight(index));
    const Stream gradient = batch_gradient(model, data, all_rows(data)).gradient;
    const Stream dense = to_dense(gradient.view());
    for (uint64_t index = 0; index < model.tensor_dimension(); ++index) {
      constexpr long double kStep = 1e-6L;
      std::vector<long double> up = parameters;
      std::vector<long double> down = parameters;
      up[index] += kStep;
      down[index] -= kStep;
      const auto slope =
          static_cast<double>((model_mean_loss(loss, up, data) - model_mean_loss(loss, down, data)) / (2 * kStep));
      EXPECT_NEAR(static_cast<double>(dense.values[index]), slope, 1e-5) << loss_name(loss) << ' ' << index;
    }
  }
}

TEST(Loss, NamesAndTheMostThatItIsCurved) {
  for (const Loss loss : {Loss::kLogistic, Loss::kHinge, Loss::kSquaredHinge}) {
    EXPECT_EQ(*loss_by_name(loss_name(loss)), loss);
    if (loss == Loss::kHinge) continue;
    // Reached, and nowhere more.
    double most = 0;
    for (double margin = -4; margin < 4; margin += 0.01) {
      most = std::max(most, (loss_slope(loss, 1, margin + 1e-5) - loss_slope(loss, 1, margin - 1e-5)) / 2e-5);
    }
    EXPECT_NEAR(most, loss_curvature_max(loss), 1e-4) << loss_name(loss);
  }
  EXPECT_FALSE(loss_by_name("svm2").has_value());
}

TEST(BatchGradient, HoldsTouchedFeaturesAndTheInterceptOnly) {
  const Dataset data = random_data(5, 2);
  const std::vector<uint32_t> first = {0};
  const Stream gradient = batch_gradient(LinearModel(Loss::kLogistic, kModelDimension), data, first).gradient;
  std::vector<uint32_t> touched(data.row(0).indices.begin(), data.row(0).indices.end());
  touched.push_back(kModelDimension);
  EXPECT_THAT(gradient.indices, ::testing::ElementsAreArray(touched));
}

TEST(BatchGradient, OfNoRowsIsEmpty) {
  EXPECT_EQ(batch_gradient(LinearModel(Loss::kHinge, kModelDimension), random_data(5, 2), {}).gradient.count(), 0U);
}

TEST(BatchGradient, StaysFiniteAtExtremeMargins) {
  const Dataset data = random_data(6, 20);
  for (const float spread : {1e4F, 1e30F}) {
    const Stream gradient = batch_gradient(random_model(Loss::kLogistic, 8, spread), data, all_rows(data)).gradient;
    EXPECT_TRUE(all_finite(gradient.values));
  }
}

Descent descent_of(double rate, double l2, uint64_t steps_per_epoch = 100, uint32_t epochs = 5) {
  return Descent({.schedule = {.form = RateForm::kInverse, .rate = rate, .epochs = 2},
                  .l2 = l2,
                  .steps_per_epoch = steps_per_epoch,
                  .epochs = epochs,
                  .intercept = kModelDimension});
}

TEST(Descent, IsOneStepOfL2OnWeightsAndLeavesTheIntercept) {
  LinearModel model = random_model(Loss::kLogistic, 9, 1);
  const std::vector<float> before(model.values().begin(), model.values().end());
  const Descent descent = descent_of(0.5, 0.2);
  double factor = 1;
  // Far enough that the scale goes into the values many times over.
  for (uint64_t step = 0; step < 700; ++step) {
    descent.before_step(step, 0, model.values());
    model.set_scale(descent.scale_after(step + 1));
    factor *= 1 - descent.rate(step) * 0.2;
    if (step % 50 != 49) continue;
    for (uint64_t index = 0; index < kModelDimension; ++index) {
      const double want = static_cast<double>(before[index]) * factor;
      EXPECT_NEAR(model.weight(index), want, 1e-4 * std::abs(want)) << step;
    }
    EXPECT_NEAR(model.weight(kModelDimension), static_cast<double>(before[kModelDimension]), 1e-4);
    EXPECT_GT(model.scale(), 0x1p-41F);
  }
  EXPECT_TRUE(descent.folds_before(700));
}

TEST(Descent, SumsCountAsMuchAsTheRateSays) {
  const Descent descent = descent_of(0.5, 0.01, 10, 3);
  std::vector<float> values(kModelDimension + 1, 0.0F);
  for (const auto& [step, rate] :
       std::vector<std::pair<uint64_t, double>>{{0, 0.5}, {9, 0.5}, {10, 0.5 / 1.5}, {29, 0.25}, {50, 0.25}}) {
    EXPECT_DOUBLE_EQ(descent.rate(step), rate) << step;
    const float factor = descent.before_step(step, 0, values);
    EXPECT_NEAR(static_cast<double>(factor * descent.scale_after(step + 1)), -rate, 1e-6) << step;
  }
  EXPECT_EQ(descent_of(0.5, 0, 10, 3).before_step(10, 0, values), static_cast<float>(-0.5 / 1.5));
}

TEST(Descent, PartsOneAfterTheOtherAreTheWhole) {
  const Descent descent = descent_of(0.5, 1.9, 10, 3);
  const LinearModel model = random_model(Loss::kLogistic, 9, 1);
  std::vector<float> whole(model.values().begin(), model.values().end());
  std::vector<float> parts = whole;
  for (uint64_t step = 0; step < 60; ++step) {
    const float factor = descent.before_step(step, 0, whole);
    EXPECT_EQ(descent.before_step(step, 0, std::span(parts).first(2)), factor);
    EXPECT_EQ(descent.before_step(step, 2, std::span(parts).subspan(2)), factor);
    EXPECT_EQ(parts, whole);
  }
}

TEST(Descent, TheStrongestL2StaysFinite) {
  const Descent descent = descent_of(1, 0.999999, 1'000, 100);
  std::vector<float> values(kModelDimension + 1, 1.0F);
  for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{5'000}, uint64_t{99'999}}) {
    EXPECT_TRUE(std::isfinite(descent.before_step(step, 0, values)));
    EXPECT_GT(descent.scale_after(step), 0x1p-41F);
    EXPECT_LE(descent.scale_after(step), 1.0F);
  }
}

/// Computes the area by the definition: precision and recall counted from the start at every distinct threshold.
double average_precision_oracle(const std::vector<double>& scores, const std::vector<int8_t>& labels) {
  std::vector<double> thresholds = scores;
  std::sort(thresholds.begin(), thresholds.end(), std::greater<>());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  const auto positives = static_cast<double>(std::count(labels.begin(), labels.end(), 1));
  double area = 0;
  double recall_before = 0;
  for (const double threshold : thresholds) {
    double taken = 0;
    double right = 0;
    for (size_t at = 0; at < scores.size(); ++at) {
      if (scores[at] < threshold) continue;
      ++taken;
      right += labels[at] == 1 ? 1 : 0;
    }
    area += (right / positives - recall_before) * (right / taken);
    recall_before = right / positives;
  }
  return area;
}

TEST(AveragePrecision, AgreesWithTheDefinitionAlsoWhereScoresTie) {
  RandomSequence random(RandomKey::from(11));
  for (const uint64_t distinct : {1U, 2U, 5U, 1000U}) {
    for (const size_t size : {1U, 2U, 7U, 200U}) {
      std::vector<double> scores;
      std::vector<int8_t> labels;
      for (size_t at = 0; at < size; ++at) {
        scores.push_back(static_cast<double>(random.next_below(distinct)) / 3);
        labels.push_back(at == 0 || random.next_below(4) == 0 ? int8_t{1} : int8_t{-1});
      }
      EXPECT_NEAR(average_precision(scores, labels), average_precision_oracle(scores, labels), 1e-12)
          << distinct << ' ' << size;
    }
  }
}

TEST(AveragePrecision, AveragePrecision_OneIfPerfectShareIfTiedZeroIfNoPositives) {
  EXPECT_EQ(average_precision(std::vector<double>{3, 2, 1}, std::vector<int8_t>{1, 1, -1}), 1);
  EXPECT_EQ(average_precision(std::vector<double>{1, 1, 1, 1}, std::vector<int8_t>{1, -1, -1, -1}), 0.25);
  EXPECT_EQ(average_precision(std::vector<double>{1, 2}, std::vector<int8_t>{-1, -1}), 0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(average_precision(std::vector<double>{1, nan, 2}, std::vector<int8_t>{1, -1, 1})));
}

TEST(Evaluate, CountsRowsOnTheRightSideAndBothLosses) {
  const Dataset data = random_data(12, 40);
  const LinearModel model = random_model(Loss::kHinge, 13, 1);
  std::vector<long double> parameters;
  for (uint64_t index = 0; index < model.tensor_dimension(); ++index) parameters.push_back(model.weight(index));
  const Evaluation result = evaluate(model, data);
  EXPECT_NEAR(result.mean_loss, static_cast<double>(model_mean_loss(Loss::kHinge, parameters, data)), 1e-9);
  EXPECT_NEAR(result.log_loss, static_cast<double>(model_mean_loss(Loss::kLogistic, parameters, data)), 1e-9);
  double right = 0;
  for (size_t at = 0; at < data.rows(); ++at)
    right += (model.margin(data.row(at)) > 0) == (data.labels[at] > 0) ? 1 : 0;
  EXPECT_DOUBLE_EQ(result.accuracy, right / 40);
}

void expect_equal(const LinearModel& a, const LinearModel& b) {
  ASSERT_EQ(a.dimension(), b.dimension());
  EXPECT_EQ(a.loss(), b.loss());
  for (uint64_t index = 0; index <= a.dimension(); ++index) {
    EXPECT_EQ(static_cast<float>(a.weight(index)), static_cast<float>(b.weight(index))) << index;
  }
}

TEST(ModelFile, RoundTripsDenseSparseAndScaled) {
  LinearModel scaled = random_model(Loss::kHinge, 20, 1);
  scaled.set_scale(0.5F);
  expect_equal(scaled, *decode_model(encode_model(scaled)));
  LinearModel sparse(Loss::kLogistic, 1'000);
  sparse.values()[7] = -2;
  sparse.values()[1'000] = 3;
  const ByteBuffer bytes = encode_model(sparse);
  EXPECT_LT(bytes.size(), 100U);
  expect_equal(sparse, *decode_model(bytes));
}

TEST(ModelFile, ItsBytesAreThoseOfItsVersion) {
  millrace::testing::Fingerprint now;
  ByteBuffer bytes;
  for (const uint64_t dimension : {3U, 100U}) {  // a dense one and a sparse one
    LinearModel model(Loss::kHinge, dimension);
    model.values()[1] = 1;
    model.values()[2] = -0.25F;
    model.set_trained_on({LabelPair::kOneTwo, IndexBase::kZero});
    bytes = encode_model(model);
    now.add(bytes);
  }
  millrace::testing::expect_format_version("model_file", bytes[8], now,
                                           "kVersion in worker/training/model/model_file.cc");
}

TEST(ModelFile, EveryTruncationAndEveryFlippedByteIsRefused) {
  for (const uint64_t dimension : {3U, 100U}) {
    LinearModel model(Loss::kLogistic, dimension);
    model.values()[1] = 1;
    const ByteBuffer whole = encode_model(model);
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(decode_model(ByteSpan(whole).first(size))) << size;
    }
    for (size_t at = 0; at < whole.size(); ++at) {
      ByteBuffer damaged = whole;
      damaged[at] ^= 0x10;
      EXPECT_FALSE(decode_model(damaged)) << at;
    }
  }
}

/// Returns a model file with a right checksum and arbitrary contents.
ByteBuffer sealed(ByteBuffer bytes) {
  bytes.resize(bytes.size() - 8);
  ByteWriter(bytes).put(hash64(ByteSpan(bytes)));
  return bytes;
}

TEST(ModelFile, AHeadThatLiesIsRefusedUnderARightChecksum) {
  LinearModel model(Loss::kLogistic, 1'000);
  model.values()[1] = 1;
  model.values()[2] = 1;
  const ByteBuffer whole = encode_model(model);
  const auto with = [&whole](size_t at, auto value) {
    ByteBuffer bytes = whole;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return sealed(bytes);
  };
  ASSERT_TRUE(decode_model(sealed(whole)));
  EXPECT_EQ(decode_model(with(8, uint32_t{3})).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(decode_model(with(8, uint32_t{0})).error().code, ErrorCode::kUnsupported);
  const std::vector<ByteBuffer> lies = {with(12, uint32_t{9}),     with(16, uint64_t{0}),
                                        with(16, ~uint64_t{0}),    with(24, uint32_t{2}),
                                        with(28, uint32_t{4}),     with(32, ~uint64_t{0}),
                                        with(32, uint64_t{1}),     with(40, uint32_t{2}),
                                        with(44, uint32_t{1'001}), with(48, std::numeric_limits<float>::quiet_NaN())};
  for (size_t at = 0; at < lies.size(); ++at) {
    const auto decoded = decode_model(lies[at]);
    ASSERT_FALSE(decoded) << at;
    EXPECT_EQ(decoded.error().code, ErrorCode::kMalformed);
  }
}

TEST(ModelFile, SaysHowTheRowsWereWrittenThatItWasTrainedOn) {
  LinearModel model = random_model(Loss::kHinge, 20, 1);
  EXPECT_EQ(decode_model(encode_model(model))->trained_on(), std::nullopt);
  for (const LabelPair pair : {LabelPair::kZeroOne, LabelPair::kMinusPlusOne, LabelPair::kOneTwo}) {
    for (const IndexBase base : {IndexBase::kOne, IndexBase::kZero}) {
      model.set_trained_on({pair, base});
      const auto decoded = decode_model(encode_model(model));
      ASSERT_TRUE(decoded);
      EXPECT_EQ(decoded->trained_on(), (TrainedOn{pair, base}));
    }
  }
}

TEST(ModelFile, OfTheFirstVersionIsReadAndDoesNotSayIt) {
  const LinearModel model = random_model(Loss::kHinge, 20, 1);
  ByteBuffer bytes = encode_model(model);
  bytes[8] = 1;
  const auto decoded = decode_model(sealed(bytes));
  ASSERT_TRUE(decoded) << decoded.error().message;
  expect_equal(model, *decoded);
  EXPECT_EQ(decoded->trained_on(), std::nullopt);
  bytes[28] = 1;
  EXPECT_EQ(decode_model(sealed(bytes)).error().code, ErrorCode::kMalformed) << "it had no such field";
}

TEST(MemoryRoom, WhatDoesNotFitIsRefusedWithTheBytesThatItTakes) {
  EXPECT_TRUE(check_model_fits("a", 24, 100));
  EXPECT_FALSE(check_model_fits("a", 25, 100));
  const Status refused = check_model_fits("a.svm:7: its feature 4294967294 is the largest", 4'294'967'294, 1'000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("a.svm:7: its feature 4294967294 is the largest"));
  EXPECT_THAT(refused.error().message, HasSubstr("17179869180 bytes (17.18 GB), and 0.00 GB are free"));
  EXPECT_THAT(refused.error().message, HasSubstr("raise the limit on memory"));
  const Error later = program::out_of_memory_in_training("--dimension 25", 25);
  EXPECT_EQ(later.code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(later.message,
              HasSubstr("--dimension 25: training ran out of memory; the model's weights alone take 104 "));
  EXPECT_THAT(later.message, HasSubstr("raise the limit on memory"));
  EXPECT_GT(program::memory_available_bytes(), uint64_t{1} << 20);
  EXPECT_LT(program::memory_available_bytes(), uint64_t{1} << 60);
}

/// A tree of control groups as the kernel shows it.
struct GroupTree {
  TemporaryFolder root;
  void group(const std::string& path, const std::string& most, const std::string& used, const std::string& stat) const {
    std::filesystem::create_directories(root / path);
    root.write(path + "/memory.max", most + "\n");
    root.write(path + "/memory.current", used + "\n");
    root.write(path + "/memory.stat", stat);
  }
  uint64_t left(const std::string& path) const { return program::bytes_left_in_groups(root.path().string(), path); }
};

TEST(MemoryRoom, AGroupsCacheOfFilesCountsAsFree) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  const GroupTree tree;
  EXPECT_EQ(tree.left(""), kNone) << "no group of version 2";
  EXPECT_EQ(tree.left("/"), kNone) << "the outermost group has no such files";
  tree.group("a", "1000", "900", "anon 150\nfile 700\ninactive_file 300\nactive_file 400\nslab_reclaimable 20\n");
  EXPECT_EQ(tree.left("/a"), 800u);
  tree.group("a/b", "max", "850", "inactive_file 0\nactive_file 0\n");
  EXPECT_EQ(tree.left("/a/b"), 800u) << "the group around it limits";
  tree.group("a/c", "500", "450", "inactive_file 10\nactive_file 20\n");
  EXPECT_EQ(tree.left("/a/c"), 80u);
  tree.group("d", "100", "120", "anon 120\n");
  EXPECT_EQ(tree.left("/d"), 0u);
  tree.group("e", "100", "60", "active_file 50\ninactive_file 30\n");
  EXPECT_EQ(tree.left("/e"), 100u) << "the files are read one after the other";
  tree.group("f", "100", "60", "");
  EXPECT_EQ(tree.left("/f"), 40u);
}

TEST(ModelFile, WritingReplacesTheOldFileAndLeavesNoOther) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_model(folder.write("m", "old"), random_model(Loss::kHinge, 21, 1)));
  expect_equal(*read_model(folder / "m"), random_model(Loss::kHinge, 21, 1));
  ASSERT_TRUE(write_model(folder / "m", random_model(Loss::kSquaredHinge, 22, 1)));
  expect_equal(*read_model(folder / "m"), random_model(Loss::kSquaredHinge, 22, 1));
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(ModelFile, ErrorsNameTheFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_model(folder / "absent").error().code, ErrorCode::kIo);
  EXPECT_EQ(read_model(folder.path().string()).error().code, ErrorCode::kIo);
  EXPECT_THAT(read_model(folder.write("m", "hello world")).error().message,
              HasSubstr("it is not a model of `millrace train`"));
  EXPECT_THAT(read_model("/dev/zero").error().message, HasSubstr("it is not a model"))
      << "an endless input is not read to its end";
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder / "");  // where a model is kept that cannot be where it should
  EXPECT_EQ(write_model(folder / "no/such/m", random_model(Loss::kHinge, 1, 1)).error().code, ErrorCode::kIo);
  std::filesystem::current_path(before);
}

TEST(ModelFile, WeightsThatAreNotFiniteAreNotWritten) {
  const TemporaryFolder folder;
  LinearModel model = random_model(Loss::kHinge, 21, 1);
  model.values()[3] = std::numeric_limits<float>::infinity();
  const Status status = write_model(folder.write("m", "old"), model);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kNonFinite);
  EXPECT_THAT(status.error().message, HasSubstr("lower --lr"));
  EXPECT_EQ(folder.read("m"), "old");
}

TEST(ModelFile, OnAFullDiskTheOldFileStaysAndTheModelIsKeptElsewhere) {
  const TemporaryFolder folder;
  const std::string disk = folder / "disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "a file system of 64 KiB needs root";
  folder.write("disk/model", "the old model");
  const LinearModel large = [] {
    LinearModel model(Loss::kLogistic, 100'000);
    std::fill(model.values().begin(), model.values().end(), 1.0F);
    return model;
  }();
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder / "");
  const Status status = write_model(disk + "/model", large);
  const std::string_view words = "; its new contents are in ";
  const std::string sentence = status ? "" : status.error().message;
  const size_t at = sentence.find(words);
  const std::string kept = at == std::string::npos ? "" : sentence.substr(at + words.size());
  const auto model = read_model(kept);
  std::filesystem::current_path(before);
  EXPECT_EQ(folder.read("disk/model"), "the old model");
  const size_t files = static_cast<size_t>(std::distance(std::filesystem::directory_iterator(disk), {}));
  umount(disk.c_str());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("No space left on device; a file that was there before is unchanged"));
  EXPECT_EQ(files, 1U) << "the unfinished file is removed";
  EXPECT_THAT(kept, ::testing::StartsWith("./model.kept-"));
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE(std::ranges::equal(model->values(), large.values()));
}

}  // namespace
}  // namespace millrace::training
