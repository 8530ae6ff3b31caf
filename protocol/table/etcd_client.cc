#include "protocol/table/etcd_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/plain_text.h"

namespace millrace::protocol {
namespace {

/// Most bytes of an answer: a map of 1,024 shards and a job's specification of 4 MiB fit, in base64.
constexpr size_t kAnswerBytesMax = size_t{16} << 20;
constexpr size_t kReasonBytesMax = 400;
constexpr size_t kSaidBytesMax = 120;
/// Longest time for one member where there are others. It leaves time for them.
constexpr TimeNs kAttemptMax = kNsPerS;
constexpr TimeNs kAttemptMin = 20 * kNsPerMs;
/// Pause after all members have refused, for a leader to be elected.
constexpr int kRoundPauseMs = 10;

// Codes of gRPC, in the gateway's answers.
constexpr int64_t kGrpcInvalidArgument = 3;
constexpr int64_t kGrpcDeadlineExceeded = 4;
constexpr int64_t kGrpcResourceExhausted = 8;
constexpr int64_t kGrpcUnavailable = 14;
constexpr int64_t kGrpcUnauthenticated = 16;

/// The beginning of an answer of a method with a stream. Its HTTP status may be 200.
constexpr std::string_view kStreamError = R"({"error":)";
/// Statuses of a server that may answer a moment later: too many requests, and those of a proxy before etcd.
constexpr auto kPassingStatuses = std::to_array<long>({429, 500, 502, 503, 504});

size_t take_answer(const char* data, size_t size, size_t count, void* to) {
  auto& answer = *static_cast<std::string*>(to);
  if (answer.size() + size * count > kAnswerBytesMax) return 0;  // curl reports a write error
  answer.append(data, size * count);
  return size * count;
}

/// Returns whether the user has to log in again. etcd refuses each of these before it applies anything. It calls a JSON
/// Web Token old after every change of its users and roles; versions 3.4 and 3.5 have different sentences for that.
bool is_login_over(int64_t grpc, std::string_view said) {
  return grpc == kGrpcUnauthenticated || said.contains("invalid auth token") ||
         said.contains("revision of auth store is old") || said.contains("auth: revision in header is old");
}

void begin_curl() {
  static std::once_flag once;
  std::call_once(once, [] { MILLRACE_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

const char* scheme_of(const EtcdOptions& options) { return options.ca_file.empty() ? "http" : "https"; }

}  // namespace

struct EtcdConnection {
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  curl_slist* connect_to = nullptr;
  char reason[CURL_ERROR_SIZE] = {};

  explicit EtcdConnection(const EtcdOptions& options) {
    MILLRACE_CHECK(!options.endpoints.empty());
    begin_curl();
    easy = curl_easy_init();
    MILLRACE_CHECK(easy != nullptr);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");  // no proxy of the environment: etcd is asked directly
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, 60L);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, 86'400L);  // A new connection needs a lookup of the name.
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason);
    if (!options.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_file.c_str());
    // The default is the folder of the system's authorities, and from libcurl 8.17 on NULL means that default.
    MILLRACE_CHECK(curl_easy_setopt(easy, CURLOPT_CAPATH, "/dev/null") == CURLE_OK);
    // Otherwise libcurl may keep the file's authorities for a day.
    curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);
    if (!options.cert_file.empty()) curl_easy_setopt(easy, CURLOPT_SSLCERT, options.cert_file.c_str());
    if (!options.key_file.empty()) curl_easy_setopt(easy, CURLOPT_SSLKEY, options.key_file.c_str());
    set_headers({});
  }
  ~EtcdConnection() {
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    curl_slist_free_all(connect_to);
  }
  EtcdConnection(const EtcdConnection&) = delete;
  EtcdConnection& operator=(const EtcdConnection&) = delete;

  void set_headers(const std::string& token) {
    curl_slist_free_all(std::exchange(headers, nullptr));
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");  // curl would wait for "100 Continue" before a large body
    if (!token.empty()) headers = curl_slist_append(headers, ("Authorization: " + token).c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  }

  /// REQUIRES: the body stays until the request has ended.
  void set_request(const std::string& url, const std::string& body) {
    reason[0] = '\0';
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.c_str());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  }

  /// Connects to that address from now on, and expects the certificate of the URL's host there.
  void set_address(const std::string& address) {
    curl_slist_free_all(std::exchange(connect_to, nullptr));
    connect_to = curl_slist_append(connect_to, ("::" + address).c_str());  // of every host and port
    curl_easy_setopt(easy, CURLOPT_CONNECT_TO, connect_to);
  }

