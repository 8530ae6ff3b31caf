#include "monitoring/catalog.h"
#include "tests/support/tree_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string file_text(const std::string& name) {
  std::ifstream file(source_file("monitoring/" + name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Program {
  std::string_view name;
  std::string_view title;  ///< of its part of METRICS.md
  std::span<const MetricInfo> infos;
};

const std::array kPrograms = {
    Program{"shard", "## Shards\n", shard_metric_infos()}, Program{"worker", "## Workers\n", worker_metric_infos()},
    Program{"switch", "## Switches\n", switch_metric_infos()}, Program{"peer", "## Peers\n", peer_metric_infos()},
    Program{"http", "## HTTP ports\n", http_metric_infos()}};

/// The words of `text` that begin with "millrace_".
std::set<std::string> metric_words(const std::string& text) {
  std::set<std::string> words;
  for (size_t at = text.find("millrace_"); at != std::string::npos; at = text.find("millrace_", at + 1)) {
    size_t end = at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    words.insert(text.substr(at, end - at));
  }
  return words;
}

/// Every name under which the catalog's metrics are exported.
std::set<std::string> exported_names() {
  std::set<std::string> names;
  for (const MetricInfo* info : metric_catalog()) {
    const std::string name(info->name);
    if (info->kind == MetricKind::kHistogram) {
      names.insert({name + "_bucket", name + "_sum", name + "_count"});
    } else {
      names.insert(name);
    }
  }
  return names;
}

TEST(CatalogTest, NamesAreUniqueAndInBaseUnits) {
  std::set<std::string_view> names;
  for (const MetricInfo* info : metric_catalog()) {
    EXPECT_TRUE(names.insert(info->name).second) << info->name;
    EXPECT_TRUE(std::ranges::any_of(kPrograms, [&](const Program& one) {
      return info->name.starts_with("millrace_" + std::string(one.name) + "_");
    })) << info->name;
    EXPECT_EQ(info->name.ends_with("_total"), info->kind == MetricKind::kCounter) << info->name;
    EXPECT_EQ(info->bounds.empty(), info->kind != MetricKind::kHistogram) << info->name;
    EXPECT_FALSE(info->help.empty()) << info->name;
    for (const char* unit : {"_ms_", "_us_", "_ns_", "_kb_", "_mb_"})
      EXPECT_THAT(std::string(info->name) + "_", Not(HasSubstr(unit)));
  }
}

constexpr std::array kDashboards = {"cluster", "job", "switch", "peers"};

nlohmann::json dashboard_json(const std::string& name) {
  return nlohmann::json::parse(file_text("dashboards/" + name + ".json"));
}

/// The queries of the panels of all dashboards.
std::vector<std::string> panel_queries() {
  std::vector<std::string> queries;
  for (const char* name : kDashboards) {
    const nlohmann::json dashboard = dashboard_json(name);
    for (const nlohmann::json& panel : dashboard.at("panels")) {
      if (panel.at("type") == "row") continue;
      for (const nlohmann::json& target : panel.at("targets")) queries.push_back(target.at("expr"));
    }
  }
  return queries;
}

TEST(CatalogTest, EveryMetricOfTheDashboardsIsExported) {
  const std::set<std::string> exported = exported_names();
  const std::vector<std::string> queries = panel_queries();
  for (const std::string& query : queries) {
    const std::set<std::string> used = metric_words(query);
    EXPECT_FALSE(used.empty()) << query;
    for (const std::string& name : used) EXPECT_TRUE(exported.contains(name)) << name;
  }
  EXPECT_GT(queries.size(), 60u);
}

TEST(CatalogTest, EveryMetricIsInAPanelOrIsMarkedAsDetail) {
  std::set<std::string> in_panels;
  for (const std::string& query : panel_queries()) in_panels.merge(metric_words(query));
  for (const MetricInfo* info : metric_catalog()) {
    const std::string name(info->name);
    const bool in_a_panel = in_panels.contains(name) || in_panels.contains(name + "_bucket") ||
                            in_panels.contains(name + "_sum") || in_panels.contains(name + "_count");
    EXPECT_EQ(in_a_panel, info->shown == Shown::kPanel) << name;
  }
}

TEST(DashboardTest, EveryQueryAsksForTheChosenInstancesAndJobs) {
  std::map<std::string, const MetricInfo*> by_name;
  for (const MetricInfo* info : metric_catalog()) {
    for (const char* series : {"", "_bucket", "_sum", "_count"}) by_name[std::string(info->name) + series] = info;
  }
  for (const std::string& query : panel_queries()) {
    for (size_t at = query.find("millrace_"); at != std::string::npos; at = query.find("millrace_", at + 1)) {
      const size_t brace = query.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at);
      ASSERT_TRUE(brace != std::string::npos && query[brace] == '{') << query;
      const std::string selector = query.substr(brace, query.find('}', brace) - brace);
      EXPECT_THAT(selector, HasSubstr("instance=~\"$instance\"")) << query;
      const MetricInfo& info = *by_name.at(query.substr(at, brace - at));
      const bool has_job = std::ranges::any_of(info.labels, [](const LabelInfo& one) { return one.name == "job"; });
      EXPECT_EQ(selector.contains("job=~\"$job\""), has_job) << query;
    }
  }
}

// "in" is into the process that counts: the two ends of a path count the same bytes in opposite directions.
TEST(DashboardTest, ALegendOfDirectionsIsOfOneMetric) {
  std::map<std::string, std::set<std::string>> metrics;  // by title and legend
  for (const char* name : kDashboards) {
    const nlohmann::json dashboard = dashboard_json(name);
    for (const nlohmann::json& panel : dashboard.at("panels")) {
      if (panel.at("type") == "row") continue;
      for (const nlohmann::json& target : panel.at("targets")) {
        const std::string legend = target.at("legendFormat");
        if (!legend.contains("{{direction}}")) continue;
        const std::string line = std::string(panel.at("title")) + " " + legend;
        const std::set<std::string> used = metric_words(target.at("expr"));
        EXPECT_EQ(metrics.try_emplace(line, used).first->second, used) << name << ": " << line;
      }
    }
  }
}

TEST(DashboardTest, EachHasANameOfItsOwnAndTheSameVariables) {
  std::set<std::string> titles;
  for (const char* name : kDashboards) {
    const nlohmann::json dashboard = dashboard_json(name);
    EXPECT_EQ(dashboard.at("uid"), "millrace-" + std::string(name));
    EXPECT_TRUE(titles.insert(dashboard.at("title")).second) << name;
    std::set<std::string> variables;
    for (const nlohmann::json& one : dashboard.at("templating").at("list")) variables.insert(one.at("name"));
    EXPECT_EQ(variables, (std::set<std::string>{"datasource", "job", "instance"})) << name;
  }
}

TEST(DashboardTest, PanelsAreQuestionsAndBeginWithStepsAndBytes) {
  for (const char* name : kDashboards) {
    std::vector<std::string> first_row;
    const nlohmann::json dashboard = dashboard_json(name);
    for (const nlohmann::json& panel : dashboard.at("panels")) {
      if (panel.at("type") == "row") continue;
      const std::string title = panel.at("title");
      EXPECT_TRUE(title.ends_with("?")) << name << ": " << title;
      if (panel.at("gridPos").at("y") == 1) first_row.push_back(title);
    }
    ASSERT_GE(first_row.size(), 2u) << name;
    EXPECT_EQ(first_row.at(0), "How many steps per second?") << name;
    EXPECT_EQ(first_row.at(1), "How many bytes against dense?") << name;
  }
}

class DashboardLayoutTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, DashboardLayoutTest, ::testing::ValuesIn(kDashboards),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(DashboardLayoutTest, PanelsHaveNumbersAndTitlesOfTheirOwnAndDoNotOverlap) {
  std::set<int> ids;
  std::set<std::string> titles;
  std::set<std::pair<int, int>> taken;
  const nlohmann::json dashboard = dashboard_json(GetParam());
  for (const nlohmann::json& panel : dashboard.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << panel.at("title");
    EXPECT_TRUE(titles.insert(panel.at("title")).second) << panel.at("title");
    const nlohmann::json& place = panel.at("gridPos");
    const int x = place.at("x"), y = place.at("y"), w = place.at("w"), h = place.at("h");
    EXPECT_TRUE(x >= 0 && y >= 0 && w > 0 && h > 0 && x + w <= 24) << panel.at("title");
    for (int column = x; column < x + w; ++column) {
      for (int row = y; row < y + h; ++row)
        EXPECT_TRUE(taken.emplace(column, row).second) << panel.at("title") << ": " << column << ", " << row;
    }
    std::set<std::string> targets;
    if (panel.at("type") == "row") continue;
    for (const nlohmann::json& target : panel.at("targets"))
      EXPECT_TRUE(targets.insert(target.at("refId")).second) << panel.at("title");
  }
}

TEST(DashboardTest, AnAuditImbalancePanelIsRedAboveZero) {
  size_t found = 0;
  for (const char* name : kDashboards) {
    const nlohmann::json dashboard = dashboard_json(name);
    for (const nlohmann::json& panel : dashboard.at("panels")) {
      if (panel.at("type") != "stat" || panel.dump().find("audit_imbalance") == std::string::npos) continue;
      ++found;
      const nlohmann::json& steps = panel.at("fieldConfig").at("defaults").at("thresholds").at("steps");
      EXPECT_EQ(steps.at(0).at("color"), "green");
      EXPECT_TRUE(steps.at(0).at("value").is_null());
      EXPECT_EQ(steps.at(1).at("color"), "red");
      EXPECT_GT(steps.at(1).at("value").get<double>(), 0);
      EXPECT_LT(steps.at(1).at("value").get<double>(), 1e-12);
    }
  }
  EXPECT_EQ(found, 2u);
}

/// Returns the text with each item on one line.
std::string with_whole_items(std::string text) {
  constexpr std::string_view kWrap = "\n  ";
  for (size_t at = text.find(kWrap); at != std::string::npos; at = text.find(kWrap, at))
    text.replace(at, kWrap.size(), " ");
  return text;
}

/// Returns the beginning of a metric's item: all but its meaning.
std::string item_head(const MetricInfo& info) {
  std::string labels;
  for (const LabelInfo& label : info.labels) {
    labels += (labels.empty() ? "" : ", ") + std::string(label.name);
    std::string values;
    for (const std::string_view value : label.values) values += (values.empty() ? "" : ", ") + std::string(value);
    if (!values.empty()) labels += " (" + values + ")";
  }
  const char* kind = info.kind == MetricKind::kCounter ? "counter"
                     : info.kind == MetricKind::kGauge ? "gauge"
                                                       : "histogram";
  return "- `" + std::string(info.name) + "` " + kind + ", " + (info.shown == Shown::kPanel ? "panel" : "detail") +
         ". Labels: " + (labels.empty() ? "none" : labels) + ". ";
}

TEST(CatalogTest, EveryMetricIsDocumentedInItsProgramsPartAndNoOther) {
  const std::string page = with_whole_items(file_text("METRICS.md"));
  std::set<std::string> documented = metric_words(page);
  for (const Program& program : kPrograms) {
    const size_t begin = page.find(program.title);
    ASSERT_NE(begin, std::string::npos) << program.title;
    const std::string part = page.substr(begin, page.find("\n## ", begin) - begin);
    for (const MetricInfo& info : program.infos) {
      EXPECT_THAT(part, HasSubstr("\n" + item_head(info)));
      documented.erase(std::string(info.name));
    }
  }
  EXPECT_TRUE(documented.empty()) << *documented.begin();
}

TEST(CatalogTest, SeriesWhoseLabelsAreKnownBeforehandBeginAtZero) {
  Metrics metrics;
  begin_series(metrics, shard_metric_infos(), std::nullopt);
  EXPECT_THAT(metrics.prometheus_text(), Not(HasSubstr("job=")));
  EXPECT_THAT(metrics.prometheus_text(), HasSubstr("millrace_shard_jobs_opened_total 0\n"));
  begin_series(metrics, shard_metric_infos(), "a job");
  const ShardMetrics shard(metrics);
  shard.pulls.with({"a job", "refused"}).increment(2);
  begin_series(metrics, shard_metric_infos(), "a job");
  const std::string text = metrics.prometheus_text();
  for (const char* line : {"millrace_shard_handshakes_total{outcome=\"refused\",peer=\"shard\"} 0\n",
                           "millrace_shard_rounds_total{job=\"a job\"} 0\n",
                           "millrace_shard_pulls_total{job=\"a job\",result=\"answered\"} 0\n",
                           "millrace_shard_pulls_total{job=\"a job\",result=\"refused\"} 2\n",
                           "millrace_shard_round_seconds_bucket{job=\"a job\",le=\"+Inf\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  for (const char* name :
       {"millrace_shard_dropped_total", "millrace_shard_datagram_events_total{", "millrace_shard_epoch"})
    EXPECT_THAT(text, Not(HasSubstr(name)));
}

TEST(CatalogTest, ShardsAndWorkersExportTheMetricsOfTheCatalog) {
  Metrics metrics;
  const ShardMetrics shard(metrics);
  const WorkerMetrics worker(metrics);
  shard.rounds.with({"a job"}).increment(3);
  shard.late.with({"a job", "update"}).increment();
  shard.round_seconds.with({"a job"}).observe(0.001);
  shard.fill_in_ratio.with({"a job"}).observe(2.5);
  shard.memory_bytes.with().set(4096);
  shard.handshakes.with({"worker", "accepted"}).increment();
  worker.residual_norm.with({"a job"}).set(0.5);
  worker.reconnects.with({"a job"}).increment();
  const std::string text = metrics.prometheus_text();
  for (const char* line :
       {"millrace_shard_rounds_total{job=\"a job\"} 3\n",
        "millrace_shard_late_total{answer=\"update\",job=\"a job\"} 1\n",
        "millrace_shard_round_seconds_count{job=\"a job\"} 1\n",
        "millrace_shard_fill_in_ratio_bucket{job=\"a job\",le=\"3\"} 1\n", "millrace_shard_memory_bytes 4096\n",
        "millrace_shard_handshakes_total{outcome=\"accepted\",peer=\"worker\"} 1\n",
        "millrace_worker_residual_norm{job=\"a job\"} 0.5\n", "millrace_worker_reconnects_total{job=\"a job\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(CatalogTest, EveryEntryOfTheCatalogCanBeExported) {
  Metrics metrics;
  for (const MetricInfo* info : metric_catalog()) {
    Labels labels;
    for (const LabelInfo& label : info->labels) labels.emplace_back(label.name, "x");
    switch (info->kind) {
      case MetricKind::kCounter: metrics.counter(info->name, info->help, labels).increment(); break;
      case MetricKind::kGauge: metrics.gauge(info->name, info->help, labels).set(1); break;
      case MetricKind::kHistogram: metrics.histogram(info->name, info->help, info->bounds, labels).observe(1); break;
    }
  }
  EXPECT_EQ(metric_words(metrics.prometheus_text()).size(), [&] {
    std::set<std::string> names = exported_names();
    for (const MetricInfo* info : metric_catalog()) names.insert(std::string(info->name));
    return names.size();
  }());
}

TEST(CatalogDeathTest, TheWrongNumberOfLabelValuesIsABug) {
  Metrics metrics;
  const ShardMetrics shard(metrics);
  EXPECT_DEATH(shard.late.with({"a job"}), "millrace_shard_late_total");
}

}  // namespace
}  // namespace millrace::monitoring
