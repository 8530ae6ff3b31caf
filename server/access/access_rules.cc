#include "server/access/access_rules.h"

#include <utility>
#include <variant>

namespace millrace::server {
namespace {

bool is_of_shard(const protocol::Body& body) {
  return std::holds_alternative<protocol::ShardHello>(body) ||
         std::holds_alternative<protocol::ThresholdHistogram>(body);
}

}  // namespace

AccessRules AccessRules::of(const protocol::PublicKey& own, protocol::AllowedKeys allowed) {
  const protocol::PublicKey* named = allowed.key_of(kClusterName);
  if (named != nullptr && *named != own) {
    allowed.skip(kClusterName, std::string("'") + kClusterName +
                                   "' is the name of this cluster's own key, and the allowed keys give it to another "
                                   "one: name that one differently");
  }
  AccessRules rules;
  rules.own_ = own;
  rules.allowed_ = std::move(allowed);
  return rules;
}

std::string AccessRules::name_of(const protocol::PublicKey& key) const {
  if (const std::string* name = allowed_.name_of(key)) return *name;
  return has_keys() && key == own_ ? kClusterName : std::string();
}

bool AccessRules::may_connect(const protocol::PublicKey& key) const {
  return has_keys() && !key.is_none() && (key == own_ || allowed_.name_of(key) != nullptr);
}

Status AccessRules::judge(const protocol::PeerId& from, const protocol::Message& message) const {
  if (!has_keys()) return {};
  if (!may_connect(from.key))
    return fail(ErrorCode::kUnauthenticated,
                "the key of this connection is not among this shard's allowed keys any more");
  if (is_of_shard(message.body) && from.key != own_) {
    return fail(ErrorCode::kUnauthenticated,
                "key '" + name_of(from.key) + "' is not the cluster's own: it may not speak as a shard");
  }
  if (!is_of_shard(message.body) && allowed_.name_of(from.key) == nullptr) {
    return fail(ErrorCode::kUnauthenticated,
                "the cluster's own key speaks for shards alone: give this worker a key of its own");
  }
  return {};
}

}  // namespace millrace::server
