#include "server/access/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/units.h"
#include "kernels/base/words.h"
#include "protocol/job/job_spec.h"
#include "protocol/keys/rights_file.h"

namespace millrace::server {
namespace {

using PolicyJson = nlohmann::json;

constexpr uint32_t kPolicyWorkerMost = protocol::kWorkersMax - 1;

std::unexpected<Error> wrong_policy(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

Result<std::vector<std::string>> policy_texts(const PolicyJson& value, std::string_view name) {
  std::vector<std::string> texts;
  if (!value.is_array() || value.empty()) return wrong_policy(fmt::format("'{}' is not a list of texts", name));
  for (const PolicyJson& one : value) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      return wrong_policy(fmt::format("'{}' is not a list of texts", name));
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

/// Reads "3" and "0-7".
Result<PolicyRule::Workers> policy_workers(const std::string& text) {
  const size_t dash = text.find('-');
  const auto first = number_from_text<uint32_t>(std::string_view(text).substr(0, dash));
  const auto last =
      dash == std::string::npos ? first : number_from_text<uint32_t>(std::string_view(text).substr(dash + 1));
  if (!first || !last || *first > *last || *last > kPolicyWorkerMost)
    return wrong_policy(
        fmt::format("'workers': '{}' is neither a number nor FIRST-LAST, from 0 to {}", text, kPolicyWorkerMost));
  return PolicyRule::Workers{*first, *last};
}

constexpr std::array<std::pair<std::string_view, bool PolicyRule::*>, 4> kActs = {{{"create", &PolicyRule::create},
                                                                                   {"join", &PolicyRule::join},
                                                                                   {"observe", &PolicyRule::observe},
                                                                                   {"end", &PolicyRule::end}}};

Status take_acts(const PolicyJson& value, PolicyRule& rule) {
  const auto acts = policy_texts(value, "may");
  if (!acts) return std::unexpected(acts.error());
  for (const std::string& act : *acts) {
    const auto known = std::ranges::find(kActs, act, [](const auto& one) { return one.first; });
    if (known == kActs.end())
      return wrong_policy(fmt::format("'may': '{}' is no right; rights are create, join, observe and end", act));
    rule.*known->second = true;
  }
  return {};
}

template <typename Value, typename Reader>
Status take_quantity(const PolicyJson& value, std::string_view name, const Reader& reader, Value& to) {
  const auto quantity = value.is_string() ? reader(value.get<std::string>())
                                          : reader(value.dump(-1, ' ', false, PolicyJson::error_handler_t::replace));
  if (!quantity) return wrong_policy(fmt::format("'{}': {}", name, quantity.error().message));
  to = *quantity;
  return {};
}

template <typename Value>
Status take_count(const PolicyJson& value, std::string_view name, Value& to) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<Value>::max())
    return wrong_policy(
        fmt::format("'{}' is not a whole number of at most {}", name, std::numeric_limits<Value>::max()));
  to = value.get<Value>();
  return {};
}

Status take_rule_field(const std::string& name, const PolicyJson& value, PolicyRule& rule) {
  if (name == "keys" || name == "jobs") {
    auto texts = policy_texts(value, name);
    if (!texts) return std::unexpected(texts.error());
    (name == "keys" ? rule.keys : rule.jobs) = std::move(*texts);
    return {};
  }
  if (name == "workers") {
    const auto texts = policy_texts(value, name);
    if (!texts) return std::unexpected(texts.error());
    for (const std::string& text : *texts) {
      const auto workers = policy_workers(text);
      if (!workers) return std::unexpected(workers.error());
      rule.workers.push_back(*workers);
    }
    return {};
  }
  if (name == "may") return take_acts(value, rule);
  if (name == "entries_max") return take_count(value, name, rule.entries_max);
  if (name == "jobs_max") return take_count(value, name, rule.jobs_max);
  if (name == "job_memory") return take_quantity(value, name, size_from_text, rule.job_memory_bytes_max);
  if (name == "rate") return take_quantity(value, name, rate_from_text, rule.rate_bits_max);
  return wrong_policy(fmt::format(
      "'{}' is no field of a rule{}", name,
      did_you_mean(name, {"keys", "jobs", "may", "workers", "entries_max", "jobs_max", "job_memory", "rate"})));
}

Result<PolicyRule> rule_of_json(const PolicyJson& value) {
  PolicyRule rule;
  if (!value.is_object()) return wrong_policy("it is no object");
  for (const auto& [name, field] : value.items()) {
    if (const Status taken = take_rule_field(name, field, rule); !taken) return std::unexpected(taken.error());
  }
  if (rule.keys.empty() || rule.jobs.empty()) return wrong_policy("'keys' and 'jobs' are needed");
  return rule;
}

/// Finds a name that an object has twice: JSON readers take the last one, people the first.
class RepeatedNames {
 public:
  const std::string& first() const { return repeated_; }
  bool operator()(int /*depth*/, PolicyJson::parse_event_t event, PolicyJson& parsed) {
    using enum PolicyJson::parse_event_t;
    if (event == object_start) names_.emplace_back();
    if (event == object_end) names_.pop_back();
    if (event == key && !names_.back().insert(parsed.get<std::string>()).second && repeated_.empty())
      repeated_ = parsed.get<std::string>();
    return true;
  }

