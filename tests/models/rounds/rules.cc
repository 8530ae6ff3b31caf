#include "tests/models/rounds/rules.h"

namespace millrace::model {

namespace {

// In the order of Rule.
constexpr std::array<RuleText, static_cast<size_t>(Rule::kCount)> kTexts{{
    {"update-epoch", "R4a", "an update is applied only in the epoch in which it was sent"},
    {"collect-fence", "R8b", "answering COLLECT moves the worker into the successor's epoch, for good"},
    {"collect-all", "R8b", "a successor hears every member of the table before it goes on"},
    {"contribution-epoch", "R2", "a contribution is admitted only in the epoch in which it was sent"},
    {"contribution-life", "R2", "and only under the life that the view names"},
    {"drop-open", "R7a", "a new view drops what was open and is not a member's any more"},
    {"residual-once", "R9b", "a saved residual loads only if nothing of its worker was counted since"},
    {"summary", "R5", "what was counted is known for ever, also where an update's bytes are forgotten"},
    {"on-log", "R9a", "a state that is not on the log is dropped, its residual too"},
    {"named-life", "R4", "an update counts a contribution only if it names the life under which it was sent"},
    {"snapshot-kept", "R9d", "a snapshot brings the updates that its giver keeps"},
    {"ack-all", "R5", "an update is forgotten when all members of the view have it, joiners too"},
    {"restart-joins", "R9", "a restarted worker does not go on from its save unasked"},
    {"workers-keep", "R4", "workers keep updates as long as the shard would"},
    {"new-life", "R9", "a removed worker comes back under a new life"},
    {"returned", "R4", "what an update counts and does not carry goes back into the residual"},
    {"unreturnable", "R9c", "where nobody knows what was carried, it goes into the ledger"},
    {"snapshot-epoch", "R9d", "a snapshot counts in the epoch in which it was taken"},
    {"cut-newest", "R10c", "a cut chooses a state that no other beats"},
    {"settle-within", "R9c", "who returns settles only against updates inside the weights that it goes on with"},
    {"keep-ahead", "R9d", "who is on the log and not behind keeps its own weights"},
    {"lineage", "R8g, R9a", "the log is a tree of lineages; only ancestors of the table's are on it"},
    {"go-on", "R9d, R10a", "if nobody can give a snapshot: go on from the own state, else a cut, in a new epoch"},
    {"memory-bound", "R6", "only what one live member has is forgotten; what nobody keeps is made void by a successor"},
    {"activation-lineage", "R8e", "every activation is a new lineage"},
    {"loaded-stays", "R9b",
     "a state from a save stays one until it is settled, also if its worker is removed while it joins"},
    {"settle-epoch", "R9f", "all parts are settled in one epoch; a new one begins again"},
    {"cut-all-parts", "R10e", "after a cut the shards of all parts start as their own successors"},
    {"go-on-all-parts", "R10a", "a member can go on if it can in every part; if none can, it is a cut"},
    {"one-cut", "R12", "a save has all parts of one moment"},
    {"first-step", "R9e", "who joins takes part from one step on, the same in all parts, and is not waited for below"},
    {"empty", "R9e", "below it, and where an older life's contribution waits, it sends empty contributions"},
    {"part-lineage", "R8g", "every part has a tree of lineages of its own"},
    {"settle-lineage", "R8f",
     "SETTLE gives the lineage of the shard's own activation, not the one that the table has by now"},
    {"counted-once", "R16a", "asynchronous: what the summary says was counted is not admitted again"},
    {"in-order", "R16b", "asynchronous: the contributions of a life are counted in the order of sending"},
    {"keep-until-told", "R16c",
     "asynchronous: what an old life sent is kept until all that was decided before the fence is applied"},
    {"store-never-extends", "R17a", "a store's save does not make the log longer than synced members know it"},
    {"store-on-log", "R17b", "a store's save gives weights only if it is on the log"},
    {"store-keeps", "R17d", "what the store's last save lacks is not forgotten, also where all members have it"},
    {"store-acked", "R17c", "a store's save counts once all members have acknowledged its steps"},
    {"store-digest", "R17b",
     "whether a save is on the log is seen by the digest of what it went through, not by its lineage"},
    {"held", "R18", "an update is applied when the shard says that k members have acknowledged it"},
    {"told-epoch", "R18b", "what it says of acknowledgements counts in the epoch in which it was said"},
    {"synced-acks", "R18a", "acknowledgements of members that are synced count, not those of who joins"},
}};

}  // namespace

const RuleText& text_of(Rule rule) { return kTexts[static_cast<size_t>(rule)]; }

std::optional<Rule> rule_named(std::string_view name) {
  for (size_t index = 0; index < kTexts.size(); ++index)
    if (kTexts[index].name == name) return static_cast<Rule>(index);
  return std::nullopt;
}

}  // namespace millrace::model
