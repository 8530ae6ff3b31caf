#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "monitoring/http_request.h"

namespace millrace::monitoring {

/// How long a peer may take for each part of an exchange, over all its reads and writes.
struct HttpPatience {
  TimeNs request = 3 * kNsPerS;  ///< from the connection to the last byte of the request's head
  TimeNs answer = 10 * kNsPerS;  ///< to take the whole answer
  TimeNs goodbye = 1 * kNsPerS;  ///< to close its end afterwards
};

/// One request and its answer on one connection: what is read, what is written, and until when. Pure: bytes and time are
/// handed in. A peer that sends a byte now and then gains no time by it.
class HttpExchange {
 public:
  enum class State : uint8_t {
    kReading,    ///< the request's head
    kAnswering,  ///< somebody makes the answer; what comes is discarded
    kWriting,    ///< the answer
    kClosing,    ///< all is written: until the peer closes its end, what comes is discarded
    kOver,
  };

  explicit HttpExchange(TimeNs now, const HttpPatience& patience = {});

  State state() const { return state_; }
  TimeNs began() const { return began_; }
  /// The peer may send more.
  bool reads() const { return !peer_ended_; }
  /// When on_time() ends the exchange; nothing while somebody makes the answer.
  std::optional<TimeNs> deadline() const;

  /// Takes what the peer sent. Returns the request, once, when it is complete; an answer() is owed then.
  std::optional<HttpRequest> on_bytes(std::string_view bytes, TimeNs now);
  /// The peer has closed its end: it may still take an answer that is made or written.
  void on_end();
  /// The answer, head and body.
  void answer(std::string bytes, TimeNs now);
  /// What of the answer is to be written.
  std::string_view unsent() const { return std::string_view(answer_).substr(sent_); }
  void on_sent(size_t bytes, TimeNs now);
  /// The connection broke.
  void on_broken() { state_ = State::kOver; }
  /// The deadline has passed, or has not.
  void on_time(TimeNs now);

 private:
  HttpPatience patience_;
  State state_ = State::kReading;
  TimeNs began_ = 0;
  TimeNs deadline_ = 0;
  HttpRequestReader reader_;
  std::string answer_;
  size_t sent_ = 0;
  bool peer_ended_ = false;
};

/// Returns which exchange makes room for another connection: the oldest whose request is not whole, or whose answer is; where
/// there is none, the oldest. Nothing: there are none.
std::optional<size_t> exchange_to_end(std::span<const HttpExchange* const> exchanges);

/// Returns the bytes of an answer. The body is left out where the request's method is HEAD.
///
/// headers  lines of their own, each with its line end.
std::string http_answer_bytes(int status, std::string_view method, std::string_view headers, std::string_view body);

}  // namespace millrace::monitoring
