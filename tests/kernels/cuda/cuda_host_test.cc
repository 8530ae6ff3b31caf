#include "tests/kernels/cuda/host_under_test.h"
// The suites test the queues of the first header.
#include "tests/kernels/cuda/accumulator_suite.h"
#include "tests/kernels/cuda/arrays_suite.h"
#include "tests/kernels/cuda/draw_suite.h"
#include "tests/kernels/cuda/polynomial_suite.h"
#include "tests/kernels/cuda/quantize_suite.h"
#include "tests/kernels/cuda/select_suite.h"
#include "tests/kernels/cuda/threshold_suite.h"

namespace millrace::cuda {
namespace {

TEST(CudaPolynomialShortage, AFitWithoutMemoryIsRefused) {
  std::vector<float> points(1000);
  for (size_t i = 0; i < points.size(); ++i) points[i] = 1.0F / static_cast<float>(i + 1);
  const size_t pieces = segment_curve(points, piece_count(points)).size();
  ASSERT_GT(pieces, 1u);
  bool fitted = false;
  for (uint64_t left = 0; !fitted; ++left) {
    ASSERT_LT(left, 100u);
    HostQueue queue;
    const Array<HostQueue> array(queue, points);
    queue.let_allocations_fail_after(left);
    const auto found = fit_pieces(queue, array.data, points.size());
    fitted = found.has_value();
    if (fitted) {
      EXPECT_EQ(found->size(), pieces);
      EXPECT_GT(left, 2u) << "cuts need memory, too";
    } else {
      EXPECT_EQ(found.error().code, ErrorCode::kLimitExceeded);
      EXPECT_TRUE(queue.finish().has_value()) << "it is reported once";
    }
  }
}

TEST(CudaAccumulatorShortage, APartHasItsSmallerForm) {
  std::vector<float> few(1000, 0.0F);
  few[3] = 2;
  few[998] = -1;
  const std::vector<float> many(1000, 1.0F);
  for (uint64_t left = 0; left < 8; ++left) {
    for (const std::vector<float>& values : {few, many}) {
      HostQueue queue;
      Accumulator<HostQueue> sum(queue, values.size());
      ASSERT_TRUE(sum.write(0, values).has_value());
      queue.let_allocations_fail_after(left);
      const auto copied = sum.read_part(0, values.size());
      ASSERT_TRUE(copied.has_value()) << copied.error().message;
      EXPECT_EQ(copied->dense, values == many) << left;
      const Stream found = to_dense(copied->view());
      EXPECT_TRUE(std::ranges::equal(found.values, values)) << left;
    }
  }
}

}  // namespace
}  // namespace millrace::cuda
