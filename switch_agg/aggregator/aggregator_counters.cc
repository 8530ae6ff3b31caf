#include "switch_agg/aggregator/aggregator_counters.h"

#include "kernels/base/check.h"

namespace millrace::switch_agg {
namespace {

/// In the order of AggregatorEvent.
constexpr std::array<std::string_view, kAggregatorEvents> kNames = {"received",
                                                                    "received_bytes",
                                                                    "sent",
                                                                    "sent_bytes",
                                                                    "no_room",
                                                                    "too_short",
                                                                    "wrong_magic",
                                                                    "unknown_type",
                                                                    "wrong_length",
                                                                    "out_of_bounds",
                                                                    "wrong_job",
                                                                    "unexpected_type",
                                                                    "bad_fields",
                                                                    "other_packet_bytes",
                                                                    "wrong_life",
                                                                    "no_session",
                                                                    "bad_mac",
                                                                    "replay",
                                                                    "malformed_payload",
                                                                    "challenged",
                                                                    "hello",
                                                                    "hello_again",
                                                                    "hello_refused",
                                                                    "old_epoch",
                                                                    "not_open",
                                                                    "stranger",
                                                                    "positions_apart",
                                                                    "fetched",
                                                                    "kept_unasked",
                                                                    "opened",
                                                                    "no_slots",
                                                                    "lease_expired",
                                                                    "begun_anew",
                                                                    "added",
                                                                    "past",
                                                                    "previous",
                                                                    "current_closed",
                                                                    "kept_sent",
                                                                    "kept_limited",
                                                                    "kept_none",
                                                                    "wrong_binding",
                                                                    "duplicate",
                                                                    "group_overlap",
                                                                    "group_part",
                                                                    "group_added",
                                                                    "future",
                                                                    "closed",
                                                                    "void",
                                                                    "reselected",
                                                                    "omitted_overflow",
                                                                    "omitted_no_room",
                                                                    "group_sent",
                                                                    "group_again",
                                                                    "part_again",
                                                                    "group_too_long",
                                                                    "forwarded",
                                                                    "flushed",
                                                                    "sent_up",
                                                                    "sent_up_bytes",
                                                                    "entries_kept",
                                                                    "entries_cut",
                                                                    "notice_sent",
                                                                    "notice_limited",
                                                                    "lost_told",
                                                                    "congestion_mark"};
static_assert(!kNames.back().empty(), "a name for each event");

}  // namespace

std::string_view aggregator_event_name(AggregatorEvent event) {
  const auto at = static_cast<size_t>(event);
  MILLRACE_CHECK(at < kNames.size(), at);
  return kNames[at];
}

}  // namespace millrace::switch_agg
