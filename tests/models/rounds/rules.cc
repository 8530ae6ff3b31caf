#include "tests/models/rounds/rules.h"

namespace millrace::model {

namespace {

// In the order of Rule.
constexpr std::array<RuleText, static_cast<size_t>(Rule::kCount)> kTexts{{
    {"update-epoch", "4", "an update is applied only in the epoch in which it was sent"},
    {"collect-fence", "8", "answering COLLECT moves the worker into the successor's epoch, for good"},
    {"collect-all", "8", "a successor hears every member of the table before it goes on"},
    {"contribution-epoch", "2", "a contribution is admitted only in the epoch in which it was sent"},
    {"contribution-life", "2", "and only under the life that the view names"},
    {"drop-open", "7", "a new view drops what was open and is not a member's any more"},
    {"residual-once", "9b", "a saved residual loads only if nothing of its worker was counted since"},
    {"summary", "5", "what was counted is known for ever, also where an update's bytes are forgotten"},
    {"on-log", "9a", "a state that is not on the log is dropped, its residual too"},
    {"named-life", "4", "an update counts a contribution only if it names the life under which it was sent"},
    {"snapshot-kept", "9d", "a snapshot brings the updates that its giver keeps"},
    {"ack-all", "5", "an update is forgotten when all members of the view have it, joiners too"},
    {"restart-joins", "9", "a restarted worker does not go on from its save unasked"},
    {"workers-keep", "4", "workers keep updates as long as the shard would"},
    {"new-life", "9", "a removed worker comes back under a new life"},
    {"returned", "4", "what an update counts and does not carry goes back into the residual"},
    {"unreturnable", "6", "where nobody knows what was carried, it goes into the ledger"},
    {"snapshot-epoch", "9d", "a snapshot counts in the epoch in which it was taken"},
    {"cut-newest", "10", "a cut chooses a state that no other beats"},
    {"settle-within", "9c", "who returns settles only against updates inside the weights that it goes on with"},
    {"keep-ahead", "9d", "who is on the log and not behind keeps its own weights"},
    {"lineage", "8, 9a", "the log is a tree of lineages; only ancestors of the table's are on it"},
    {"go-on", "9d, 10", "if nobody can give a snapshot: go on from the own state, else a cut, in a new epoch"},
    {"memory-bound", "6", "only what one live member has is forgotten; what nobody keeps is made void by a successor"},
    {"activation-lineage", "8", "every activation is a new lineage"},
    {"loaded-stays", "9b, new",
     "a state from a save stays one until it is settled, also if its worker is removed while it joins"},
    {"settle-epoch", "9, new", "all parts are settled in one epoch; a new one begins again"},
    {"cut-all-parts", "10", "after a cut the shards of all parts start as their own successors"},
    {"go-on-all-parts", "10, new", "a member can go on if it can in every part; if none can, it is a cut"},
    {"one-cut", "save", "a save has all parts of one moment"},
    {"first-step", "9e", "who joins takes part from one step on, the same in all parts, and is not waited for below"},
    {"empty", "9e", "below it, and where an older life's contribution waits, it sends empty contributions"},
    {"part-lineage", "8, new", "every part has a tree of lineages of its own"},
    {"settle-lineage", "9, new",
     "SETTLE gives the lineage of the shard's own activation, not the one that the table has by now"},
    {"counted-once", "2", "asynchronous: what the summary says was counted is not admitted again"},
    {"in-order", "async", "asynchronous: the contributions of a life are counted in the order of sending"},
    {"keep-until-told", "9c",
     "asynchronous: what an old life sent is kept until all that was decided before the fence is applied"},
    {"store-never-extends", "store", "a store's save does not make the log longer than synced members know it"},
    {"store-on-log", "store", "a store's save gives weights only if it is on the log"},
    {"store-keeps", "store", "what the store's last save lacks is not forgotten, also where all members have it"},
    {"store-acked", "store", "a store's save counts once all members have acknowledged its steps"},
    {"store-digest", "store",
     "whether a save is on the log is seen by the digest of what it went through, not by its lineage"},
    {"held", "--acks", "an update is applied when the shard says that k members have acknowledged it"},
    {"told-epoch", "--acks", "what it says of acknowledgements counts in the epoch in which it was said"},
    {"synced-acks", "--acks", "acknowledgements of members that are synced count, not those of who joins"},
}};

}  // namespace

const RuleText& text_of(Rule rule) { return kTexts[static_cast<size_t>(rule)]; }

std::optional<Rule> rule_named(std::string_view name) {
  for (size_t index = 0; index < kTexts.size(); ++index)
    if (kTexts[index].name == name) return static_cast<Rule>(index);
  return std::nullopt;
}

}  // namespace millrace::model
