#include "protocol/messages/summary_check.h"

#include <gtest/gtest.h>

#include <functional>

namespace millrace::protocol {
namespace {

/// Returns a summary of two workers, one of which had two earlier incarnations, and of three epochs.
Summary ordered() {
  Summary summary;
  summary.workers = {{.worker = 1, .incarnation = 9, .last_step = 20, .earlier_incarnations = {{3, 17}, {5, 18}}},
                     {.worker = 4, .incarnation = 2, .last_step = 20, .earlier_incarnations = {}}};
  summary.epochs = {{2, 0}, {3, 0}, {7, 12}};
  return summary;
}

std::string_view after(const std::function<void(Summary&)>& change) {
  Summary summary = ordered();
  change(summary);
  return disorder_in(summary);
}

TEST(SummaryOrder, AValidSummaryIsInOrder) {
  EXPECT_EQ(disorder_in(ordered()), "");
  EXPECT_EQ(disorder_in({}), "");
}

TEST(SummaryOrder, EachListAscends) {
  EXPECT_EQ(after([](Summary& s) { s.workers[1].worker = 1; }), "a summary is not in ascending order");
  EXPECT_EQ(after([](Summary& s) { s.epochs[1].first = 2; }), "a summary's epochs are not in ascending order");
  EXPECT_EQ(after([](Summary& s) { s.epochs[1].second = 13; }), "a summary's epochs are not in ascending order");
  EXPECT_EQ(after([](Summary& s) { s.workers[0].earlier_incarnations[1].first = 3; }),
            "a summary's incarnations are not in ascending order");
  EXPECT_EQ(after([](Summary& s) { s.workers[0].earlier_incarnations[1].second = 17; }),
            "a summary's incarnations are not in ascending order");
}

TEST(SummaryOrder, EarlierLivesAreEarlier) {
  EXPECT_EQ(after([](Summary& s) { s.workers[0].earlier_incarnations[1].first = 9; }),
            "an earlier incarnation in a summary is not earlier");
  EXPECT_EQ(after([](Summary& s) { s.workers[0].earlier_incarnations[1].second = 20; }),
            "an earlier incarnation in a summary is not earlier");
}

// There the second of a pair is how many contributions were counted under the incarnation: in no order.
TEST(SummaryOrder, InModeAsynchronousLivesAloneAscend) {
  const auto counts = [](Summary& s) {
    s.workers[0].sequence = 2;
    s.workers[0].earlier_incarnations = {{3, 40}, {5, 40}};
  };
  EXPECT_EQ(after(counts), "");
  EXPECT_EQ(after([&](Summary& s) { counts(s), s.workers[0].earlier_incarnations[0].first = 5; }),
            "a summary's incarnations are not in ascending order");
}

}  // namespace
}  // namespace millrace::protocol
