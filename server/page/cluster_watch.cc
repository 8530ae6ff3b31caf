#include "server/page/cluster_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/plain_text.h"
#include "monitoring/status/status_json.h"
#include "protocol/address/host_port.h"

namespace millrace::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kAskingThreads = 8;
constexpr size_t kTextBytesMax = 512;

using State = protocol::ClusterView::Shard::State;

const char* state_text(State state) {
  switch (state) {
    case State::kNeverStarted: return "never_started";
    case State::kDraining: return "draining";
    case State::kServes: return "serving";
    case State::kGone: break;
  }
  return "gone";
}

/// Writes a shard's own answer into its row, in the fields that this build knows.
void add_shard_status(Json& row, const protocol::ClusterView::Shard& shard, uint32_t number, const std::string& http,
                      const Result<std::string>& answer) {
  if (!answer) {
    row["problem"] = answer.error().message;
    return;
  }
  const auto said = nlohmann::json::parse(*answer, nullptr, false);
  const std::optional<StatusReport> report = monitoring::read_status(said);
  if (!report || report->shard != number || report->address != shard.entry.address) {
    row["problem"] =
        fmt::format("the process at {} is not shard {}: give that shard an --http that this one reaches", http, number);
    return;
  }
  size_t members = 0;
  for (const JobStatus& job : report->jobs) members += job.members.size();
  if (members > ClusterWatch::kMembersMax) {
    row["problem"] =
        fmt::format("left out: its jobs have {} members, and the page shows {}", members, ClusterWatch::kMembersMax);
    return;
  }
  row["status"] = Json::parse(monitoring::status_json(*report), nullptr, false);
}

/// Returns the fields of a worker's status that the page shows. Empty: it is none.
Json worker_status(const std::string& text) {
  const auto said = nlohmann::json::parse(text, nullptr, false);
  if (!said.is_object() || !said.contains("job") || !said["job"].is_string() || !said.contains("worker")) return {};
  Json status = {{"job", plain_text_of(said["job"].get_ref<const std::string&>(), kTextBytesMax)}};
  for (const char* name :
       {"worker", "rounds", "sent_bytes", "received_bytes", "dense_bytes", "residual_norm", "blocked_seconds",
        "communication_seconds", "select_seconds", "encode_seconds", "apply_seconds", "resends", "reconnects"}) {
    const auto found = said.find(name);
    if (found != said.end() && found->is_number() && std::isfinite(found->get<double>())) status[name] = *found;
  }
  return status;
}

}  // namespace

std::string reachable_http(const protocol::ProcessNote& process) {
  const auto http = protocol::parse_host_port(process.http);
  if (!http) return {};
  if (!protocol::is_every_host(http->host)) return process.http;
  const auto address = protocol::parse_host_port(protocol::without_tcp(process.address));
  return address ? protocol::host_port_text(address->host, http->port) : std::string();
}

/// One process to ask, and its answer.
struct ClusterWatch::Question {
  std::string http;
  bool is_self = false;
  Result<std::string> answer = fail(ErrorCode::kUnavailable, "not asked yet");
};

void ClusterWatch::ask_all(std::vector<Question>& questions) {
  std::atomic<size_t> next = 0;
  const auto ask = [&] {
    for (size_t at = next++; at < questions.size() && !ending_.load(); at = next++) {
      Question& one = questions[at];
      const auto silent = silent_.find(one.http);
      try {
        if (one.is_self) {
          one.answer = sources_.own_status();
        } else if (one.http.empty()) {
          one.answer = fail(ErrorCode::kUnavailable, "no HTTP port: give it --http");
        } else if (silent != silent_.end() && monotonic_now_ns() < silent->second.ask_at) {
          one.answer = std::unexpected(silent->second.error);
          one.http.clear();  // not asked
        } else {
          one.answer = sources_.fetch(one.http);
        }
        if (one.answer && one.answer->size() > kStatusBytesMax)
          one.answer = fail(ErrorCode::kLimitExceeded, "left out: its status exceeds 2 MiB");
      } catch (const std::exception&) {  // no memory: the shard continues without this answer
        one.answer = std::unexpected(Error{ErrorCode::kLimitExceeded, "no memory"});
      }
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min(kAskingThreads, questions.size()); ++i) threads.emplace_back(ask);
  ask();
  threads.clear();
  for (const Question& one : questions) {
    if (one.http.empty()) continue;
    silent_.erase(one.http);
    if (!one.answer)
      silent_.insert_or_assign(one.http, Silent{monotonic_now_ns() + kAskAgainAfter, one.answer.error()});
  }
}

ClusterWatch::ClusterWatch(Sources sources) : sources_(std::move(sources)), thread_([this] { run(); }) {}

ClusterWatch::~ClusterWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_.store(true);
  }
  changed_.notify_all();
  thread_.join();
}

