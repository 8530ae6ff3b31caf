#include "monitoring/catalog.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace::monitoring {
namespace {

Labels labels_of(const MetricInfo& info, std::initializer_list<std::string_view> values) {
  MILLRACE_CHECK(values.size() == info.labels.size(), info.name, values.size(), info.labels.size());
  Labels labels;
  for (const std::string_view value : values) labels.emplace_back(info.labels[labels.size()].name, value);
  return labels;
}

void begin_one(Metrics& metrics, const MetricInfo& info, const Labels& labels) {
  switch (info.kind) {
    case MetricKind::kCounter: static_cast<void>(metrics.counter(info.name, info.help, labels)); return;
    case MetricKind::kHistogram:
      static_cast<void>(metrics.histogram(info.name, info.help, info.bounds, labels));
      return;
    case MetricKind::kGauge: return;  // its first value is its program's
  }
}

/// Begins the series of `info` whose first labels are those of `labels`, for all values of the others.
void begin_all(Metrics& metrics, const MetricInfo& info, Labels& labels, std::string_view job) {
  if (labels.size() == info.labels.size()) return begin_one(metrics, info, labels);
  const LabelInfo& next = info.labels[labels.size()];
  const std::span<const std::string_view> values = next.name == "job" ? std::span(&job, 1) : next.values;
  for (const std::string_view value : values) {
    labels.emplace_back(next.name, value);
    begin_all(metrics, info, labels, job);
    labels.pop_back();
  }
}

}  // namespace

std::vector<const MetricInfo*> metric_catalog() {
  std::vector<const MetricInfo*> all;
  for (const auto infos :
       {shard_metric_infos(), worker_metric_infos(), switch_metric_infos(), peer_metric_infos(), http_metric_infos()}) {
    for (const MetricInfo& info : infos) all.push_back(&info);
  }
  return all;
}

void begin_series(Metrics& metrics, std::span<const MetricInfo> infos, std::optional<std::string_view> job) {
  for (const MetricInfo& info : infos) {
    const bool of_a_job = std::ranges::any_of(info.labels, [](const LabelInfo& one) { return one.name == "job"; });
    if (of_a_job != job.has_value()) continue;
    Labels labels;
    begin_all(metrics, info, labels, job.value_or(""));
  }
}

Counter& CounterFamily::with(std::initializer_list<std::string_view> values) const {
  MILLRACE_CHECK(info_.kind == MetricKind::kCounter, info_.name);
  return metrics_.counter(info_.name, info_.help, labels_of(info_, values));
}

Gauge& GaugeFamily::with(std::initializer_list<std::string_view> values) const {
  MILLRACE_CHECK(info_.kind == MetricKind::kGauge, info_.name);
  return metrics_.gauge(info_.name, info_.help, labels_of(info_, values));
}

Histogram& HistogramFamily::with(std::initializer_list<std::string_view> values) const {
  MILLRACE_CHECK(info_.kind == MetricKind::kHistogram, info_.name);
  return metrics_.histogram(info_.name, info_.help, info_.bounds, labels_of(info_, values));
}

}  // namespace millrace::monitoring
