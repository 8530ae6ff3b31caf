#include <gtest/gtest.h>

#include <map>
#include <string>

#include "worker/switch/switch_client.h"

/// The client's counters by name, as they are exported.
namespace millrace::worker {
namespace {

TEST(SwitchClientCounts, HaveTheNamesOfTheirFields) {
  SwitchClientCounters counters;
  counters.malformed = 1;
  counters.forged = 2;
  counters.not_contributor = 3;
  counters.congestion_marks = 4;
  counters.rack_lost = 5;
  counters.sent_to_rack = 6;
  std::map<std::string, uint64_t> named;
  for (const NamedSwitchCount& one : named_counts(counters)) named[std::string(one.name)] = one.count;
  EXPECT_EQ(named.size(), kSwitchClientCounters) << "no name twice";
  EXPECT_EQ(named["malformed"], 1u);
  EXPECT_EQ(named["forged"], 2u);
  EXPECT_EQ(named["not_contributor"], 3u);
  EXPECT_EQ(named["congestion_marks"], 4u);
  EXPECT_EQ(named["rack_lost"], 5u);
  EXPECT_EQ(named["sent_to_rack"], 6u);
  EXPECT_EQ(named["replayed"], 0u);
}

}  // namespace
}  // namespace millrace::worker
