#include <array>

#include "monitoring/catalog.h"
#include "monitoring/catalog_lists.h"

namespace millrace::monitoring {
namespace {

constexpr std::array<MetricInfo, 2> kHttpMetrics = {{
    {.name = "millrace_http_refused_total",
     .kind = MetricKind::kCounter,
     .labels = kHttpRefusal,
     .help = "Requests and connections that the HTTP port refused, by reason"},
    {.name = "millrace_http_certificate_end_time_seconds",
     .kind = MetricKind::kGauge,
     .labels = kPortCertificate,
     .help = "Unix time at which the first certificate of the HTTP port ends"},
}};

}  // namespace

std::span<const MetricInfo> http_metric_infos() { return kHttpMetrics; }

HttpMetrics::HttpMetrics(Metrics& metrics)
    : refused(metrics, kHttpMetrics[index_of(kHttpMetrics, "millrace_http_refused_total")]),
      certificate_end_time(metrics,
                           kHttpMetrics[index_of(kHttpMetrics, "millrace_http_certificate_end_time_seconds")]) {}

}  // namespace millrace::monitoring