  /// Returns the other end of the last connection, as "ADDRESS:PORT"; empty: unknown.
  std::string address() const {
    const char* ip = nullptr;
    long port = 0;
    curl_easy_getinfo(easy, CURLINFO_PRIMARY_IP, &ip);
    curl_easy_getinfo(easy, CURLINFO_PRIMARY_PORT, &port);
    if (ip == nullptr || *ip == '\0') return {};
    return std::string_view(ip).contains(':') ? fmt::format("[{}]:{}", ip, port) : fmt::format("{}:{}", ip, port);
  }
};

/// How one attempt at one member ended.
struct EtcdClient::Attempt {
  enum class Kind : uint8_t {
    kAnswered,
    kRefused,   ///< no other attempt would end otherwise
    kNotSent,   ///< has not taken effect
    kNoAnswer,  ///< may have taken effect
    kStranger,  ///< the user's token is not valid (any more)
  };
  Kind kind = Kind::kNoAnswer;
  std::string answer;
  Error error = {};
  /// It made a connection. On one that broke before any answer, curl sends the request again by itself.
  bool connected = false;
};

/// The meaning of a refusal by etcd.
struct EtcdClient::Refused {
  Attempt::Kind kind;
  ErrorCode code;
  const char* remedy = "";
};

EtcdClient::EtcdClient(EtcdOptions options, std::shared_ptr<EtcdHealth> health, NameLookups lookups)
    : options_(std::move(options)),
      health_(std::move(health)),
      connection_(std::make_unique<EtcdConnection>(options_)) {
  CURL* easy = connection_->easy;
  // Otherwise a call that has timed out waits until the system's lookup is over, and that takes up to a minute.
  if (lookups == NameLookups::kLeftBehind) MILLRACE_CHECK(curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer);
}

EtcdClient::~EtcdClient() = default;

EtcdClient::Attempt EtcdClient::post(const std::string& endpoint, const char* path, const std::string& body,
                                     TimeNs limit) {
  using Kind = Attempt::Kind;
  Attempt attempt;
  const long limit_ms = static_cast<long>(std::max<TimeNs>(limit / kNsPerMs, 1));
  CURL* easy = connection_->easy;
  connection_->set_request(fmt::format("{}://{}{}", scheme_of(options_), endpoint, path), body);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, limit_ms);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, limit_ms);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &attempt.answer);
  const CURLcode code = curl_easy_perform(easy);
  const auto failed = [&](Kind kind, ErrorCode error, std::string_view why) {
    attempt.kind = kind;
    attempt.error = {error, fmt::format("etcd at {}: {}", endpoint, plain_text_of(why, kReasonBytesMax))};
    return attempt;
  };
  const char* why = connection_->reason[0] != '\0' ? connection_->reason : curl_easy_strerror(code);
  switch (code) {
    case CURLE_OK: break;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT: return failed(Kind::kNotSent, ErrorCode::kTimeout, why);
    case CURLE_SSL_CONNECT_ERROR: return failed(Kind::kNotSent, ErrorCode::kIo, why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
      return failed(Kind::kNotSent, ErrorCode::kIo,
                    fmt::format("{}; check --table-ca, --table-cert, --table-key", why));
    default: return failed(Kind::kNoAnswer, ErrorCode::kTimeout, why);
  }
  long status = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  long connections = 0;
  curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &connections);
  attempt.connected = connections > 0;
  const std::optional<GatewayError> refusal =
      status != 200 || attempt.answer.starts_with(kStreamError) ? gateway_error_in(attempt.answer) : std::nullopt;
  if (refusal) {
    const Refused refused = judge_refusal(*refusal);
    return failed(refused.kind, refused.code, refusal->sentence + refused.remedy);
  }
  if (status == 200) {
    attempt.kind = Kind::kAnswered;
    return attempt;
  }
  // The words of a proxy. The member that it could not reach in time may have the request.
  const bool passing = std::ranges::find(kPassingStatuses, status) != kPassingStatuses.end();
  return failed(passing ? Kind::kNoAnswer : Kind::kRefused, passing ? ErrorCode::kTimeout : ErrorCode::kMalformed,
                fmt::format("HTTP status {} without an error of etcd's JSON gateway ({}){}", status,
                            std::string_view(attempt.answer).substr(0, kSaidBytesMax),
                            passing ? ""
                                    : "; give client ports of etcd 3.4 or later, --table-ca if they use TLS, and a "
                                      "certificate without a common name"));
}

