#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace::switch_agg {

/// Names an aggregator's action on a packet, or an action of its own. Every dropped packet has exactly one of them
/// (DESIGN.md, "Counters").
enum class AggregatorEvent : uint8_t {
  kReceived,       ///< packets handed in; of a job: that name it, authentic or not
  kReceivedBytes,  ///< their UDP payload, as the port hands it in
  kSent,           ///< packets handed to the sink, one for each receiver
  kSentBytes,      ///< their UDP payload
  kNoRoom,         ///< the sink had no room: lost, as on the wire
  // Dropped before the job is known.
  kTooShort,
  kWrongMagic,
  kUnknownType,
  kWrongLength,
  kOutOfBounds,
  kWrongJob,
  // Dropped at a job's door.
  kUnexpectedType,    ///< a type that a worker does not send to this role
  kBadFields,         ///< extension, flags or positions that its type cannot have
  kOtherPacketBytes,  ///< a CHALREQ of a worker or rack of another `packet_bytes`
  kWrongIncarnation,
  kNoSession,  ///< right incarnation, but no handshake with that worker
  kBadMac,
  kReplay,
  kMalformedPayload,
  // The epoch procedure.
  kChallenged,
  kHello,         ///< taken into the collection
  kHelloAgain,    ///< of a worker that is in it
  kHelloRefused,  ///< hash or live set differ, positions that cannot be, another number of slots, another process
  kOldEpoch,
  kNotOpen,         ///< a newer epoch than ours, or ours is not open
  kStranger,        ///< not live, or no such slot
  kPositionsApart,  ///< by more than one turn: the epoch does not open
  kFetched,         ///< a result was uploaded whole
  kKeptUnasked,     ///< a fragment that no request asked for, or that does not fit
  kOpened,
  kNoSlots,
  kLeaseExpired,
  /// A new incarnation for another job of this number: the job before is over.
  kBegunAnew,
  // Contributions (S4).
  kAdded,
  kPast,
  kPrevious,  ///< of the turn before, answered or not
  kCurrentClosed,
  kKeptSent,     ///< a kept result went to one worker
  kKeptLimited,  ///< not again so soon
  kKeptNone,     ///< none is held
  kWrongBinding,
  kDuplicate,
  kGroupOverlap,  ///< a part of a group of which units are in
  kGroupPart,     ///< taken
  kGroupAdded,
  kFuture,
  kClosed,           ///< turns
  kVoid,             ///< results without an index
  kReselected,       ///< results cut by a threshold
  kOmittedOverflow,  ///< indices
  kOmittedNoRoom,    ///< indices: more than 16 fragments hold
  // At a rack.
  kGroupSent,
  kGroupAgain,
  kPartAgain,           ///< alone: the shard said that it is lost
  kGroupTooLong,        ///< for 16 parts
  kForwarded,           ///< units, raw
  kFlushed,             ///< sums that were begun and are forgotten
  kSentUp,              ///< PARTIALs to the shard: parts of groups, and units
  kSentUpBytes,         ///< their UDP payload
  kEntriesSelected,     ///< of whole sums: indices that went up, once a sum
  kEntriesNotSelected,  ///< indices that re-selection left out: back to the rack's workers
  kNoticeSent,
  kNoticeLimited,
  kLossNotices,  ///< missing packets of workers and racks that notices named.
  /// Authentic packets that the network marked (ECN): results have the flag.
  kCongestionMark,
  kEventCount,
};

inline constexpr size_t kAggregatorEvents = static_cast<size_t>(AggregatorEvent::kEventCount);

/// Returns the event's name in metrics, which never changes.
std::string_view aggregator_event_name(AggregatorEvent event);

/// Holds the number of each event. Plain numbers: read by the owner's thread.
struct AggregatorCounters {
  std::array<uint64_t, kAggregatorEvents> events{};

  uint64_t operator[](AggregatorEvent event) const { return events[static_cast<size_t>(event)]; }
  void add(AggregatorEvent event, uint64_t times = 1) { events[static_cast<size_t>(event)] += times; }
};

}  // namespace millrace::switch_agg
