#include "worker/training/train_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "protocol/job/job_spec.h"
#include "tests/support/libsvm_text.h"

namespace millrace::training {
namespace {

using ::testing::HasSubstr;

constexpr const char* kText = "+1 1:1 2:0.5\n-1 3:1\n+1 1:0.8 4:1\n-1 3:0.5 5:1\n";

Dataset dataset(const std::string& text = kText, const LibsvmOptions& options = {}) {
  return millrace::testing::parse_libsvm(text, "t", options).value();
}

/// A refusal as a worker reads it, of a job that a worker with the defaults has begun.
std::string difference(const TrainOptions& options, const Dataset& data = dataset()) {
  protocol::JobSpec here;
  protocol::JobSpec there;
  here.recipe = train_recipe(TrainOptions{}, dataset());
  there.recipe = train_recipe(options, data);
  return protocol::first_difference(here, there);
}

struct Changed {
  const char* says;
  std::function<void(TrainOptions&)> make;
};

TEST(TrainRecipe, TheRecipeNamesEveryOptionThatAffectsTraining) {
  const std::vector<Changed> all = {
      {"recipe: model=lr here, model=svm there", [](TrainOptions& o) { o.loss = Loss::kHinge; }},
      {"recipe: gradient=sparse here, gradient=dense there", [](TrainOptions& o) { o.form = GradientForm::kDense; }},
      {"recipe: optimizer=sgd here, optimizer=svrg there",
       [](TrainOptions& o) { o.optimizer = TrainOptimizer::kSvrg; }},
      {"recipe: snapshot-every=0 here, snapshot-every=5 there", [](TrainOptions& o) { o.snapshot_every = 5; }},
      {"recipe: lr=1 here, lr=0.01 there", [](TrainOptions& o) { o.learning_rate = 0.01; }},
      {"recipe: lr-schedule=constant here, lr-schedule=inverse:2 there",
       [](TrainOptions& o) { o.schedule = {.form = RateForm::kInverse, .epochs = 2}; }},
      {"recipe: l2=0 here, l2=1e-06 there", [](TrainOptions& o) { o.l2 = 1e-6; }},
      {"recipe: batch=64 here, batch=32 there", [](TrainOptions& o) { o.batch_rows = 32; }},
      {"recipe: epochs=3 here, epochs=4 there", [](TrainOptions& o) { o.epochs = 4; }},
      {"recipe: steps=0 here, steps=9 there", [](TrainOptions& o) { o.steps_max = 9; }},
      {"recipe: rounds=0 here, rounds=9 there", [](TrainOptions& o) { o.rounds_max = 9; }},
  };
  for (const Changed& one : all) {
    TrainOptions options;
    one.make(options);
    EXPECT_EQ(difference(options), one.says);
  }
}

TEST(TrainRecipe, NumbersThatDifferInTheLastBitDiffer) {
  TrainOptions options;
  options.learning_rate = std::nextafter(1.0, 2.0);
  EXPECT_THAT(difference(options), HasSubstr("lr=1 here, lr=1.0000000000000002 there"));
}

TEST(TrainRecipe, TheRecipeOmitsPerWorkerOptions) {
  TrainOptions options;
  options.me.worker = 1;
  options.compute_ms = 20;
  options.curve_every = 10;
  options.state_path = "state";
  options.me.link_rate = 1e9;
  EXPECT_EQ(difference(options), "no difference");
}

TEST(TrainRecipe, TheRecipeReportsDifferentRows) {
  EXPECT_THAT(difference({}, dataset(std::string(kText) + "+1 1:1\n")), HasSubstr("recipe: rows=4 here, rows=5 there"));
  EXPECT_THAT(difference({}, dataset("+1 1:1 2:0.5\n-1 3:1\n+1 1:0.8 4:1\n-1 3:0.5 5:2\n")),
              HasSubstr("recipe: data="));
}

TEST(ContentHash, IsOfLabelsIndicesValuesAndOrder) {
  std::set<uint64_t> hashes;
  for (const char* text :
       {"+1 1:1 2:2\n-1 3:1\n", "-1 1:1 2:2\n+1 3:1\n", "+1 1:1 2:2\n-1 4:1\n", "+1 1:1 2:3\n-1 3:1\n",
        "-1 3:1\n+1 1:1 2:2\n", "+1 1:1\n-1 2:2 3:1\n", "+1 1:1 2:2\n-1 3:1\n-1 3:1\n"}) {
    EXPECT_TRUE(hashes.insert(dataset(text).content_hash).second) << text;
  }
}

TEST(ContentHash, IsTheSameForEveryWayToWriteTheSameRows) {
  const uint64_t hash = dataset("+1 1:1 2:2\n-1 3:1\n").content_hash;
  for (const char* text : {"+1 1:1 2:2\r\n-1 3:1", "1  1:1.0\t2:2e0 # comment\n\n-1 3:1\n",
                           "+1 1:1 2:2 3:0\n-1 1:0 3:1\n", "\xEF\xBB\xBF+1 1:1 2:2\n-1 3:1\n"}) {
    EXPECT_EQ(dataset(text).content_hash, hash) << text;
  }
}

TEST(ContentHash, IsOfTheFileWhicheverPartAWorkerKeeps) {
  std::set<uint64_t> hashes;
  for (uint32_t part = 0; part < 2; ++part) hashes.insert(dataset(kText, {.part = part, .parts = 2}).content_hash);
  EXPECT_EQ(hashes, std::set<uint64_t>{dataset().content_hash});
}

}  // namespace
}  // namespace millrace::training
