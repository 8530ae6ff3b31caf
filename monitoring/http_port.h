#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::monitoring {

/// What the port shows. Each is called on the port's own threads, at any time, by more than one at once; they must be
/// thread-safe and quick. One that throws gives an answer 500.
struct HttpHandlers {
  std::function<std::string()> metrics_text;              ///< Prometheus' text format
  std::function<std::optional<std::string>()> unhealthy;  ///< nothing: healthy; else the reason, one sentence
  std::function<std::string()> status_json;               ///< one JSON object
  std::string title = "Millrace";                         ///< of the page; any text
};

/// A small HTTP port for people, scrapers and probes. GET and HEAD of
///   /metrics   200, Prometheus' text format
///   /healthz   200 "ok", or 503 and the reason
///   /status    200, JSON
///   /          200, a page that shows /status and follows it
/// and 404 for other paths, 405 for other methods. Nothing can be changed through it, and it asks nobody who they are: it
/// belongs on the loopback address or in a network that is trusted to read.
///
/// Limits   two threads, 16 connections waiting (more wait in the system's backlog), one request a connection, 1 s
///          until it begins, 2 s for each read and write, 8 KiB a request line or header, no request body.
class HttpPort {
 public:
  /// Binds and serves until stop() or destruction.
  ///
  /// address   "127.0.0.1:9100", "[::1]:9100"; port 0: any free one, see port().
  /// flag      the command line flag that set the address, named in error messages ("--http").
  /// Errors    invalid_argument: not an address. io: in use, or not of this machine.
  static Result<std::unique_ptr<HttpPort>> start(std::string_view address, std::string_view flag,
                                                 HttpHandlers handlers);

  ~HttpPort();
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  /// The port that is listened on.
  uint16_t port() const;

  /// Stops accepting, finishes the requests that run and joins the threads. A peer that sends nothing holds it up for the
  /// read timeout at most. Once is enough; further calls do nothing.
  void stop();

 private:
  struct Impl;
  explicit HttpPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::monitoring
