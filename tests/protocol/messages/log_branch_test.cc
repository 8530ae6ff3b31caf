#include "protocol/messages/log_branch.h"

#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

/// Returns a view in which shard 0 was restarted twice from the beginning (branch 1 ended without a decision). Then the
/// job was cut to a state of log branch 2: that is branch 3, for both shards.
JobView lineage_example() {
  JobView view;
  view.epoch = 9;
  view.shards = {{"a", 3}, {"b", 1}};
  view.lineages = 3;
  view.activations = {{0, 1, 0}, {0, 2, 0}, {0, 3, 2}, {1, 3, 0}};
  return view;
}

TEST(Lineage, IsThatOfTheShardsLastActivation) {
  JobView view = lineage_example();
  EXPECT_EQ(lineage_of(view, 0), 3u);
  EXPECT_EQ(lineage_of(view, 1), 3u);
  view.activations.resize(2);
  EXPECT_EQ(lineage_of(view, 0), 2u);
  EXPECT_EQ(lineage_of(view, 1), 0u);
}

TEST(Lineage, ThePathGoesThroughParentsAndKnowsNoOtherBranch) {
  const JobView view = lineage_example();
  EXPECT_TRUE(is_on_path(view, 0, 3));
  EXPECT_TRUE(is_on_path(view, 0, 2));
  EXPECT_FALSE(is_on_path(view, 0, 1));
  EXPECT_TRUE(is_on_path(view, 0, 0));
  EXPECT_FALSE(is_on_path(view, 0, 4)) << "a later one than the view knows";
  EXPECT_FALSE(is_on_path(view, 1, 2)) << "shard 0's are not shard 1's";
  EXPECT_TRUE(is_on_path(view, 1, 0));
}

TEST(Lineage, ActivationsThatCannotBeAreTold) {
  EXPECT_TRUE(activations_make_sense(JobView{}));
  EXPECT_TRUE(activations_make_sense(lineage_example()));
  const auto with = [](auto change) {
    JobView view = lineage_example();
    change(view);
    return view;
  };
  EXPECT_FALSE(activations_make_sense(with([](JobView& view) { view.lineages = 2; }))) << "a number beyond the last";
  EXPECT_FALSE(activations_make_sense(with([](JobView& view) { view.activations[0].shard = 2; }))) << "no such shard";
  EXPECT_FALSE(activations_make_sense(with([](JobView& view) { view.activations[2].parent = 3; }))) << "its own parent";
  EXPECT_FALSE(activations_make_sense(with([](JobView& view) { std::swap(view.activations[2], view.activations[3]); })))
      << "not in order";
  EXPECT_FALSE(activations_make_sense(with([](JobView& view) { view.activations[3] = view.activations[2]; })))
      << "twice";
}

}  // namespace
}  // namespace millrace::protocol