EtcdClient::Refused EtcdClient::judge_refusal(const GatewayError& refusal) {
  using Kind = Attempt::Kind;
  const std::string& said = refusal.sentence;
  if (is_login_over(refusal.code, said)) return {Kind::kStranger, ErrorCode::kIo};
  if (said.contains("request is too large") || said.contains("larger than max"))
    return {Kind::kRefused, ErrorCode::kLimitExceeded, "; raise etcd's --max-request-bytes"};
  if (said.contains("database space exceeded"))
    return {Kind::kRefused, ErrorCode::kIo, "; compact and defragment etcd, then disarm its alarm"};
  // No leader, leader changed, request timed out, too many requests: etcd may have passed the request on.
  if (refusal.code == kGrpcUnavailable || refusal.code == kGrpcDeadlineExceeded ||
      refusal.code == kGrpcResourceExhausted)
    return {Kind::kNoAnswer, ErrorCode::kTimeout};
  if (said.contains("permission denied") || said.contains("authentication failed") ||
      said.contains("user name is empty"))
    return {Kind::kRefused, ErrorCode::kIo, "; check --table-user and the rights of its roles"};
  if (refusal.code == kGrpcInvalidArgument) return {Kind::kRefused, ErrorCode::kIo};
  return {Kind::kNoAnswer, ErrorCode::kTimeout};
}

EtcdClient::Attempt EtcdClient::authenticate(const std::string& endpoint, TimeNs limit) {
  token_.clear();
  connection_->set_headers({});
  Attempt attempt = post(endpoint, "/v3/auth/authenticate",
                         json_of_texts("name", options_.user, "password", options_.password), limit);
  if (attempt.kind == Attempt::Kind::kNoAnswer) attempt.kind = Attempt::Kind::kNotSent;
  if (attempt.kind != Attempt::Kind::kAnswered) return attempt;
  token_ = text_in_json(attempt.answer, "token");
  connection_->set_headers(token_);
  return attempt;
}

EtcdClient::Attempt EtcdClient::post_authentic(const std::string& endpoint, const char* path, const std::string& body,
                                               TimeNs limit) {
  if (options_.user.empty()) return post(endpoint, path, body, limit);
  const TimeNs until = monotonic_now_ns() + limit;
  for (bool again : {true, false}) {
    if (token_.empty()) {
      Attempt asked = authenticate(endpoint, until - monotonic_now_ns());
      if (asked.kind != Attempt::Kind::kAnswered) return asked;
    }
    Attempt attempt = post(endpoint, path, body, until - monotonic_now_ns());
    if (attempt.kind != Attempt::Kind::kStranger || !again) return attempt;
    token_.clear();  // it has expired or is old, or the member has started again
  }
  MILLRACE_CHECK(false);
  return {};
}

Result<std::string> EtcdClient::post_until(const char* path, const std::string& body, TimeNs deadline, bool& repeated) {
  using Kind = Attempt::Kind;
  repeated = false;
  const size_t members = options_.endpoints.size();
  Error why;
  for (size_t tried = 0;; ++tried) {
    const TimeNs now = monotonic_now_ns();
    const TimeNs left = deadline - now;
    if (tried > 0 && left <= 0) break;
    const size_t endpoint = health_->endpoint.load() % members;
    const TimeNs limit = members == 1 ? left : std::clamp(left / 2, std::min(left, kAttemptMin), kAttemptMax);
    Attempt attempt = post_authentic(options_.endpoints[endpoint], path, body, limit);
    if (attempt.kind == Kind::kAnswered) {
      health_->asked_at.store(now);
      peer_ = EtcdPeer{endpoint, connection_->address(), token_};
      repeated = repeated || attempt.connected;
      return std::move(attempt.answer);
    }
    // An earlier attempt may have taken effect nevertheless.
    if (attempt.kind == Kind::kRefused || attempt.kind == Kind::kStranger) {
      if (repeated) attempt.error.code = ErrorCode::kTimeout;
      return std::unexpected(std::move(attempt.error));
    }
    repeated = repeated || attempt.kind == Kind::kNoAnswer;
    // A reason that names a remedy is kept, and not replaced by a later time-out.
    if (tried == 0 || why.code != ErrorCode::kIo) why = std::move(attempt.error);
    size_t failed = endpoint;
    health_->endpoint.compare_exchange_strong(failed, (endpoint + 1) % members);
    const bool all_failed = (tried + 1) % members == 0;
    if (all_failed && deadline - monotonic_now_ns() > kRoundPauseMs * kNsPerMs) ::poll(nullptr, 0, kRoundPauseMs);
  }
  health_->failed_at.store(monotonic_now_ns());
  return fail(ErrorCode::kTimeout,
              fmt::format("{}{}", why.message, members == 1 ? "" : ", nor did the other members answer"));
}

