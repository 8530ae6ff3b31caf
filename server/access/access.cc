#include "server/access/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "protocol/keys/key_files.h"

namespace millrace::server {
namespace {

/// Acts of named tokens that wait for the loop. Refusals take half of the room at most: they must not keep an end of a
/// job waiting.
constexpr size_t kWaitingMax = 64;

Result<AccessRules> read_rules(const protocol::PublicKey& own, const AccessFiles& files) {
  Result<protocol::AllowedKeys> allowed = protocol::AllowedKeys::read(files.allowed_keys, own);
  if (!allowed) return std::unexpected(allowed.error());
  return AccessRules::of(own, std::move(*allowed));
}

/// Returns whether the protocol requires the message of an honest worker, as large as the job makes it. These are first
/// weights of a store, the returns that a shard or a joiner needs, and the worker's end.
bool is_due(const protocol::Body& body) {
  return std::holds_alternative<protocol::Place>(body) || std::holds_alternative<protocol::State>(body) ||
         std::holds_alternative<protocol::Update>(body) || std::holds_alternative<protocol::Fetched>(body) ||
         std::holds_alternative<protocol::Snapshot>(body) || std::holds_alternative<protocol::Synced>(body) ||
         std::holds_alternative<protocol::Goodbye>(body);
}

}  // namespace

Result<std::unique_ptr<Access>> Access::open(const AccessFiles& files) {
  std::unique_ptr<Access> access(new Access);
  access->files_ = files;
  if (!files.key.empty()) {
    Result<protocol::KeyPair> own = protocol::read_secret_key(files.key);
    if (!own) return std::unexpected(own.error());
    access->own_ = std::move(*own);
    Result<AccessRules> rules = read_rules(access->own_->public_key, files);
    if (!rules) return std::unexpected(rules.error());
    access->rules_ = std::move(*rules);
    access->ended_ = access->rules_.end_keys(protocol::present_day());
  }
  if (!files.policy.empty()) {
    Result<Policy> policy = Policy::read(files.policy);
    if (!policy) return std::unexpected(policy.error());
    access->policy_ = std::move(*policy);
  }
  if (!files.audit_log.empty()) {
    auto audit = AuditLog::open(files.audit_log);
    if (!audit) return std::unexpected(audit.error());
    access->audit_ = std::move(*audit);
  }
  return access;
}

std::optional<protocol::TransportKeys> Access::transport_keys() const {
  if (!own_) return std::nullopt;
  return protocol::TransportKeys{*own_, own_->public_key};
}

void Access::begin(uint32_t shard, TimeNs now) {
  shard_ = shard;
  record({.what = AuditEvent::What::kStart,
          .sentence = !rules_.has_keys() ? "without keys: every process that reaches the port may join"
                      : policy_.allows_everything()
                          ? fmt::format("{} keys are allowed everything", rules_.allowed().count())
                          : fmt::format("{} keys are allowed what {} rules say", rules_.allowed().count(),
                                        policy_.rule_count())},
         now);
  say_problems();
}

void Access::say_problems() const {
  for (const std::string& problem : rules_.allowed().problems()) say(Severity::kError, "skipped: " + problem);
  for (const protocol::EndedKey& ended : ended_) say(Severity::kWarning, ended.sentence);
}

void Access::end(TimeNs now) {
  record_waiting(now);
  record({.what = AuditEvent::What::kStop}, now);
}

void Access::say(Severity severity, const std::string& text) const {
  if (log_) log_(severity, text);
}

void Access::record(const AuditEvent& event, TimeNs now) {
  record_as(event.token.empty() ? rules_.name_of(event.by.key) : event.token, event, now);
}

void Access::record_as(const std::string& name, const AuditEvent& event, TimeNs now) {
  if (!audit_) return;
  if (const Status written = audit_->write(event, name, shard_, now); !written)
    say(Severity::kError, written.error().message);
}

ReaderRights Access::reader_rights() {
  ReaderRights rights;
  rights.judge = [this](const std::string& token, const std::string& job, ReaderRight right) {
    const std::lock_guard lock(readers_mutex_);
    return policy_.judge_reader(token, job, right);
  };
  rights.record = [this](AuditEvent event) {
    const std::lock_guard lock(readers_mutex_);
    if (event.what == AuditEvent::What::kRefuse) {
      const auto is_like_it = [&](const AuditEvent& of) { return of.what == event.what && of.token == event.token; };
      if (std::ranges::count_if(waiting_, is_like_it) >= RefusalLimit::kPerSecondOfKey ||
          waiting_.size() >= kWaitingMax / 2) {
        ++refusals_left_out_;
        return false;
      }
    } else if (waiting_.size() >= kWaitingMax) {
      return false;
    }
    waiting_.push_back(std::move(event));
    return true;
  };
  return rights;
}

void Access::record_waiting(TimeNs now) {
  std::vector<AuditEvent> waiting;
  uint64_t left_out = 0;
  {
    const std::lock_guard lock(readers_mutex_);
    waiting.swap(waiting_);
    left_out = std::exchange(refusals_left_out_, 0);
  }
  if (audit_) audit_->count_left_out(left_out);
  for (const AuditEvent& event : waiting) record(event, now);
}

void Access::refuse(const protocol::PeerId& by, const protocol::Message* message, const Error& why, TimeNs now) {
  AuditEvent event{.what = AuditEvent::What::kRefuse,
                   .by = by,
                   .code = std::string(error_code_name(why.code)),
                   .sentence = why.message};
  if (message != nullptr) {
    if (const auto* hello = std::get_if<protocol::Hello>(&message->body)) event.job = hello->spec.name;
    if (std::holds_alternative<protocol::ShardHello>(message->body)) {
      event.of_shard = message->header.shard;
    } else {
      event.worker = message->header.worker;
    }
  }
  say(Severity::kWarning, fmt::format("refused {}: {}", by.address, why.message));
  record(event, now);
}

bool Access::admits(const protocol::KeyGate::Caller& caller, TimeNs now) {
  // A key over its rate may connect: without its heartbeats its jobs would remove it.
  if (rules_.may_connect(caller.key)) return true;
  refuse({.bytes = {}, .key = caller.key, .address = caller.address}, nullptr,
         {ErrorCode::kUnauthenticated,
          fmt::format("key {} is not among the allowed keys", protocol::key_digits(caller.key))},
         now);
  return false;
}

bool Access::has_rate(const protocol::PublicKey& key, TimeNs now) {
  if (!own_ || key == own_->public_key) return false;
  if (!rates_.knows(key)) set_rate(key, now);
  return true;
}

void Access::charge_unfinished(const protocol::PeerId& peer, uint64_t bytes, TimeNs now) {
  // As of a contribution: it must not lengthen a debt, because the shard itself closes the connections of such a key.
  if (has_rate(peer.key, now)) (void)rates_.take(peer.key, bytes, now);
}

/// Counts a message against its key's rate. A key has the least rate of all rules that name it, whichever job it joins:
/// it cannot choose another one by a Hello.
RateLimit::Verdict Access::count(const protocol::Received& received, TimeNs now) {
  const protocol::PublicKey& key = received.peer.key;
  if (!has_rate(key, now)) return RateLimit::Verdict::kPasses;
  if (received.message && is_due(received.message->body)) {
    rates_.charge_due(key, received.bytes, now);
    return RateLimit::Verdict::kPasses;
  }
  const bool waits = received.message && std::holds_alternative<protocol::Contribution>(received.message->body);
  return waits ? rates_.take(key, received.bytes, now) : rates_.charge(key, received.bytes, now);
}

/// Refuses a message that is neither a contribution nor due, of a key that floods.
Access::Intake Access::flood(const protocol::Received& received) const {
  protocol::Refuse refusal;
  refusal.code = ErrorCode::kLimitExceeded;
  refusal.sentence = fmt::format(
      "key '{}' is over its rate, and has sent more than {} times its debt by heartbeats, acknowledgements, "
      "Hellos, pulls or unreadable messages; this connection ends",
      rules_.name_of(received.peer.key), RateLimit::kOverdraft);
  const protocol::Header header = received.message ? received.message->header : protocol::Header{};
  return {.refusal = protocol::Message{header, std::move(refusal), {}},
          .label = kOverRate,
          .ends_because = kOverRate,
          .ends_after = kEndsAfterReason};
}

Access::Intake Access::take(const protocol::Received& received, TimeNs now) {
  Intake intake;
  protocol::Refuse refusal;
  const auto refuse_by = [&](std::string_view label) {
    intake.label = label;
    intake.refusal = protocol::Message{received.message->header, refusal, {}};
  };
  const RateLimit::Verdict counted = count(received, now);
  const auto* contribution = received.message ? std::get_if<protocol::Contribution>(&received.message->body) : nullptr;
  if (counted == RateLimit::Verdict::kFloods) {
    intake.ends_because = kOverRate;
    if (contribution == nullptr) return flood(received);
  } else if (!may_speak(received.peer)) {
    // A connection that had not spoken when its key was taken away.
    intake.ends_because = "key_revoked";
    intake.ends_after = kEndsAfterReason;
  }
  if (received.message) {
    if (const Status judged = rules_.judge(received.peer, *received.message); !judged) {
      refuse(received.peer, &*received.message, judged.error(), now);
      refusal.code = judged.error().code;
      refusal.sentence = judged.error().message;
      refuse_by(error_code_name(refusal.code));
      return intake;
    }
  }
  if (!received.message) return intake;
  refusal.code = ErrorCode::kUnavailable;
  refusal.retry = true;
  if (contribution == nullptr || counted == RateLimit::Verdict::kPasses) return intake;
  refusal.sentence = fmt::format("key '{}' is over its rate", rules_.name_of(received.peer.key));
  refusal.about_contribution = true;
  refusal.part = contribution->part;
  refusal.step = contribution->step;
  refuse_by(kOverRate);
  return intake;
}

Rights Access::rights() {
  if (!own_) return {};
  Rights rights;
  rights.admit_to_table = [this](const protocol::PeerId& from, TimeNs now) -> Status {
    if (hellos_.take(from.key, now)) return {};
    return fail(ErrorCode::kUnavailable,
                fmt::format("too many Hellos of key '{}' need the membership table", rules_.name_of(from.key)));
  };
  rights.refused_by_table = [this](const protocol::PeerId& from, TimeNs now) { hellos_.count_refusal(from.key, now); };
  rights.judge = [this](const protocol::PeerId& from, const JoinRequest& request) {
    return policy_.judge(rules_.name_of(from.key), request);
  };
  rights.name_of = [this](const protocol::PeerId& from) { return rules_.name_of(from.key); };
  rights.judge_opening = [this](const std::string& key_name, const std::string& job, uint32_t open) {
    return policy_.judge_opening(key_name, job, open);
  };
  rights.job_memory_bytes_max = [this](const std::string& key_name, const std::string& job) {
    const PolicyRule* rule = policy_.rule_of(key_name, job);
    return rule == nullptr ? std::numeric_limits<uint64_t>::max() : rule->job_memory_bytes_max;
  };
  return rights;
}

void Access::set_rate(const protocol::PublicKey& key, TimeNs now) {
  constexpr double kBitsOfByte = 8;
  rates_.set(key, policy_.rate_bits_of(rules_.name_of(key)) / kBitsOfByte, now);
}

/// Says which keys come and go.
std::string Access::changes_to(const AccessRules& next) const {
  size_t same = 0;
  std::string gone;
  for (const auto& [name, key] : rules_.allowed().keys()) {
    const std::string* now_named = next.allowed().name_of(key);
    if (now_named != nullptr) {
      ++same;
    } else {
      gone += (gone.empty() ? "" : ", ") + name;
    }
  }
  const size_t skipped = next.allowed().problems().size();
  return fmt::format("{} keys are allowed, {} of them new{}{}", next.allowed().count(), next.allowed().count() - same,
                     gone.empty() ? "" : "; not any more: " + gone,
                     skipped == 0 ? "" : fmt::format("; {} files are wrong and were skipped", skipped));
}

Status Access::reload(TimeNs now) {
  if (audit_) {
    if (const Status opened = audit_->reopen(); !opened)
      say(Severity::kError, fmt::format("reload: {}; the old file stays in use", opened.error().message));
  }
  if (!own_) {
    say(Severity::kInfo, "reload: this shard has no keys to read again");
    return {};
  }
  Status keys = reload_keys(now);
  Status policy = reload_policy(now);
  for (const auto& [name, key] : rules_.allowed().keys()) {
    if (rates_.knows(key)) set_rate(key, now);
  }
  return keys ? policy : keys;
}

bool Access::end_keys(std::chrono::sys_days today, TimeNs now) {
  const std::vector<protocol::EndedKey> all_ended = rules_.end_keys(today);
  for (const protocol::EndedKey& ended : all_ended) {
    say(Severity::kWarning, ended.sentence);
    AuditEvent event{.what = AuditEvent::What::kKeyEnd, .sentence = ended.sentence};
    event.by.key = ended.key;
    record_as(ended.name, event, now);  // the rules know the name no longer
  }
  return !all_ended.empty();
}

Status Access::reload_keys(TimeNs now) {
  const std::chrono::sys_days today = protocol::present_day();
  end_keys(today, now);
  Result<AccessRules> rules = read_rules(own_->public_key, files_);
  AuditEvent event{.what = AuditEvent::What::kReload};
  if (rules) {
    ended_ = rules->end_keys(today);
    event.sentence = changes_to(*rules);
    rules_ = std::move(*rules);
    say(Severity::kInfo, "reload: " + event.sentence);
    say_problems();
  } else {
    event.code = error_code_name(rules.error().code);
    event.sentence = rules.error().message + "; the keys from before stay allowed";
    say(Severity::kError, "reload: " + event.sentence);
  }
  record(event, now);
  return rules ? Status() : std::unexpected(rules.error());
}

Status Access::reload_policy(TimeNs now) {
  if (files_.policy.empty()) return {};
  AuditEvent event{.what = AuditEvent::What::kReload};
  Result<Policy> policy = Policy::read(files_.policy);
  if (policy) {
    {
      const std::lock_guard lock(readers_mutex_);
      policy_ = std::move(*policy);
    }
    event.sentence = fmt::format("the policy has {} rules", policy_.rule_count());
    say(Severity::kInfo, "reload: " + event.sentence);
  } else {
    event.code = error_code_name(policy.error().code);
    event.sentence = policy.error().message + "; the policy from before holds";
    say(Severity::kError, "reload: " + event.sentence);
  }
  record(event, now);
  return policy ? Status() : std::unexpected(policy.error());
}

}  // namespace millrace::server
