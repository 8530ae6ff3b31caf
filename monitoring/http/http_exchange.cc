#include "monitoring/http/http_exchange.h"

#include <utility>

namespace millrace::monitoring {
namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Unknown";
  }
}

constexpr std::string_view kPlainHeader = "Content-Type: text/plain; charset=utf-8\r\n";

}  // namespace

HttpExchange::HttpExchange(TimeNs now, const HttpTimeouts& timeouts)
    : timeouts_(timeouts), began_(now), deadline_(now + timeouts.request) {}

std::optional<TimeNs> HttpExchange::deadline() const {
  if (state_ == State::kAnswering) return std::nullopt;
  return deadline_;
}

std::optional<HttpRequest> HttpExchange::on_bytes(std::string_view bytes, TimeNs now) {
  if (state_ != State::kReading) return std::nullopt;
  switch (reader_.take(bytes)) {
    case HttpRequestReader::Progress::kMore: return std::nullopt;
    case HttpRequestReader::Progress::kComplete: state_ = State::kAnswering; return reader_.request();
    case HttpRequestReader::Progress::kRefused: break;
  }
  answer(http_answer_bytes(reader_.refusal(), "GET", kPlainHeader, "this is no request that the port knows\n"), now);
  return std::nullopt;
}

void HttpExchange::on_end() {
  peer_ended_ = true;
  if (state_ == State::kReading || state_ == State::kClosing) state_ = State::kOver;
}

void HttpExchange::answer(std::string bytes, TimeNs now) {
  if (state_ == State::kOver) return;
  answer_ = std::move(bytes);
  sent_ = 0;
  state_ = State::kWriting;
  deadline_ = now + timeouts_.answer;
}

void HttpExchange::on_sent(size_t bytes, TimeNs now) {
  sent_ += bytes;
  if (state_ != State::kWriting || sent_ < answer_.size()) return;
  state_ = peer_ended_ ? State::kOver : State::kClosing;
  deadline_ = now + timeouts_.close;
}

void HttpExchange::on_time(TimeNs now) {
  if (state_ == State::kAnswering || state_ == State::kOver || now < deadline_) return;
  if (state_ != State::kReading) {
    state_ = State::kOver;
    return;
  }
  constexpr int kRequestTimeout = 408;
  answer(http_answer_bytes(kRequestTimeout, "GET", kPlainHeader, "the request did not come within its time\n"), now);
  deadline_ = now + timeouts_.close;
}

std::optional<size_t> exchange_to_end(std::span<const HttpExchange* const> exchanges) {
  std::optional<size_t> waits;
  std::optional<size_t> answered;
  for (size_t at = 0; at < exchanges.size(); ++at) {
    const HttpExchange::State state = exchanges[at]->state();
    const bool is_answered = state == HttpExchange::State::kAnswering || state == HttpExchange::State::kWriting;
    std::optional<size_t>& oldest = is_answered ? answered : waits;
    if (!oldest || exchanges[at]->began() < exchanges[*oldest]->began()) oldest = at;
  }
  return waits ? waits : answered;
}

std::string http_answer_bytes(int status, std::string_view method, std::string_view headers, std::string_view body) {
  std::string bytes = "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason_phrase(status)) + "\r\n";
  bytes += headers;
  bytes += "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  if (method != "HEAD") bytes += body;
  return bytes;
}

}  // namespace millrace::monitoring
