#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::monitoring {

/// Longest request line and headers, together.
inline constexpr size_t kHttpHeadBytesMax = 8 * 1024;
/// Longest body of a POST: a sentence for people.
inline constexpr size_t kHttpBodyBytesMax = 4 * 1024;

struct HttpRequest {
  std::string method;
  std::string path;               ///< as it was sent, without the query
  std::string query;              ///< behind the question mark, as it was sent
  std::string host = {};          ///< of "Host: HOST" or "Host: HOST:PORT", as it was sent; empty: none
  std::string token = {};         ///< of "Authorization: Bearer TOKEN"; empty: none
  std::string body = {};          ///< of a POST, by its Content-Length
  bool body_is_too_long = false;  ///< over kHttpBodyBytesMax: `body` is empty
  // The port fills these in.
  std::string reader = {};   ///< the name of the named token; empty: the client may read everything
  std::string address = {};  ///< of the client, as a number
};

/// Collects one request off a connection: its head, and the body of a POST. Other methods have none here. Pure: bytes
/// in, in pieces of any size.
class HttpRequestReader {
 public:
  enum class Progress : uint8_t { kMore, kComplete, kRefused };

  /// Takes the next bytes. Once complete or refused, further bytes change nothing.
  Progress take(std::string_view bytes);
  Progress progress() const { return progress_; }
  /// REQUIRES: complete.
  const HttpRequest& request() const { return request_; }
  /// Returns the status of the answer to a refused request: 400, 411, 414 or 431. REQUIRES: refused.
  int refusal() const { return refusal_; }

 private:
  Progress refuse(int status);
  Progress read_request_line(std::string_view line);
  Progress read_headers(std::string_view headers);
  Progress take_body(std::string_view bytes);

  std::string head_;
  std::optional<size_t> body_bytes_;  ///< once the head is complete
  HttpRequest request_;
  Progress progress_ = Progress::kMore;
  int refusal_ = 0;
};

}  // namespace millrace::monitoring
