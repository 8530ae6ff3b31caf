#include "server/page/shard_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/plain_text.h"
#include "monitoring/http/http_client.h"
#include "monitoring/http/secure/tls.h"
#include "protocol/base/limits.h"
#include "protocol/table/job_end.h"
#include "server/page/job_end_request.h"
#include "server/page/reader_view.h"

namespace millrace::server {
namespace {

/// For each of connecting and the answer. A process that needs longer is shown without its status.
constexpr int kFetchMs = 700;
/// An SQLite table is only read here; a writer holds it for milliseconds.
constexpr uint32_t kPageTableWaitMs = 200;

/// Of each question to etcd when a job is ended. The end of the process waits for four of them at most.
constexpr uint32_t kEndTableWaitMs = 1000;

using monitoring::HttpAnswer;

constexpr int kPageBadRequest = 400;
constexpr int kPageForbidden = 403;
constexpr int kPageNotFound = 404;
constexpr int kPageNotAllowed = 405;
constexpr int kPageTooLarge = 413;
constexpr int kPageUnavailable = 503;

/// Returns an answer of one sentence, which may have a client's text.
HttpAnswer sentence_answer(int status, const std::string& sentence) {
  return {.status = status, .body = plain_text_of(sentence, protocol::kSentenceBytesMax) + "\n"};
}

HttpAnswer json_answer(std::string json) { return {.type = "application/json", .body = std::move(json)}; }

Result<std::string> fetch_status(const std::string& http, const monitoring::HttpCaller* caller) {
  auto reply = monitoring::http_get(http, "/status", kFetchMs, caller);
  if (!reply) return std::unexpected(reply.error());
  constexpr int kOk = 200;
  if (reply->status == kOk) return std::move(reply->body);
  return fail(ErrorCode::kUnavailable, fmt::format("{} answers /status with {}", http, reply->status));
}

/// Returns the answer of /probe: 1 MiB, whose transfer time shows the rate of a path.
std::string probe_json() {
  constexpr size_t kProbeBytes = size_t{1} << 20;
  return R"({"zeros":")" + std::string(kProbeBytes, '0') + R"("})";
}

}  // namespace

std::optional<LogLine> ShardPage::reload() {
  if (security_ == monitoring::HttpSecurityOptions{.insecure = security_.insecure}) return std::nullopt;
  auto caller = monitoring::open_http_caller(security_, workers_);
  // The last step that can fail, so that port and caller change together.
  const Status port = !caller ? std::unexpected(caller.error()) : protection_ ? protection_->reload() : Status{};
  if (!port) return LogLine{Severity::kError, "SIGHUP: " + port.error().message + "; HTTP stays as it is"};
  const std::lock_guard lock(caller_mutex_);
  caller_ = std::move(*caller);
  std::string said = "SIGHUP: the certificates and the token of HTTP are read again";
  const auto readers = protection_ ? protection_->reader_names() : std::vector<std::string>{};
  if (!readers.empty()) said += fmt::format("; {} named tokens: {}", readers.size(), fmt::join(readers, ", "));
  return LogLine{Severity::kInfo, plain_text_of(said, protocol::kSentenceBytesMax)};
}

std::shared_ptr<const monitoring::HttpCaller> ShardPage::caller_now() const {
  const std::lock_guard lock(caller_mutex_);
  return caller_;
}

/// The table's files are read here, as each new connection to etcd reads them.
void ShardPage::update_certificate_ends() const {
  const auto set = [this](const char* flag, int64_t end) {
    certificate_end_time_.with({flag}).set(static_cast<double>(end));
  };
  const auto caller = caller_now();
  if (const auto end = caller ? caller->certificate_end() : std::nullopt) set("http-ca", *end);
  if (!table_.ca_file.empty()) set("table-ca", monitoring::read_certificate_end(table_.ca_file).value_or(0));
  if (!table_.cert_file.empty()) set("table-cert", monitoring::read_certificate_end(table_.cert_file).value_or(0));
}

std::string ShardPage::cluster_json() {
  ClusterWatch* const watch = watch_.load();
  return watch != nullptr ? watch->json() : std::string(R"({"collecting": true})");
}

/// Answers named tokens, and requests for paths below /jobs/.
HttpAnswer ShardPage::answer_reader(const monitoring::HttpRequest& request) {
  if (request.path.starts_with("/jobs/")) return answer_end(request);
  if (request.method != "GET" && request.method != "HEAD") return sentence_answer(kPageNotAllowed, "only GET and HEAD");
  const ShowsJob shows = [&](const std::string& job) {
    return rights_.judge(request.reader, job, ReaderRight::kObserve).has_value();
  };
  if (request.path == "/status") {
    const std::optional<std::string> status = status_shown(own_status_(), shows);
    return status ? json_answer(*status)
                  : sentence_answer(kPageUnavailable, "this process has no number, or its loop is stalled");
  }
  if (request.path == "/cluster") return json_answer(cluster_shown(cluster_json(), shows));
  if (request.path == "/history") return json_answer(history_.json(monotonic_now_ns(), shows));
  if (request.path == "/probe") return json_answer(probe_json());
  if (request.path != "/metrics" && request.path != "/trace" && request.path != "/path")
    return sentence_answer(kPageNotFound, "no such page for a named token: /, /status, /healthz, /readyz");
  return sentence_answer(
      kPageForbidden,
      fmt::format(
          "token '{}' lacks the right to observe the whole cluster, which {} needs: the token in the first line of "
          "--http-token-file has it",
          request.reader, request.path));
}

HttpAnswer ShardPage::answer_end(const monitoring::HttpRequest& request) {
  const std::optional<std::string> job = job_of_end_path(request.path);
  if (!job) return sentence_answer(kPageNotFound, "no such page: POST /jobs/NAME/end ends job NAME, with %XX in names");
  if (request.method != "POST") {
    HttpAnswer answer = sentence_answer(kPageNotAllowed, "only POST");
    answer.allow = "POST";
    return answer;
  }
  if (request.reader.empty()) {
    return sentence_answer(kPageForbidden,
                           "only a named token has the right to end a job: a further line of --http-token-file");
  }
  if (const Status may = rights_.judge(request.reader, *job, ReaderRight::kEnd); !may) {
    (void)rights_.record({.what = AuditEvent::What::kRefuse,
                          .by = {.bytes = {}, .key = {}, .address = request.address},
                          .token = request.reader,
                          .job = *job,
                          .code = std::string(error_code_name(may.error().code)),
                          .sentence = may.error().message});
    return sentence_answer(kPageForbidden, may.error().message);
  }
  if (request.body_is_too_long) {
    return sentence_answer(kPageTooLarge,
                           fmt::format("the reason has more than {} bytes", monitoring::kHttpBodyBytesMax));
  }
  const Result<std::string> reason = reason_of_body(request.body);
  if (!reason) return sentence_answer(kPageBadRequest, reason.error().message);
  return end(*job, *reason, request);
}

/// Ends the job in the table. Each shard finds the end there, as it finds that of `millrace cluster end`.
HttpAnswer ShardPage::end(const std::string& job, const std::string& reason, const monitoring::HttpRequest& request) {
  const std::unique_lock alone(ending_, std::try_to_lock);
  if (!alone) return sentence_answer(kPageUnavailable, "another job is being ended here; try again");
  protocol::TableFlags flags = table_;
  flags.etcd_wait_ms = kEndTableWaitMs;
  const auto table = protocol::open_table(flags);
  if (!table) return sentence_answer(kPageUnavailable, table.error().message);
  const auto open = (*table)->read_job(job);
  if (!open) return sentence_answer(kPageUnavailable, open.error().message);
  HttpAnswer not_open = sentence_answer(kPageNotFound, fmt::format("no job '{}' is open", job));
  if (!*open) return not_open;
  const std::string why =
      fmt::format("token '{}' ended the job{}{}", request.reader, reason.empty() ? "" : ": ", reason);
  const bool is_recorded = rights_.record({.what = AuditEvent::What::kOrder,
                                           .by = {.bytes = {}, .key = {}, .address = request.address},
                                           .token = request.reader,
                                           .job = job,
                                           .sentence = plain_text_of(why, protocol::kSentenceBytesMax)});
  if (!is_recorded)
    return sentence_answer(kPageUnavailable, "the shard's loop is stalled: no job was ended; try again");
  const Result<protocol::JobEnd> ended = protocol::end_job(**table, job, {ErrorCode::kUnavailable, why});
  if (!ended) return sentence_answer(kPageUnavailable, ended.error().message + "; the job may have ended");
  if (*ended == protocol::JobEnd::kNotOpen) return not_open;
  if (*ended == protocol::JobEnd::kChanging)
    return sentence_answer(kPageUnavailable, "the job's membership changes all the time: try again");
  return json_answer(nlohmann::json{{"ended", job}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Result<std::unique_ptr<monitoring::HttpPort>> ShardPage::open(const std::string& http, const std::string& own_address,
                                                              monitoring::HttpHandlers handlers, ReaderRights rights) {
  rights_ = std::move(rights);
  own_status_ = handlers.status_json;
  auto protection = monitoring::open_http_protection(http, security_, monitoring::HttpOptionNames::kFlags,
                                                     monitoring::HttpTokens::kNamed);
  if (!protection) return std::unexpected(protection.error());
  protection_ = std::move(*protection);
  auto caller = monitoring::open_http_caller(security_, workers_);
  if (!caller) return std::unexpected(caller.error());
  caller_ = std::move(*caller);
  ClusterWatch::Sources sources;
  sources.open_table = [this] { return protocol::open_table(table_, kPageTableWaitMs); };
  sources.fetch = [this](const std::string& at) { return fetch_status(at, caller_now().get()); };
  sources.own_address = own_address;
  sources.own_status = handlers.status_json;
  sources.workers = workers_;
  handlers.metrics_text = [this, text = std::move(handlers.metrics_text)] {
    update_certificate_ends();
    return text();
  };
  handlers.more_json["/history"] = [this] { return history_.json(monotonic_now_ns()); };
  handlers.more_json["/cluster"] = [this] { return cluster_json(); };
  handlers.more_json["/probe"] = probe_json;
  handlers.answer_reader = [this](const monitoring::HttpRequest& request) { return answer_reader(request); };
  paths_ = std::make_unique<ShardPaths>(ShardPaths::Sources{
      .open_table = sources.open_table, .caller = [this] { return caller_now(); }, .own_address = own_address});
  handlers.query_json["/path"] = [this](std::string_view query) { return paths_->json(query); };
  auto port = monitoring::HttpPort::start(http, "--http", std::move(handlers), protection_);
  if (!port) return port;
  owned_watch_ = std::make_unique<ClusterWatch>(std::move(sources));
  watch_.store(owned_watch_.get());
  return port;
}

}  // namespace millrace::server