 private:
  std::vector<std::set<std::string>> names_;  ///< of the objects that are open
  std::string repeated_;
};

bool any_matches(const std::vector<std::string>& patterns, std::string_view text) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_pattern(pattern, text); });
}

std::string rule_workers_text(const PolicyRule& rule) {
  std::string text;
  for (const auto& [first, last] : rule.workers) {
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (last != first) text += "-" + std::to_string(last);
  }
  return text;
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view text) {
  size_t at = 0;
  size_t in_text = 0;
  size_t star = std::string_view::npos;  // the last one seen, and the text that it stands for so far
  size_t after = 0;
  while (in_text < text.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      after = in_text;
    } else if (at < pattern.size() && pattern[at] == text[in_text]) {
      ++at;
      ++in_text;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in_text = ++after;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

Result<Policy> Policy::parse(std::string_view text) {
  if (text.size() > kTextBytesMax) return fail(ErrorCode::kLimitExceeded, "it is longer than 1 MiB");
  RepeatedNames names;
  const PolicyJson document = PolicyJson::parse(text, std::ref(names), false);
  if (!names.first().empty()) return wrong_policy(fmt::format("an object has '{}' twice", names.first()));
  if (!document.is_object() || document.size() != 1 || !document.contains("rules") || !document["rules"].is_array())
    return wrong_policy(R"(it is not JSON of the form {"rules": [{"keys": [...], "jobs": [...], "may": [...]}]})");
  const PolicyJson& list = document["rules"];
  if (list.size() > kRulesMax) return fail(ErrorCode::kLimitExceeded, "it has more than 4096 rules");
  Policy policy;
  policy.rules_.emplace();
  for (const PolicyJson& value : list) {
    Result<PolicyRule> rule = rule_of_json(value);
    if (!rule) return wrong_policy(fmt::format("rule {}: {}", policy.rules_->size() + 1, rule.error().message));
    policy.rules_->push_back(std::move(*rule));
  }
  return policy;
}

Result<Policy> Policy::read(const std::string& path) {
  const Result<std::string> text = protocol::read_rights_file("policy " + path, path, kTextBytesMax + 1);
  if (!text) return std::unexpected(text.error());
  Result<Policy> policy = parse(*text);
  if (!policy) return fail(policy.error().code, fmt::format("policy {}: {}", path, policy.error().message));
  return policy;
}

const PolicyRule* Policy::rule_of(std::string_view key, std::string_view job) const {
  if (!rules_) return nullptr;
  const auto found = std::ranges::find_if(
      *rules_, [&](const PolicyRule& rule) { return any_matches(rule.keys, key) && any_matches(rule.jobs, job); });
  return found == rules_->end() ? nullptr : &*found;
}

double Policy::rate_bits_of(std::string_view key) const {
  double least = std::numeric_limits<double>::infinity();
  if (!rules_) return least;
  for (const PolicyRule& rule : *rules_) {
    if (rule.rate_bits_max < least && any_matches(rule.keys, key)) least = rule.rate_bits_max;
  }
  return least;
}

Status Policy::judge(std::string_view key, const JoinRequest& request) const {
  if (!rules_) return {};
  const auto lacks = [&](std::string_view what) {
    return fail(ErrorCode::kUnauthenticated,
                fmt::format("key '{}' lacks the right to {} job '{}'", key, what, request.job));
  };
  const PolicyRule* rule = rule_of(key, request.job);
  if (rule == nullptr || (!rule->create && !rule->join)) return lacks("join");
  if (request.creates && !rule->create) return lacks("create");
  const bool may_be = rule->workers.empty() || std::ranges::any_of(rule->workers, [&](const auto& range) {
                        return request.worker >= range.first && request.worker <= range.second;
                      });
  if (!may_be) {
    return lacks(fmt::format("be worker {} (it may be {}) of", request.worker, rule_workers_text(*rule)));
  }
  if (request.entries > rule->entries_max) {
    return fail(ErrorCode::kLimitExceeded, fmt::format("job '{}' has {} entries, over the quota of key '{}': {}",
                                                       request.job, request.entries, key, rule->entries_max));
  }
  return {};
}

Status Policy::judge_reader(std::string_view token, std::string_view job, ReaderRight right) const {
  if (!rules_) return {};
  const bool ends = right == ReaderRight::kEnd;
  const PolicyRule* rule = rule_of(token, job);
  if (rule != nullptr && (ends ? rule->end : rule->observe)) return {};
  return fail(ErrorCode::kUnauthenticated,
              fmt::format("token '{}' lacks the right to {} job '{}'", token, ends ? "end" : "observe", job));
}

Status Policy::judge_opening(std::string_view key, std::string_view job, uint32_t open) const {
  const PolicyRule* rule = rule_of(key, job);
  if (rule == nullptr || open < rule->jobs_max) return {};
  return fail(ErrorCode::kLimitExceeded,
              fmt::format("key '{}' has {} jobs open at this shard: its quota is {}", key, open, rule->jobs_max));
}

}  // namespace millrace::server