Result<EtcdClient::Answer> EtcdClient::transact(const EtcdTransaction& transaction, TimeNs deadline) {
  Answer answer;
  const Result<std::string> text = post_until("/v3/kv/txn", transaction.json(), deadline, answer.repeated);
  if (!text) return std::unexpected(text.error());
  Result<EtcdAnswer> parsed = parse_etcd_answer(*text);
  if (!parsed) return std::unexpected(parsed.error());
  answer.etcd = std::move(*parsed);
  return answer;
}

Result<std::string> EtcdClient::call(const char* path, const std::string& body, TimeNs deadline) {
  bool repeated = false;
  return post_until(path, body, deadline, repeated);
}

struct EtcdWatch::Multi {
  CURLM* multi = curl_multi_init();
  Multi() { MILLRACE_CHECK(multi != nullptr); }
  ~Multi() { curl_multi_cleanup(multi); }
  Multi(const Multi&) = delete;
  Multi& operator=(const Multi&) = delete;
};

EtcdWatch::EtcdWatch(const EtcdOptions& options, std::string_view key)
    : scheme_(scheme_of(options)),
      endpoints_(options.endpoints),
      request_(json_of_watch(key)),
      connection_(std::make_unique<EtcdConnection>(options)),
      multi_(std::make_unique<Multi>()) {
  CURL* easy = connection_->easy;
  curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);  // a stream's connection ends with it
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
}

EtcdWatch::~EtcdWatch() { end(); }

void EtcdWatch::begin(const EtcdPeer& peer) {
  MILLRACE_CHECK(state_ == State::kNone && peer.endpoint < endpoints_.size(), peer.endpoint, endpoints_.size());
  endpoint_ = peer.endpoint;
  connection_->set_request(fmt::format("{}://{}/v3/watch", scheme_, endpoints_[endpoint_]), request_);
  connection_->set_headers(peer.token);
  connection_->set_address(peer.address);
  if (curl_multi_add_handle(multi_->multi, connection_->easy) != CURLM_OK) return;
  state_ = State::kBegun;
  began_ = monotonic_now_ns();
}

void EtcdWatch::end() {
  if (state_ == State::kNone) return;
  curl_multi_remove_handle(multi_->multi, connection_->easy);  // closes its socket, too
  state_ = State::kNone;
  line_.clear();
  has_news_ = true;
}

void EtcdWatch::take_news() {
  has_news_ = false;
  news_bytes_ = line_.size();
}

void EtcdWatch::stop() {
  stopped_.store(true);
  curl_multi_wakeup(multi_->multi);
}

void EtcdWatch::wait(TimeNs until) {
  for (;;) {
    drive();
    const TimeNs left = until - monotonic_now_ns();
    if (has_news_ || left <= 0 || stopped_.load()) return;
    const auto left_ms = static_cast<int>(std::min<TimeNs>(left / kNsPerMs + 1, kOpenMax / kNsPerMs));
    if (curl_multi_poll(multi_->multi, nullptr, 0, left_ms, nullptr) == CURLM_OK) continue;
    end();
    has_news_ = true;  // the system refuses: the caller must not ask again at once
  }
}

/// Reads the bytes that have come, without a wait.
void EtcdWatch::drive() {
  if (state_ == State::kNone) return;
  int streams = 0;
  const bool runs = curl_multi_perform(multi_->multi, &streams) == CURLM_OK && streams > 0;
  const bool late = state_ == State::kBegun && monotonic_now_ns() - began_ > kOpenMax;
  if (!runs || late) end();
}

size_t EtcdWatch::take_bytes(const char* data, size_t size, size_t count, void* to) {
  const std::string_view bytes(data, size * count);
  return static_cast<EtcdWatch*>(to)->take(bytes) ? bytes.size() : 0;  // 0: curl ends the stream
}

bool EtcdWatch::take(std::string_view bytes) {
  news_bytes_ += bytes.size();
  if (news_bytes_ > kNewsBytesMax) return false;
  line_ += bytes;
  for (size_t end = line_.find('\n'); end != std::string::npos; end = line_.find('\n')) {
    if (!is_watch_message(std::string_view(line_).substr(0, end))) return false;
    line_.erase(0, end + 1);
    state_ = State::kOpen;
    has_news_ = true;
  }
  return true;
}

}  // namespace millrace::protocol
