#include "server/access/audit_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

namespace millrace::server {

std::string_view audit_word(AuditEvent::What what) {
  using enum AuditEvent::What;
  switch (what) {
    case kStart: return "start";
    case kStop: return "stop";
    case kJoin: return "join";
    case kLeave: return "leave";
    case kEnd: return "end";
    case kRefuse: return "refuse";
    case kEvict: return "evict";
    case kReload: return "reload";
    case kClose: return "close";
    case kOrder: return "order";
    case kKeyEnd: return "key_end";
    case kDrain: return "drain";
    case kTakeOver: return "take_over";
  }
  return "unknown";
}

std::string audit_line(const AuditEvent& event, const std::string& key_name, std::optional<uint32_t> shard,
                       const AuditGap& gap, int64_t wall_ms) {
  const std::time_t seconds = wall_ms / 1'000;
  nlohmann::ordered_json line = {
      {"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), wall_ms % 1'000)},
      {"event", audit_word(event.what)}};
  if (shard) line["shard"] = *shard;
  const auto put = [&line](const char* name, const std::string& text) {
    if (!text.empty()) line[name] = text;
  };
  put("key", key_name);
  if (!event.by.key.is_none()) put("public_key", protocol::key_digits(event.by.key));
  put("address", event.by.address);
  put("job", event.job);
  if (event.worker) line["worker"] = *event.worker;
  if (event.of_shard) line["of_shard"] = *event.of_shard;
  if (event.incarnation != 0) line["incarnation"] = event.incarnation;
  put("code", event.code);
  put("sentence", event.sentence);
  if (gap.refusals_left_out != 0) line["refusals_left_out"] = gap.refusals_left_out;
  if (gap.lines_lost != 0) line["lines_lost"] = gap.lines_lost;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool RefusalLimit::admit(const AuditEvent& event, const std::string& key_name, TimeNs now) {
  const bool admitted = key_name.empty() ? admit_by(last_of_strangers_, strangers_, kPerSecond, event, now)
                                         : admit_by(last_of_keys_, keys_[key_name], kPerSecondOfKey, event, now);
  left_out_ += admitted ? 0 : 1;
  return admitted;
}

bool RefusalLimit::admit_act(const AuditEvent& event, TimeNs now) {
  const std::string signature =
      fmt::format("{} {} {} {} {}", audit_word(event.what), protocol::key_digits(event.by.key),
                  event.worker.value_or(0), event.incarnation, event.job);
  const auto known = last_acts_.find(signature);
  if (known != last_acts_.end() && now - known->second < kSameWithin) {
    ++left_out_;
    return false;
  }
  if (last_acts_.size() >= kRemembered) last_acts_.clear();
  last_acts_[signature] = now;
  return true;
}

bool RefusalLimit::admit_by(std::unordered_map<std::string, TimeNs>& last, Budget& budget, uint32_t per_second,
                            const AuditEvent& event, TimeNs now) {
  // The sentence is not a part of it: it may count seconds down.
  const std::string signature =
      fmt::format("{} {} {} {} {} {} {}", audit_word(event.what), protocol::key_digits(event.by.key), event.by.address,
                  event.code, event.worker.value_or(0), event.of_shard.value_or(0), event.job);
  const auto known = last.find(signature);
  if (known != last.end() && now - known->second < kSameWithin) return false;
  if (now - budget.second_begun >= kNsPerS) budget = {now, 0};
  if (budget.in_second >= per_second) return false;
  ++budget.in_second;
  if (last.size() >= kRemembered) last.clear();
  last[signature] = now;
  return true;
}

uint64_t RefusalLimit::take_left_out() { return std::exchange(left_out_, 0); }

}  // namespace millrace::server
