#include "protocol/address/address_rotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> all_of(AddressRotation& turns) {
  std::vector<std::string> all;
  while (const auto next = turns.next()) all.push_back(*next);
  return all;
}

TEST(AddressRotation, EachAddressHasItsTurnAndThenTheNameIsToBeLookedUp) {
  AddressRotation turns;
  EXPECT_FALSE(turns.next());
  turns.take({"a", "b", "c"});
  EXPECT_EQ(turns.count(), 3u);
  EXPECT_THAT(all_of(turns), ElementsAre("a", "b", "c"));
  EXPECT_FALSE(turns.next());
  turns.take({"b", "a"});
  EXPECT_THAT(all_of(turns), ElementsAre("b", "a"));
}

TEST(AddressRotation, TheOneThatWorkedLastIsFirstAsLongAsTheNameHasIt) {
  AddressRotation turns;
  turns.take({"a", "b", "c"});
  turns.next();
  turns.next();
  turns.worked();
  turns.take({"a", "b", "c"});
  EXPECT_THAT(all_of(turns), ElementsAre("b", "a", "c"));
  turns.take({"d", "e"});
  EXPECT_THAT(all_of(turns), ElementsAre("d", "e"));
  turns.take({"a", "b"});
  EXPECT_THAT(all_of(turns), ElementsAre("b", "a")) << "it was not forgotten";
}

}  // namespace
}  // namespace millrace::protocol
