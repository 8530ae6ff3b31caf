#include <gtest/gtest.h>

#include "tests/support/libsvm_text.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/model/learning_curve.h"

namespace millrace::training {
namespace {

Dataset held_out() {
  auto data =
      millrace::testing::parse_libsvm("+1 2:1 7:0.5\n-1 3:2\n+1 3:0.25 9:1\n-1 7:4\n", "held-out", {.dimension = 12});
  EXPECT_TRUE(data);
  return std::move(*data);
}

LinearModel trained() {
  LinearModel model(Loss::kLogistic, 12);
  for (size_t at = 0; at < model.values().size(); ++at) model.values()[at] = static_cast<float>(at) * 0.25F - 1;
  model.set_scale(0.5F);
  return model;
}

TEST(LearningCurve, HasTheLossOfTheModelAsItWasWhenThePointWasTaken) {
  const Dataset rows = held_out();
  LinearModel model = trained();
  LearningCurve curve(rows);
  curve.take(LinearModel(Loss::kLogistic, 12), {});
  curve.take(model, {.round = 5, .seconds = 2, .bytes_up = 7, .bytes_down = 8});
  const double then = evaluate(model, rows).log_loss;
  for (float& value : model.values()) value = 100;
  const std::vector<CurvePoint> points = curve.evaluated();
  ASSERT_EQ(points.size(), 2);
  EXPECT_EQ(points[0].log_loss, evaluate(LinearModel(Loss::kLogistic, 12), rows).log_loss);
  EXPECT_EQ(points[1].log_loss, then);
  EXPECT_EQ(points[1].round, 5);
  EXPECT_EQ(points[1].seconds, 2);
  EXPECT_EQ(points[1].bytes_up, 7);
  EXPECT_EQ(points[1].bytes_down, 8);
}

}  // namespace
}  // namespace millrace::training
