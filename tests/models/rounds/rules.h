#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::model {

/// What keeps the law. Each can be switched off, to see the trace that it prevents (rules.cc has a sentence on every
/// one).
enum class Rule : uint8_t {
  kUpdateEpoch,
  kCollectFence,
  kCollectAll,
  kContributionEpoch,
  kContributionLife,
  kDropOpen,
  kResidualOnce,
  kSummary,
  kOnLog,
  kNamedLife,
  kSnapshotKept,
  kAckAll,
  kRestartJoins,
  kWorkersKeep,
  kNewIncarnation,
  kReturned,
  kUnreturnable,
  kSnapshotEpoch,
  kCutNewest,
  kSettleWithin,
  kKeepAhead,
  kLineage,
  kGoOn,
  kMemoryBound,
  kActivationLineage,
  kLoadedStays,
  kSettleEpoch,
  kCutAllParts,
  kGoOnAllParts,
  kOneCut,
  kFirstStep,
  kEmpty,
  kPartLineage,
  kSettleLineage,
  kCountedOnce,
  kInOrder,
  kKeepUntilTold,
  kStoreNeverExtends,
  kStoreOnLog,
  kStoreKeeps,
  kStoreAcked,
  kStoreDigest,
  kHeld,
  kToldEpoch,
  kSyncedAcks,
  kCount,
};

struct RuleText {
  std::string_view name;
  std::string_view where;     ///< anchors of protocol/ROUNDS.md
  std::string_view sentence;  ///< the rule
};

const RuleText& text_of(Rule rule);
std::optional<Rule> rule_named(std::string_view name);

/// All rules, less those that were switched off.
class RuleSet {
 public:
  RuleSet() { on_.fill(true); }
  bool operator[](Rule rule) const { return on_[static_cast<size_t>(rule)]; }
  void switch_off(Rule rule) { on_[static_cast<size_t>(rule)] = false; }

 private:
  std::array<bool, static_cast<size_t>(Rule::kCount)> on_;
};

}  // namespace millrace::model
