#include "tests/models/rounds/rules.h"

namespace millrace::model {

namespace {

// In the order of Rule.
constexpr std::array<RuleText, static_cast<size_t>(Rule::kCount)> kTexts{{
    {"update-epoch", "R4a", "an update is applied only in the epoch in which it was sent"},
    {"collect-fence", "R8b", "answering COLLECT moves the worker into the successor's epoch permanently"},
    {"collect-all", "R8b", "a successor hears every member of the table before it continues"},
    {"contribution-epoch", "R2", "a contribution is admitted only in the epoch in which it was sent"},
    {"contribution-life", "R2", "and only under the incarnation that the view names"},
    {"drop-open", "R7a", "a new view drops open contributions of workers that are no longer members"},
    {"residual-once", "R9b", "a saved residual loads only if nothing of its worker was counted since"},
    {"summary", "R5", "the counted contributions are known for ever, also where an update's bytes are forgotten"},
    {"on-log", "R9a", "a state that is not on the log is dropped, its residual too"},
    {"named-life", "R4", "an update counts a contribution only if it names the life under which it was sent"},
    {"snapshot-kept", "R9d", "a snapshot brings the updates that its giver keeps"},
    {"ack-all", "R5", "an update is forgotten when all members of the view have it, joiners too"},
    {"restart-joins", "R9", "a restarted worker does not go on from its save unasked"},
    {"workers-keep", "R4", "workers keep updates as long as the shard would"},
    {"new-life", "R9", "a removed worker rejoins under a new incarnation"},
    {"returned", "R4", "the entries that an update counts and does not carry return to the residual"},
    {"unreturnable", "R9c", "where no process knows the carried entries, the contribution goes into the ledger"},
    {"snapshot-epoch", "R9d", "a snapshot counts in the epoch in which it was taken"},
    {"cut-newest", "R10c", "a cut chooses a state that no other beats"},
    {"settle-within", "R9c",
     "a rejoining worker settles only against updates inside the weights with which it continues"},
    {"keep-ahead", "R9d", "a worker that is on the log and not behind keeps its own weights"},
    {"lineage", "R8g, R9a", "the log is a tree of branches; only ancestors of the table's are on it"},
    {"go-on", "R9d, R10a", "if no worker can give a snapshot: continue from the own state, else a cut, in a new epoch"},
    {"memory-bound", "R6",
     "only updates that one live member has are forgotten; a successor makes updates void that no process keeps"},
    {"activation-lineage", "R8e", "every activation is a new log branch"},
    {"loaded-stays", "R9b",
     "a state from a save stays one until it is settled, also if its worker is removed while it joins"},
    {"settle-epoch", "R9f", "all parts are settled in one epoch; a new one begins again"},
    {"cut-all-parts", "R10e", "after a cut the shards of all parts start as their own successors"},
    {"go-on-all-parts", "R10a", "a member can go on if it can in every part; if none can, it is a cut"},
    {"one-cut", "R12", "a save has all parts of one moment"},
    {"first-step", "R9e",
     "a joiner takes part from one step on, the same in all parts, and no earlier step blocks on it"},
    {"empty", "R9e", "below it, and where an older incarnation's contribution waits, it sends empty contributions"},
    {"part-lineage", "R8g", "every part has a tree of log branches of its own"},
    {"settle-lineage", "R8f",
     "SETTLE gives the log branch of the shard's own activation, not the one that the table has by now"},
    {"counted-once", "R16a", "asynchronous: a contribution that the summary counts is not admitted again"},
    {"in-order", "R16b", "asynchronous: the contributions of an incarnation are counted in the order of sending"},
    {"keep-until-told", "R16c",
     "asynchronous: the contributions of an old incarnation are kept until all steps decided before the fence are "
     "applied"},
    {"store-never-extends", "R17a", "a store's save does not make the log longer than synced members know it"},
    {"store-on-log", "R17b", "a store's save gives weights only if it is on the log"},
    {"store-keeps", "R17d",
     "an update that the store's last save lacks is not forgotten, also where all members have it"},
    {"store-acked", "R17c", "a store's save counts once all members have acknowledged its steps"},
    {"store-digest", "R17b",
     "whether a save is on the log is seen by the digest of its updates, not by its log branch"},
    {"held", "R18", "an update is applied when the shard says that k members have acknowledged it"},
    {"told-epoch", "R18b", "a report of acknowledgements counts in the epoch in which it was sent"},
    {"synced-acks", "R18a", "acknowledgements of members that are synced count, not those of joiners"},
}};

}  // namespace

const RuleText& text_of(Rule rule) { return kTexts[static_cast<size_t>(rule)]; }

std::optional<Rule> rule_named(std::string_view name) {
  for (size_t index = 0; index < kTexts.size(); ++index)
    if (kTexts[index].name == name) return static_cast<Rule>(index);
  return std::nullopt;
}

}  // namespace millrace::model
