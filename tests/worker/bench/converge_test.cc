#include "worker/bench/converge/converge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace millrace::bench {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json printed(uint64_t steps, double rounds_per_s, json curve = nullptr) {
  json worker = {{"steps", steps},
                 {"rounds", 8},
                 {"contributions", 24},
                 {"rounds_per_s", rounds_per_s},
                 {"bytes_up", 10 * steps},
                 {"bytes_down", 64},
                 {"epochs", json::array({{{"seconds", 2.0}}, {{"seconds", 0.5}}})}};
  if (!curve.is_null()) worker["curve"] = std::move(curve);
  return worker;
}

json point(uint64_t round, double log_loss) {
  return {
      {"round", round}, {"bytes_up", 8 * round}, {"bytes_down", 2 * round}, {"seconds", 0.5}, {"log_loss", log_loss}};
}

TEST(SlowWorkerFromText, TakesAWorkerAndAFactor) {
  const auto slow = slow_worker_from_text("3:2.5");
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->worker, 3);
  EXPECT_EQ(slow->factor, 2.5);
}

TEST(SlowWorkerFromText, RefusesInvalidText) {
  for (const char* text : {"", "3", "3:", ":3", "3:x", "x:3", "3:2x", "-1:2", "3:0.5", "3:1001", "3:nan", "3,2"})
    EXPECT_FALSE(slow_worker_from_text(text)) << text;
}

TEST(ConvergeRows, AreNamedOnceAndStartWithTheBaselines) {
  const auto rows = converge_rows({});
  EXPECT_EQ(rows[0].name, "dense");
  EXPECT_EQ(rows[1].name, "synchronous");
  std::set<std::string> names;
  for (const ConvergeRow& row : rows) names.insert(row.name);
  EXPECT_EQ(names.size(), rows.size());
}

TEST(SummariseRow, SlowWorkersPresent_LossAndRateTakenFromTheOthers) {
  ConvergeOptions options;
  options.slow = SlowWorker{0, 10};
  const json row =
      summarise_row({"name", "title", {"--mode"}},
                    {printed(2, 1), printed(8, 16, {point(0, 0.5), point(8, 0.25)}), printed(6, 32)}, options);
  EXPECT_EQ(row["algorithm"], "name");
  EXPECT_EQ(row["log_loss"], 0.25);
  EXPECT_EQ(row["rounds"], 8);
  EXPECT_EQ(row["steps"], 16);
  EXPECT_EQ(row["slow_steps"], 2);
  EXPECT_EQ(row["contributors"], 3.0);
  EXPECT_EQ(row["rounds_per_s"], 24.0);
  EXPECT_EQ(row["seconds"], 2.5);
  EXPECT_EQ(row["bytes_up"], 160.0 / 3);
  EXPECT_EQ(row["bytes_down"], 64.0);
  EXPECT_EQ(row["curve"].size(), 2);
}

TEST(ConvergeRows, TheAsynchronousOneGoesForAsManyContributionsAsTheOthers) {
  ConvergeOptions options;
  options.workers = 3;
  const auto rows = converge_rows(options);
  const auto row = std::ranges::find(rows, "asynchronous", &ConvergeRow::name);
  ASSERT_NE(row, rows.end());
  EXPECT_EQ(row->rounds_per_step, 3u);
  EXPECT_EQ(std::ranges::count(row->flags, "--reselect"), 0) << "refused in that mode";
}

TEST(SummariseRow, ContributionsOfAllWorkersAreARound) {
  const json row =
      summarise_row({"name", "title", {}, 2}, {printed(8, 2, {point(0, 0.5), point(8, 0.25)}), printed(8, 4)}, {});
  EXPECT_EQ(row["rounds"], 4);
  EXPECT_EQ(row["contributors"], 6.0) << "24 in 4 rounds";
  EXPECT_EQ(row["rounds_per_s"], 1.5);
  EXPECT_EQ(row["curve"][1]["round"], 4.0);
}

TEST(SummariseRow, WithoutASlowWorkerTakesTheRateOfAll) {
  const json row =
      summarise_row({"name", "title", {}}, {printed(8, 2, json::array({point(8, 0.25)})), printed(8, 4)}, {});
  EXPECT_EQ(row["rounds_per_s"], 3.0);
  EXPECT_FALSE(row.contains("slow_steps"));
}

json converge_row_of(const char* name, double log_loss, double bytes, double rate) {
  return {{"algorithm", name},
          {"title", name},
          {"log_loss", log_loss},
          {"bytes_up", bytes / 2},
          {"bytes_down", bytes / 2},
          {"rounds_per_s", rate},
          {"curve", {point(0, 0.75), point(4, log_loss)}}};
}

TEST(CompareRows, ComparesLossAndBytesWithDenseAndTheRateWithSynchronous) {
  json rows = {converge_row_of("dense", 0.25, 1024, 4), converge_row_of("synchronous", 0.25, 256, 8),
               converge_row_of("quorum", 0.5, 128, 32)};
  compare_rows(rows);
  EXPECT_EQ(rows[2]["log_loss_over_dense"], 2.0);
  EXPECT_EQ(rows[2]["dense_bytes_over_this"], 8.0);
  EXPECT_EQ(rows[2]["rate_over_synchronous"], 4.0);
  EXPECT_EQ(rows[0]["rate_over_synchronous"], 0.5);
}

TEST(CompareRows, OmitsRatiosWithoutABaseline) {
  json rows = json::array({converge_row_of("quorum", 0.5, 128, 32)});
  compare_rows(rows);
  EXPECT_FALSE(rows[0].contains("log_loss_over_dense"));
  EXPECT_FALSE(rows[0].contains("rate_over_synchronous"));
}

TEST(ConvergeSvg, ShowsEveryRowAgainstRoundsAndAgainstBytes) {
  const json rows = {converge_row_of("dense", 0.25, 1024, 4), converge_row_of("half", 0.5, 256, 8)};
  const json result = {
      {"data", "a"}, {"workers", 4}, {"shards", 2}, {"slow_worker", {{"worker", 3}, {"factor", 10.0}}}, {"rows", rows}};
  const std::string svg = converge_svg(result);
  EXPECT_THAT(svg, HasSubstr("worker 3 10 times as slow"));
  // The point before any round has no bytes: a logarithmic axis has no place for it.
  EXPECT_THAT(svg, HasSubstr(">4</text>"));
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 4);
}

}  // namespace
}  // namespace millrace::bench
