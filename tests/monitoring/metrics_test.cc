#include "monitoring/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/plain_text.h"

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, TextIsPrometheusExpositionFormat) {
  Metrics metrics;
  metrics.counter("millrace_things_total", "Things seen", {{"reason", "late"}}).increment();
  metrics.counter("millrace_things_total", "Things seen", {{"reason", "late"}}).increment(2);
  metrics.gauge("millrace_level", "A level").set(-1.5);
  metrics.gauge("millrace_level", "A level").add(1);
  const std::vector<double> bounds = {0.5, 2};
  Histogram& histogram = metrics.histogram("millrace_time_seconds", "A time", bounds, {{"job", "a"}});
  for (const double value : {0.25, 0.5, 1.0, 100.0}) histogram.observe(value);
  const std::string text = metrics.prometheus_text();
  for (const char* line : {
           "# HELP millrace_things_total Things seen\n",
           "# TYPE millrace_things_total counter\n",
           "millrace_things_total{reason=\"late\"} 3\n",
           "# TYPE millrace_level gauge\n",
           "millrace_level -0.5\n",
           "# TYPE millrace_time_seconds histogram\n",
           "millrace_time_seconds_count{job=\"a\"} 4\n",
           "millrace_time_seconds_sum{job=\"a\"} 101.75\n",
           "millrace_time_seconds_bucket{job=\"a\",le=\"0.5\"} 2\n",
           "millrace_time_seconds_bucket{job=\"a\",le=\"2\"} 3\n",
           "millrace_time_seconds_bucket{job=\"a\",le=\"+Inf\"} 4\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameHandle) {
  Metrics metrics;
  Counter& a = metrics.counter("millrace_a_total", "A", {{"x", "1"}, {"y", "2"}});
  EXPECT_EQ(&a, &metrics.counter("millrace_a_total", "A", {{"y", "2"}, {"x", "1"}}));
  EXPECT_NE(&a, &metrics.counter("millrace_a_total", "A", {{"x", "1"}, {"y", "3"}}));
  a.increment(5);
  EXPECT_EQ(metrics.counter("millrace_a_total", "A", {{"x", "1"}, {"y", "2"}}).value(), 5);
  EXPECT_EQ(metrics.counter("millrace_a_total", "A", {{"x", "1"}, {"y", "3"}}).value(), 0);
}

TEST(MetricsTest, CountersDoNotShrinkAndNothingBecomesNaN) {
  Metrics metrics;
  Counter& counter = metrics.counter("millrace_a_total", "A");
  counter.increment(2);
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    counter.increment(bad);
  }
  EXPECT_EQ(counter.value(), 2);
  const std::vector<double> bounds = {1};
  metrics.histogram("millrace_b", "B", bounds).observe(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(metrics.prometheus_text(), HasSubstr("millrace_b_count 0\n"));
}

TEST(MetricsTest, HostileLabelValuesStayOnOneLine) {
  Metrics metrics;
  metrics.counter("millrace_a_total", "A", {{"job", "x\"} 1\nmillrace_fake 2\xff\\"}}).increment();
  const std::string text = metrics.prometheus_text();
  EXPECT_THAT(text, HasSubstr("millrace_a_total{job=\"x\\\"} 1?millrace_fake 2?\\\\\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("\nmillrace_fake")));
  const std::string long_name(5000, 'n');
  metrics.counter("millrace_a_total", "A", {{"job", long_name}}).increment();
  EXPECT_LT(metrics.prometheus_text().size(), 1000u);
}

TEST(MetricsTest, NamesOfEveryScriptHaveTheirOwnSeries) {
  Metrics metrics;
  const std::vector<std::string> names = {"训练一",
                                          "训练二",
                                          "обучение-1",
                                          "обучение-2",
                                          "Ausbildung-ä",
                                          "Ausbildung-ö",
                                          "🚂 1",
                                          "🚂 2",
                                          std::string(254, 'n') + "1",
                                          std::string(254, 'n') + "2"};
  for (size_t i = 0; i < names.size(); ++i)
    metrics.counter("millrace_a_total", "A", {{"job", names[i]}}).increment(static_cast<double>(i + 1));
  const std::string text = metrics.prometheus_text();
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(Metrics::label_text(names[i]), names[i]);
    EXPECT_THAT(text, HasSubstr("millrace_a_total{job=\"" + names[i] + "\"} " + std::to_string(i + 1) + "\n"));
  }
  metrics.forget("job", names[0]);
  EXPECT_THAT(metrics.prometheus_text(), Not(HasSubstr(names[0])));
  EXPECT_THAT(metrics.prometheus_text(), HasSubstr(names[1]));
}

TEST(MetricsTest, ALabelIsAlwaysValidUtf8) {
  for (const std::string_view bad : {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xFF"}) {
    const std::string label = Metrics::label_text("job " + std::string(bad));
    EXPECT_TRUE(is_plain_text(label)) << label;
    EXPECT_THAT(label, ::testing::StartsWith("job ?"));
  }
  std::string euros;
  while (euros.size() < 1'000) euros += "\xE2\x82\xAC";
  EXPECT_EQ(Metrics::label_text(euros).size(), 255u) << "85 whole characters";
  EXPECT_TRUE(is_plain_text(Metrics::label_text("x" + euros))) << "cut between characters";
}

TEST(MetricsTest, SeriesBeyondTheLimitAreCountedAsOther) {
  Metrics metrics;
  for (size_t i = 0; i < Metrics::kSeriesMax + 50; ++i) {
    metrics.counter("millrace_a_total", "A", {{"job", std::to_string(i)}}).increment();
  }
  EXPECT_EQ(metrics.counter("millrace_a_total", "A", {{"job", "other"}}).value(), 50);
  EXPECT_EQ(metrics.counter("millrace_a_total", "A", {{"job", "7"}}).value(), 1);
  EXPECT_EQ(metrics.counter("millrace_a_total", "A", {{"job", "still another"}}).value(), 50);
  const std::string text = metrics.prometheus_text();
  size_t lines = 0;
  for (size_t at = 0; (at = text.find("\nmillrace_a_total{", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, Metrics::kSeriesMax + 1);
}

TEST(MetricsTest, ForgottenSeriesMakeRoomForOthers) {
  Metrics metrics;
  const std::vector<double> bounds = {1};
  for (size_t i = 0; i < Metrics::kSeriesMax; ++i) {
    metrics.counter("millrace_a_total", "A", {{"job", std::to_string(i)}, {"reason", "x"}}).increment();
  }
  metrics.counter("millrace_a_total", "A", {{"job", "late"}, {"reason", "x"}}).increment();
  metrics.gauge("millrace_g", "G", {{"job", "7"}}).set(1);
  metrics.gauge("millrace_g", "G", {{"job", "8"}}).set(1);
  metrics.histogram("millrace_h", "H", bounds, {{"job", "7"}}).observe(1);
  metrics.counter("millrace_b_total", "B", {{"reason", "7"}}).increment();
  metrics.forget("job", "7");
  metrics.forget("job", "9");
  metrics.forget("job", "other");
  metrics.forget("job", "never there");
  const std::string text = metrics.prometheus_text();
  EXPECT_THAT(text, Not(HasSubstr("job=\"7\"")));
  for (const char* kept :
       {"millrace_a_total{job=\"8\",reason=\"x\"} 1\n", "millrace_g{job=\"8\"} 1\n",
        "millrace_b_total{reason=\"7\"} 1\n", "millrace_a_total{job=\"other\",reason=\"other\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(kept));
  }
  metrics.counter("millrace_a_total", "A", {{"job", "late"}, {"reason", "x"}}).increment();
  EXPECT_THAT(metrics.prometheus_text(), HasSubstr("millrace_a_total{job=\"late\",reason=\"x\"} 1\n"));
}

TEST(MetricsTest, CountsFromManyThreadsAreAllThereWhileOthersScrape) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&metrics, thread] {
      for (int i = 0; i < 500; ++i) {
        metrics.counter("millrace_a_total", "A", {{"job", std::to_string(i % 10)}}).increment();
        metrics.gauge("millrace_g", "G").add(1);
        if (thread == 0 && i % 50 == 0) {
          const std::string text = metrics.prometheus_text();
          EXPECT_THAT(text, HasSubstr("millrace_a_total"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double total = 0;
  for (int i = 0; i < 10; ++i) total += metrics.counter("millrace_a_total", "A", {{"job", std::to_string(i)}}).value();
  EXPECT_EQ(total, 2000);
  EXPECT_EQ(metrics.gauge("millrace_g", "G").value(), 2000);
}

TEST(MetricsDeathTest, BadNamesAndKindsAreBugs) {
  Metrics metrics;
  metrics.counter("millrace_a_total", "A");
  EXPECT_DEATH(metrics.counter("other_a_total", "A"), "millrace_");
  EXPECT_DEATH(metrics.counter("millrace_a", "A"), "_total");
  EXPECT_DEATH(metrics.gauge("millrace_b_total", "A"), "_total");
  EXPECT_DEATH(metrics.counter("millrace_A_total", "A"), "is_word");
  EXPECT_DEATH(metrics.counter("millrace_a_total", "another help"), "help");
  const std::vector<double> decreasing = {2, 1};
  EXPECT_DEATH(metrics.histogram("millrace_h", "H", decreasing), "adjacent_find");
}

}  // namespace
}  // namespace millrace::monitoring
