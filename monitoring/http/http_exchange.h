#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "monitoring/http/http_request.h"

namespace millrace::monitoring {

/// Limits the peer's time for each part of an exchange, over all its reads and writes.
struct HttpTimeouts {
  TimeNs request = 3 * kNsPerS;  ///< from the connection to the last byte of the request
  TimeNs answer = 10 * kNsPerS;  ///< to take the whole answer
  TimeNs close = 1 * kNsPerS;    ///< to close its end afterwards
};

/// Holds one request and its answer on one connection: the bytes read and to write, and the time limits. Pure: the
/// caller passes bytes and time. A peer that sends single bytes slowly gets no extra time.
class HttpExchange {
 public:
  enum class State : uint8_t {
    kReading,    ///< the request
    kAnswering,  ///< a handler makes the answer; bytes that arrive are discarded
    kWriting,    ///< the answer
    kClosing,    ///< the answer is written; bytes that arrive are discarded until the peer closes its end
    kOver,
  };

  explicit HttpExchange(TimeNs now, const HttpTimeouts& timeouts = {});

  State state() const { return state_; }
  TimeNs began() const { return began_; }
  /// Says whether the peer may send more.
  bool reads() const { return !peer_ended_; }
  /// Returns when on_time() ends the exchange; nothing while a handler makes the answer.
  std::optional<TimeNs> deadline() const;

  /// Takes bytes of the peer. Returns the request, once, when it is complete; the caller must then call answer().
  std::optional<HttpRequest> on_bytes(std::string_view bytes, TimeNs now);
  /// Notes that the peer has closed its end. The peer may still receive an answer.
  void on_end();
  /// Takes the answer, head and body.
  void answer(std::string bytes, TimeNs now);
  /// Returns the bytes of the answer that are still to be written.
  std::string_view unsent() const { return std::string_view(answer_).substr(sent_); }
  void on_sent(size_t bytes, TimeNs now);
  /// Notes that the connection broke.
  void on_broken() { state_ = State::kOver; }
  /// Answers 408 or ends the exchange if its deadline has passed; else does nothing.
  void on_time(TimeNs now);

 private:
  HttpTimeouts timeouts_;
  State state_ = State::kReading;
  TimeNs began_ = 0;
  TimeNs deadline_ = 0;
  HttpRequestReader reader_;
  std::string answer_;
  size_t sent_ = 0;
  bool peer_ended_ = false;
};

/// Returns the exchange to end for another connection: the oldest that reads its request or has sent its answer. If
/// there is no such exchange, the oldest of all. Nothing: there are no exchanges.
std::optional<size_t> exchange_to_end(std::span<const HttpExchange* const> exchanges);

/// Returns the bytes of an answer. The body is left out where the request's method is HEAD.
///
/// headers  lines of their own, each with its line end.
std::string http_answer_bytes(int status, std::string_view method, std::string_view headers, std::string_view body);

}  // namespace millrace::monitoring
