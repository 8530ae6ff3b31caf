#pragma once

#include <cstdint>

#include "switch_agg/aggregator/aggregator_counters.h"

namespace millrace::testing {

/// Packets that an aggregator dropped: each has one of these (switch_agg/DESIGN.md, "Counters").
inline uint64_t dropped_packets(const switch_agg::AggregatorCounters& counters) {
  using Event = switch_agg::AggregatorEvent;
  uint64_t dropped = 0;
  for (const Event event : {Event::kTooShort,
                            Event::kWrongMagic,
                            Event::kUnknownType,
                            Event::kWrongLength,
                            Event::kOutOfBounds,
                            Event::kWrongJob,
                            Event::kUnexpectedType,
                            Event::kBadFields,
                            Event::kOtherPacketBytes,
                            Event::kWrongIncarnation,
                            Event::kNoSession,
                            Event::kBadMac,
                            Event::kReplay,
                            Event::kOldEpoch,
                            Event::kNotOpen,
                            Event::kStranger,
                            Event::kPast,
                            Event::kPrevious,
                            Event::kCurrentClosed,
                            Event::kFuture,
                            Event::kWrongBinding,
                            Event::kDuplicate,
                            Event::kMalformedPayload,
                            Event::kGroupOverlap,
                            Event::kHelloAgain,
                            Event::kHelloRefused,
                            Event::kKeptUnasked}) {
    dropped += counters[event];
  }
  return dropped;
}

}  // namespace millrace::testing
