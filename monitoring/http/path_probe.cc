#include "monitoring/http/path_probe.h"

#include "monitoring/http/http_client.h"

namespace millrace::monitoring {

TransferFacts fetch_probe(const std::string& http, int times, int timeout_ms, const HttpCaller* caller) {
  constexpr int kOk = 200;
  TransferFacts facts;
  const TimeNs limit = TimeNs{timeout_ms} * kNsPerMs;
  const TimeNs deadline = monotonic_now_ns() + limit;
  for (int request = 0; request < times && (request == 0 || monotonic_now_ns() < deadline); ++request) {
    const TimeNs asked = monotonic_now_ns();
    const auto reply = http_get(http, "/probe", timeout_ms, caller);
    const TimeNs took = monotonic_now_ns() - asked;
    if (!reply && took >= limit && facts.bytes == 0) facts.late = took;
    if (!reply || reply->status != kOk) {
      // A later one that fails does not take the first one's figure away.
      if (facts.bytes == 0 && facts.late == 0)
        facts.trouble = reply ? "it answers /probe with " + std::to_string(reply->status) : reply.error().message;
      return facts;
    }
    if (request == 0 || took < facts.best) facts.best = took;
    facts.bytes = reply->body.size();
  }
  return facts;
}

}  // namespace millrace::monitoring
