#include <gtest/gtest.h>

#include <utility>

#include "tests/worker/toys/toy_cluster.h"
#include "worker/session/update_assembler.h"

namespace millrace::worker {
namespace {

using testing::toy_spec;

class UpdateShelfTest : public ::testing::Test {
 protected:
  void plan(const std::vector<uint64_t>& dimensions, uint32_t shards) {
    spec_ = toy_spec(1, dimensions);
    spec_.parts_per_shard = 2;
    layout_ = protocol::plan_layout(spec_, shards);
    shelf_ = std::make_unique<UpdateShelf>(spec_, layout_);
  }
  /// A part's update whose entries all lie at the given local indices, each with its bucket index as value.
  DeliveredUpdate part_update(uint32_t part, uint64_t step, const std::vector<uint32_t>& local) const {
    DeliveredUpdate update;
    update.bucket = layout_.parts[part].bucket;
    update.part = part;
    update.step = step;
    update.push = step;
    update.begin = layout_.parts[part].begin;
    update.contributors = 3;
    update.denominator = 3;
    auto sum = Stream::empty(layout_.parts[part].end - layout_.parts[part].begin);
    for (const uint32_t index : local) {
      sum.indices.push_back(index);
      sum.values.push_back(static_cast<float>(update.begin + index));
    }
    update.sum = SharedStream::from(std::move(sum));
    return update;
  }
  void put(uint32_t part, uint64_t step, const std::vector<uint32_t>& local) {
    for (auto& portion : shelf_->portions(part_update(part, step, local))) shelf_->put(std::move(portion));
  }

  protocol::JobSpec spec_;
  protocol::JobLayout layout_;
  std::unique_ptr<UpdateShelf> shelf_;
};

TEST_F(UpdateShelfTest, PartsComeTogetherInOrderOfTheirRanges) {
  plan({100'000}, 2);
  ASSERT_EQ(layout_.parts.size(), 4u);
  for (const uint32_t part : {2u, 0u, 3u, 1u}) {
    EXPECT_FALSE(shelf_->complete(0, 0));
    put(part, 0, {1, 7});
  }
  ASSERT_TRUE(shelf_->complete(0, 0));
  const TensorUpdate update = shelf_->take(0, 0);
  ASSERT_EQ(update.pieces.size(), 4u);
  uint64_t next = 0;
  for (const UpdatePiece& piece : update.pieces) {
    EXPECT_EQ(piece.begin, next);
    next += piece.dimension;
    EXPECT_EQ(piece.denominator, 3.0);
    EXPECT_EQ(piece.contributors, 3u);
    EXPECT_EQ(piece.values[1], static_cast<float>(piece.begin + 7));
  }
  EXPECT_EQ(next, 100'000u);
  EXPECT_TRUE(shelf_->handed_out(0, 0));
  EXPECT_FALSE(shelf_->handed_out(0, 1));
}

TEST_F(UpdateShelfTest, StepsWithoutThisWorkerComeWithTheNextAnswerInTheirOrder) {
  plan({100'000}, 1);
  ASSERT_EQ(layout_.parts.size(), 2u);
  const auto put_push = [&](uint32_t part, uint64_t step, bool answers, uint32_t index) {
    DeliveredUpdate update = part_update(part, step, {index});
    update.push = 0;
    update.answers_push = answers;
    for (auto& portion : shelf_->portions(std::move(update))) shelf_->put(std::move(portion));
  };
  put_push(0, 0, false, 1);
  put_push(0, 1, false, 2);
  put_push(1, 0, false, 3);
  EXPECT_FALSE(shelf_->complete(0, 0));
  put_push(0, 2, true, 4);
  EXPECT_FALSE(shelf_->complete(0, 0));
  put_push(1, 1, true, 5);
  ASSERT_TRUE(shelf_->complete(0, 0));
  const TensorUpdate update = shelf_->take(0, 0);
  std::vector<uint32_t> indices;
  for (const UpdatePiece& piece : update.pieces) indices.push_back(piece.indices[0]);
  EXPECT_EQ(indices, (std::vector<uint32_t>{1, 2, 4, 3, 5}));
  EXPECT_EQ(shelf_->steps_complete(0), 1u);
}

TEST_F(UpdateShelfTest, FusedTensorsGetTheirShareWithIndicesOfTheirOwn) {
  plan({10, 20, 30}, 1);
  ASSERT_EQ(layout_.buckets.size(), 1u);
  ASSERT_EQ(layout_.buckets[0].part_count, layout_.parts.size());
  for (const protocol::PartLayout& part : layout_.parts) {
    std::vector<uint32_t> all(part.end - part.begin);
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    put(part.part, 0, all);
  }
  uint64_t offset = 0;
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    ASSERT_TRUE(shelf_->complete(tensor, 0));
    const TensorUpdate update = shelf_->take(tensor, 0);
    uint64_t entries = 0;
    for (const UpdatePiece& piece : update.pieces) {
      for (size_t i = 0; i < piece.values.size(); ++i, ++entries) {
        EXPECT_EQ(piece.values[i], static_cast<float>(offset + piece.begin + piece.indices[i]));
      }
    }
    EXPECT_EQ(entries, spec_.tensors[tensor].dimension);
    offset += entries;
  }
}

TEST_F(UpdateShelfTest, UpdatesAppliedOnArrivalAreNotKept) {
  plan({100'000}, 1);
  shelf_->attach(0, ApplyWhen::kOnArrival);
  for (uint64_t step = 0; step < 50; ++step) {
    for (uint32_t part = 0; part < layout_.parts.size(); ++part) put(part, step, {0});
    EXPECT_EQ(shelf_->kept(0), 0u);
    EXPECT_TRUE(shelf_->complete(0, step));
  }
  EXPECT_FALSE(shelf_->complete(0, 50));
  EXPECT_TRUE(shelf_->take(0, 3).applied);
  EXPECT_FALSE(shelf_->handed_out(0, 3));
}

TEST_F(UpdateShelfTest, OnlyStepsFromTheAttachmentOnAreInTheWeights) {
  plan({100'000}, 1);
  const auto put_step = [&](uint64_t step) {
    for (uint32_t part = 0; part < layout_.parts.size(); ++part) put(part, step, {0});
  };
  put_step(0);
  shelf_->attach(0, ApplyWhen::kOnAwait);
  put_step(1);
  EXPECT_TRUE(shelf_->take(0, 1).applied);
  EXPECT_FALSE(shelf_->take(0, 0).applied) << "step 0 was there before";
}

}  // namespace
}  // namespace millrace::worker
