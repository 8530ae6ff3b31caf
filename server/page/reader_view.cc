#include "server/page/reader_view.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "monitoring/status/status_json.h"

namespace millrace::server {
namespace {

using ViewJson = nlohmann::json;

/// Takes the fields that a reader may see off a text: a field that this build does not know is left out.
std::optional<std::string> shown_status(const ViewJson& status, const ShowsJob& shows) {
  std::optional<StatusReport> report = monitoring::read_status(status);
  if (!report) return std::nullopt;
  std::erase_if(report->jobs, [&](const JobStatus& job) { return !shows(job.name); });
  std::erase_if(report->ended, [&](const EndedJobStatus& job) { return !shows(job.name); });
  std::erase_if(report->refusals, [&](const RefusalStatus& refusal) { return !shows(refusal.job); });
  // Their sentences may name other jobs.
  for (RefusalStatus& refusal : report->refusals) refusal.sentence = "the shard's log has the reason";
  if (!report->table_error.empty()) report->table_error = "the membership table fails";
  return monitoring::status_json(*report);
}

}  // namespace

std::optional<std::string> status_shown(const std::string& status, const ShowsJob& shows) {
  return shown_status(ViewJson::parse(status, nullptr, false), shows);
}

std::string cluster_shown(const std::string& cluster, const ShowsJob& shows) {
  ViewJson said = ViewJson::parse(cluster, nullptr, false);
  if (!said.is_object() || !said.contains("shards")) return R"({"collecting": true})";
  for (ViewJson& row : said["shards"]) {
    if (!row.contains("status")) continue;
    const std::optional<std::string> shown = shown_status(row["status"], shows);
    row.erase("status");
    if (shown) row["status"] = ViewJson::parse(*shown, nullptr, false);
  }
  ViewJson workers = ViewJson::array();
  for (const ViewJson& row : said["workers"]) {
    if (row.contains("status") && shows(row["status"].value("job", std::string()))) workers.push_back(row);
  }
  said["workers"] = std::move(workers);
  return said.dump(-1, ' ', false, ViewJson::error_handler_t::replace);
}

}  // namespace millrace::server
