#include "worker/cluster_status/end_over_http.h"

#include <fmt/format.h>

#include "kernels/base/plain_text.h"
#include "protocol/base/limits.h"
#include "worker/program/json_text.h"

namespace millrace::cluster_status {

using program::ExitCode;
using program::fail_with;

namespace {

/// The shard's table may keep its answer waiting.
constexpr int kEndAnswerMs = 60'000;

}  // namespace

std::string end_path(std::string_view job) {
  constexpr std::string_view kUnreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string path = "/jobs/";
  for (const char c : job) {
    if (kUnreserved.contains(c)) {
      path += c;
    } else {
      path += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return path + "/end";
}

program::Outcome end_over_http(const std::string& address, std::string_view job, std::string_view reason,
                               const monitoring::HttpCaller* caller) {
  const std::string text = plain_text_of(reason, protocol::kSentenceBytesMax);
  const std::string body = text.empty() ? std::string() : program::json_text({{"reason", text}});
  const auto reply = monitoring::http_post(address, end_path(job), body, kEndAnswerMs, caller);
  if (!reply) return fail_with(reply.error());
  constexpr int kOk = 200;
  constexpr int kNotFound = 404;
  constexpr int kInternalError = 500;
  if (reply->status == kOk) return {};
  const std::string_view sentence = std::string_view(reply->body).substr(0, reply->body.find('\n'));
  const ExitCode code = reply->status == kNotFound        ? ExitCode::kUsage
                        : reply->status >= kInternalError ? ExitCode::kUnreachable
                                                          : ExitCode::kRefused;
  return fail_with(code, fmt::format("{} answers with {}: {}", address, reply->status,
                                     plain_text_of(sentence, protocol::kSentenceBytesMax)));
}

}  // namespace millrace::cluster_status
