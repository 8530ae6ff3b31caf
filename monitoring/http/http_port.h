#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "monitoring/http/http_protection.h"
#include "monitoring/http/http_request.h"

namespace millrace::monitoring {

struct HttpAnswer {
  int status = 200;
  std::string_view type = "text/plain; charset=utf-8";  ///< static storage
  std::string body = {};
  std::string_view allow = "GET, HEAD";  ///< of an answer 405: the methods that the path has
};

/// Holds the functions that make the port's answers. The port calls them on its own threads, at any time, several at
/// once; they must be thread-safe. `unhealthy` and `unready` must not wait: the thread that moves the bytes calls them.
/// One that throws gives an answer 500.
struct HttpHandlers {
  std::function<std::string()> metrics_text;                 ///< Prometheus' text format
  std::function<std::optional<std::string>()> unhealthy;     ///< nothing: healthy; else the reason, one sentence
  std::function<std::optional<std::string>()> unready = {};  ///< the same of readiness; empty: ready while healthy
  std::function<std::string()> status_json;                  ///< one JSON object
  /// Spans of this process (monitoring/trace/trace_answer.h); invalid_argument: a wrong query. Empty: no such path.
  std::function<Result<std::string>(std::string_view query)> trace_json = {};
  std::string title = "Millrace";  ///< of the page; any text
  /// Answers requests with a named token, but not those for health and the page at /. Answers paths below /jobs/ for
  /// every client that may read the port, too. Empty: the port has no named tokens, and nothing is below /jobs/.
  std::function<HttpAnswer(const HttpRequest&)> answer_reader = {};
  /// Further paths, each with the function that makes its JSON object.
  std::map<std::string, std::function<std::string()>, std::less<>> more_json = {};
  /// Further paths with a query. Errors of their functions as of trace_json.
  std::map<std::string, std::function<Result<std::string>(std::string_view query)>, std::less<>> query_json = {};
};

/// Serves HTTP to people, scrapers and probes. GET and HEAD have these paths:
/// - /metrics   200, Prometheus' text format
/// - /healthz   200 "ok", or 503 and the reason: is the process alive? A supervisor ends one that is not.
/// - /readyz    200 "ready", or 503 and the reason: does it serve? A supervisor waits for one that does not.
/// - /status    200, JSON
/// - /trace     200, JSON: the timeline; 400 or 503 and the reason
/// - /          200, a page for people (status_page.h)
/// - further paths of `more_json`: 200, JSON
/// - further paths of `query_json`: 200, JSON; 400 or 503 and the reason
/// - paths below /jobs/: the answer of `answer_reader`, which may take other methods
///
/// /metrics has the port's own metrics (http_metric_infos()) after those of its program.
///
/// Other paths get 404, other methods 405. A client can change nothing through it but the recording of spans, and what
/// `answer_reader` changes.
///
/// A port with an HttpProtection speaks TLS, or answers 401 to a request without one of its tokens, or both. Then
/// /healthz and /readyz need no token, and give no reason without the port's own. The page at / needs none either, and
/// has no number of this process. A port without protection authenticates no client: bind it to the loopback address or
/// to a network that is trusted to read. A port at loopback without a token answers 403 where the header Host names
/// another host than a loopback number or localhost. A browser sends the name of the site whose page asks.
///
/// Limits   32 connections. One more ends the oldest one without an answer under way, otherwise the oldest. One request
///          a connection: 3 s for the handshake and the whole of it, 10 s to take the whole answer. 8 KiB of request
///          line and headers, kHttpBodyBytesMax of a POST's body. Two threads make /metrics, /status, /trace, further
///          paths and the answers of `answer_reader`; 32 such requests wait, more get 503.
/// Health   and readiness wait for no other request. They wait for the handshakes of TLS: some ms of computation for
///          each of at most 32 connections.
class HttpPort {
 public:
  /// Connections at a time, and so descriptors.
  static constexpr size_t kConnectionsMax = 32;

  /// Binds and serves until stop() or destruction.
  ///
  /// address   "127.0.0.1:9100", "[::1]:9100", "localhost:9100": every address of the name that is this machine's; port
  ///           0: any free one, see port().
  /// flag      the command line flag that set the address, named in error messages ("--http").
  /// protection  nullptr: none.
  /// Errors    invalid_argument: not an address. io: in use, or not of this machine.
  static Result<std::unique_ptr<HttpPort>> start(std::string_view address, std::string_view flag, HttpHandlers handlers,
                                                 std::shared_ptr<HttpProtection> protection = nullptr);

  ~HttpPort();
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  /// Returns the number of the listening port.
  uint16_t port() const;
  /// Returns the address that start() was given, with the number of the listening port.
  std::string address() const;

  /// Stops accepting, finishes the answers that are under way within a second, and joins the threads. Once is enough;
  /// further calls do nothing.
  void stop();

 private:
  class Impl;
  HttpPort(std::unique_ptr<Impl> impl, std::string host);
  std::unique_ptr<Impl> impl_;
  std::string host_;
};

}  // namespace millrace::monitoring
