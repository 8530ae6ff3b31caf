#include "server/page/shard_page.h"

#include <fmt/format.h>

#include <utility>

#include "monitoring/http/http_client.h"
#include "monitoring/http/secure/tls.h"

namespace millrace::server {
namespace {

/// For each of connecting and the answer. A process that needs longer is shown without its status.
constexpr int kFetchMs = 700;
/// An SQLite table is only read here; a writer holds it for milliseconds.
constexpr uint32_t kPageTableWaitMs = 200;

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
  return LogLine{Severity::kInfo, "SIGHUP: the certificates and the token of HTTP are read again"};
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

Result<std::unique_ptr<monitoring::HttpPort>> ShardPage::open(const std::string& http, const std::string& own_address,
                                                              monitoring::HttpHandlers handlers) {
  auto protection = monitoring::open_http_protection(http, security_);
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
  handlers.more_json["/cluster"] = [this] {
    ClusterWatch* const watch = watch_.load();
    return watch != nullptr ? watch->json() : std::string(R"({"collecting": true})");
  };
  handlers.more_json["/probe"] = probe_json;
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
