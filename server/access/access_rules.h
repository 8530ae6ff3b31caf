#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/keys/allowed_keys.h"
#include "protocol/keys/key.h"
#include "protocol/messages/messages.h"
#include "protocol/messages/peer_id.h"

namespace millrace::server {

/// Decides which key may connect, and which messages it may send. Pure.
///
/// Shards   prove the cluster's own key, which all shards of a cluster share. It alone may speak as a shard.
/// Workers  prove a key among the allowed ones. The cluster's own key speaks for workers only where it is among them.
class AccessRules {
 public:
  /// The name of the cluster's own key where the allowed keys have no other for it.
  static constexpr const char* kClusterName = "cluster";

  /// Admits all: a server without keys.
  AccessRules() = default;
  /// Skips another key than the cluster's own that is named kClusterName.
  static AccessRules of(const protocol::PublicKey& own, protocol::AllowedKeys allowed);

  bool has_keys() const { return !own_.is_none(); }
  const protocol::AllowedKeys& allowed() const { return allowed_; }
  /// As AllowedKeys::end_keys().
  std::vector<protocol::EndedKey> end_keys(std::chrono::sys_days today) { return allowed_.end_keys(today); }
  /// Returns the key's name; empty: it has none here.
  std::string name_of(const protocol::PublicKey& key) const;
  bool may_connect(const protocol::PublicKey& key) const;
  /// Returns whether the core may see the message. Errors  unauthenticated, with a sentence for the sender. An allowed
  /// key that is taken away gets this answer to its next message.
  Status judge(const protocol::PeerId& from, const protocol::Message& message) const;

 private:
  protocol::PublicKey own_;
  protocol::AllowedKeys allowed_;
};

}  // namespace millrace::server
