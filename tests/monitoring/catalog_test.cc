#include "monitoring/catalog.h"
#include "tests/support/tree_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;

std::string file_text(const std::string& name) {
  std::ifstream file(source_file("monitoring/" + name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

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
    EXPECT_TRUE(info->name.starts_with("millrace_shard_") || info->name.starts_with("millrace_worker_")) << info->name;
    EXPECT_EQ(info->name.ends_with("_total"), info->kind == MetricKind::kCounter) << info->name;
    EXPECT_EQ(info->bounds.empty(), info->kind != MetricKind::kHistogram) << info->name;
    EXPECT_FALSE(info->help.empty()) << info->name;
    for (const char* unit : {"_ms", "_us", "_ns", "_kb", "_mb"}) {
      EXPECT_EQ(info->name.find(unit), std::string_view::npos) << info->name;
    }
  }
}

TEST(CatalogTest, EveryMetricOfTheDashboardIsExported) {
  const nlohmann::json dashboard = nlohmann::json::parse(file_text("grafana-dashboard.json"));
  const std::set<std::string> exported = exported_names();
  size_t queries = 0;
  for (const nlohmann::json& panel : dashboard.at("panels")) {
    if (panel.at("type") == "row") continue;
    for (const nlohmann::json& target : panel.at("targets")) {
      ++queries;
      const std::set<std::string> used = metric_words(target.at("expr"));
      EXPECT_FALSE(used.empty()) << target.at("expr");
      for (const std::string& name : used) EXPECT_TRUE(exported.contains(name)) << name;
    }
  }
  EXPECT_GT(queries, 30u);
  for (const nlohmann::json& variable : dashboard.at("templating").at("list")) {
    for (const std::string& name : metric_words(variable.at("query").dump()))
      EXPECT_TRUE(exported.contains(name)) << name;
  }
}

TEST(CatalogTest, EveryMetricIsDocumentedAndNoOther) {
  const std::string design = file_text("DESIGN.md");
  std::set<std::string> documented = metric_words(design);
  for (const MetricInfo* info : metric_catalog()) {
    std::string labels;
    for (const std::string_view label : info->labels) labels += (labels.empty() ? "" : ", ") + std::string(label);
    EXPECT_THAT(design, HasSubstr("| `" + std::string(info->name) + "` | "));
    EXPECT_THAT(design, HasSubstr("| " + (labels.empty() ? "–" : labels) + " | "));
    documented.erase(std::string(info->name));
  }
  EXPECT_TRUE(documented.empty()) << *documented.begin();
}

TEST(CatalogTest, ShardsAndWorkersExportWhatTheCatalogSays) {
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
    for (const std::string_view label : info->labels) labels.emplace_back(label, "x");
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
