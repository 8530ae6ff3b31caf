#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::monitoring {

/// Holds the functions that make the port's answers. The port calls them on its own threads, at any time, several at
/// once; they must be thread-safe. `unhealthy` and `unready` must not wait: the thread that moves the bytes calls them.
/// One that throws gives an answer 500.
struct HttpHandlers {
  std::function<std::string()> metrics_text;                 ///< Prometheus' text format
  std::function<std::optional<std::string>()> unhealthy;     ///< nothing: healthy; else the reason, one sentence
  std::function<std::optional<std::string>()> unready = {};  ///< the same of readiness; empty: ready while healthy
  std::function<std::string()> status_json;                  ///< one JSON object
  std::string title = "Millrace";                            ///< of the page; any text
};

/// Serves HTTP to people, scrapers and probes. GET and HEAD have these paths:
/// - /metrics   200, Prometheus' text format
/// - /healthz   200 "ok", or 503 and the reason: is the process alive? A supervisor ends one that is not.
/// - /readyz    200 "ready", or 503 and the reason: does it serve? A supervisor waits for one that does not.
/// - /status    200, JSON
/// - /          200, a page that shows /status and follows it
///
/// Other paths get 404, other methods 405. A client can change nothing through it, and it authenticates no client. Bind
/// it to the loopback address or to a network that is trusted to read.
///
/// Limits   32 connections. One more ends the oldest one without an answer under way, otherwise the oldest. One request
///          a connection: 3 s for the whole of it, 10 s to take the whole answer. 8 KiB of request line and headers, no
///          request body. Two threads make /metrics and /status; 32 more such requests wait, further ones get 503.
/// Health   and readiness wait for no other request, and for no other connection.
class HttpPort {
 public:
  /// Connections at a time, and so descriptors.
  static constexpr size_t kConnectionsMax = 32;

  /// Binds and serves until stop() or destruction.
  ///
  /// address   "127.0.0.1:9100", "[::1]:9100", "localhost:9100": every address of the name that is this machine's; port
  ///           0: any free one, see port().
  /// flag      the command line flag that set the address, named in error messages ("--http").
  /// Errors    invalid_argument: not an address. io: in use, or not of this machine.
  static Result<std::unique_ptr<HttpPort>> start(std::string_view address, std::string_view flag,
                                                 HttpHandlers handlers);

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
