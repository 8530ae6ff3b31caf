#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::monitoring {

/// Longest request line and headers, together.
inline constexpr size_t kHttpHeadBytesMax = 8 * 1024;

struct HttpRequest {
  std::string method;
  std::string path;        ///< as it was sent, without the query
  std::string query;       ///< behind the question mark, as it was sent
  std::string token = {};  ///< of "Authorization: Bearer TOKEN"; empty: none
};

/// Collects the head of one request off a connection. Pure: bytes in, in pieces of any size.
class HttpRequestReader {
 public:
  enum class Progress : uint8_t { kMore, kComplete, kRefused };

  /// Takes the next bytes. Once complete or refused, further bytes change nothing.
  Progress take(std::string_view bytes);
  Progress progress() const { return progress_; }
  /// REQUIRES: complete.
  const HttpRequest& request() const { return request_; }
  /// Returns the status of the answer to a refused request: 400, 414 or 431. REQUIRES: refused.
  int refusal() const { return refusal_; }

 private:
  Progress refuse(int status);
  Progress read_request_line(std::string_view line);

  std::string head_;
  HttpRequest request_;
  Progress progress_ = Progress::kMore;
  int refusal_ = 0;
};

}  // namespace millrace::monitoring
