#include <array>

#include "monitoring/catalog.h"
#include "monitoring/catalog_lists.h"

namespace millrace::monitoring {
namespace {

constexpr std::array<MetricInfo, 1> kHttpMetrics = {{
    {.name = "millrace_http_refused_total",
     .kind = MetricKind::kCounter,
     .labels = kHttpRefusal,
     .help = "Requests and connections that the HTTP port refused, by reason"},
}};

}  // namespace

std::span<const MetricInfo> http_metric_infos() { return kHttpMetrics; }

HttpMetrics::HttpMetrics(Metrics& metrics)
    : refused(metrics, kHttpMetrics[index_of(kHttpMetrics, "millrace_http_refused_total")]) {}

}  // namespace millrace::monitoring