std::string ClusterWatch::json() {
  const std::lock_guard lock(mutex_);
  const TimeNs now = monotonic_now_ns();
  asked_ = now;
  changed_.notify_all();
  if (collected_.empty()) return R"({"collecting": true})";
  return fmt::format(R"({{"age_ms": {}, )", (now - collected_at_) / kNsPerMs) + collected_.substr(1);
}

void ClusterWatch::await_collection() {
  std::unique_lock lock(mutex_);
  asked_ = monotonic_now_ns();
  changed_.notify_all();
  changed_.wait(lock, [this] { return !collected_.empty(); });
}

void ClusterWatch::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || (asked_ != 0 && monotonic_now_ns() - asked_ < kWatchedFor); });
    if (ending_) return;
    lock.unlock();
    std::string collected;
    try {
      collected = collect();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory; the next second is another try
    }
    lock.lock();
    if (!collected.empty()) {
      collected_ = std::move(collected);
      collected_at_ = monotonic_now_ns();
    }
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::nanoseconds(kEvery), [this] { return ending_.load(); });
  }
}

Result<protocol::ClusterView> ClusterWatch::read_table() {
  if (!table_) {
    auto table = sources_.open_table();
    if (!table) return std::unexpected(table.error());
    table_ = std::move(*table);
  }
  auto view = table_->read_cluster();
  if (!view) table_.reset();
  return view;
}

std::string ClusterWatch::collect() {
  Json all = {{"shards", Json::array()}, {"spares", Json::array()}, {"workers", Json::array()}};
  Result<protocol::ClusterView> read = read_table();
  if (!read) all["table_problem"] = plain_text_of(read.error().message, kTextBytesMax);
  const protocol::ClusterView view = read.value_or(protocol::ClusterView{});
  std::vector<Question> questions;
  for (const protocol::ClusterView::Shard& shard : view.shards)
    questions.push_back(
        {reachable_http(shard.process), shard.has_process() && shard.entry.address == sources_.own_address});
  for (const std::string& http : sources_.workers) questions.push_back({http});
  ask_all(questions);
  size_t bytes = 0;
  const auto add = [&](const char* list, Json row) {
    const size_t more =
        row.contains("status") ? row["status"].dump(-1, ' ', false, Json::error_handler_t::replace).size() : 0;
    if (bytes + more <= kBytesMax) {
      bytes += more;
    } else {
      row.erase("status");
      row["problem"] = "left out: all statuses exceed 8 MiB";
    }
    all[list].push_back(std::move(row));
  };
  for (uint32_t number = 0; number < view.shards.size(); ++number) {
    const protocol::ClusterView::Shard& shard = view.shards[number];
    Json row = {{"shard", number},
                {"state", state_text(shard.state())},
                {"http", reachable_http(shard.process)},
                {"address", shard.entry.address},
                {"software", shard.process.software}};
    if (shard.has_process()) add_shard_status(row, shard, number, row["http"], questions[number].answer);
    add("shards", std::move(row));
  }
  for (const protocol::ProcessNote& spare : view.spares)
    all["spares"].push_back(
        {{"http", reachable_http(spare)}, {"address", spare.address}, {"software", spare.software}});
  for (size_t at = 0; at < sources_.workers.size(); ++at) {
    const Question& question = questions[view.shards.size() + at];
    Json row = {{"http", sources_.workers[at]}};
    Json status = question.answer ? worker_status(*question.answer) : Json();
    if (!status.is_null()) {
      row["status"] = std::move(status);
    } else {
      row["problem"] = question.answer ? "no status of a worker" : question.answer.error().message;
    }
    add("workers", std::move(row));
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace::server
