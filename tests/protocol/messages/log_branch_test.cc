#include "protocol/messages/log_branch.h"

#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

/// Returns a view in which shard 0 was restarted twice from the beginning (branch 1 ended without a decision). Then the
/// job was cut to a state of log branch 2: that is branch 3, for both shards.
Membership lineage_example() {
  Membership membership;
  membership.epoch = 9;
  membership.shards = {{"a", 3}, {"b", 1}};
  membership.branches = 3;
  membership.activations = {{0, 1, 0}, {0, 2, 0}, {0, 3, 2}, {1, 3, 0}};
  return membership;
}

TEST(Branch, IsThatOfTheShardsLastActivation) {
  Membership membership = lineage_example();
  EXPECT_EQ(branch_of(membership, 0), 3u);
  EXPECT_EQ(branch_of(membership, 1), 3u);
  membership.activations.resize(2);
  EXPECT_EQ(branch_of(membership, 0), 2u);
  EXPECT_EQ(branch_of(membership, 1), 0u);
}

TEST(Branch, ThePathGoesThroughParentsAndKnowsNoOtherBranch) {
  const Membership membership = lineage_example();
  EXPECT_TRUE(is_on_path(membership, 0, 3));
  EXPECT_TRUE(is_on_path(membership, 0, 2));
  EXPECT_FALSE(is_on_path(membership, 0, 1));
  EXPECT_TRUE(is_on_path(membership, 0, 0));
  EXPECT_FALSE(is_on_path(membership, 0, 4)) << "a later one than the view knows";
  EXPECT_FALSE(is_on_path(membership, 1, 2)) << "shard 0's are not shard 1's";
  EXPECT_TRUE(is_on_path(membership, 1, 0));
}

TEST(Branch, InvalidActivationsAreDetected) {
  EXPECT_TRUE(activations_make_sense(Membership{}));
  EXPECT_TRUE(activations_make_sense(lineage_example()));
  const auto with = [](auto change) {
    Membership membership = lineage_example();
    change(membership);
    return membership;
  };
  EXPECT_FALSE(activations_make_sense(with([](Membership& membership) { membership.branches = 2; })))
      << "a number beyond the last";
  EXPECT_FALSE(activations_make_sense(with([](Membership& membership) { membership.activations[0].shard = 2; })))
      << "no such shard";
  EXPECT_FALSE(activations_make_sense(with([](Membership& membership) { membership.activations[2].parent = 3; })))
      << "its own parent";
  EXPECT_FALSE(activations_make_sense(with([](Membership& membership) {
    std::swap(membership.activations[2], membership.activations[3]);
  }))) << "not in order";
  EXPECT_FALSE(activations_make_sense(with([](Membership& membership) {
    membership.activations[3] = membership.activations[2];
  }))) << "twice";
}

}  // namespace
}  // namespace millrace::protocol
