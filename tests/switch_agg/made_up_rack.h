#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/switch_agg/rack_rig.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {

/// A shard to which the test speaks as the rack.
class MadeUpRack : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(rig_.open());
    rig_.give_shard(rack_.challenge_request());
    // The answer went to the true rack; the nonces of both are known here all the same.
    ASSERT_NO_FATAL_FAILURE(shake_hands());
  }
  void shake_hands() {
    KeepingSink sink;
    rig_.shard().receive({.bytes = rack_.challenge_request(), .from = {}}, rig_.now, sink);
    ASSERT_EQ(sink.sent.size(), 1);
    ASSERT_TRUE(rack_.take_challenge(sink.sent[0].bytes));
    rig_.give_shard(rack_.hello({.live = 7, .positions = {}}));
  }

  struct Part {
    protocol::PartialTerms terms{.have = 3, .last = 0, .hash = 55};
    uint8_t part = 0;
    uint8_t flags = protocol::datagram_flag::kLast;
    uint64_t turn = 1;
    uint32_t step = 0;
    Entries entries;
  };
  /// Under a new sequence number each time.
  ByteBuffer packet(const Part& part) {
    const RackRig::Fields fields{.turn = part.turn, .step = part.step, .fragment = part.part, .flags = part.flags};
    const ByteBuffer unit = rig_.at_shard(0).contribution(fields, part.entries);
    const protocol::Datagram datagram = *protocol::parse_datagram(unit);
    protocol::DatagramHeader header = datagram.header;
    header.type = protocol::DatagramType::kPartial;
    header.incarnation = rack_.incarnation();
    header.worker = rack_.id();
    ByteBuffer extension(protocol::kPartialTermsBytes);
    protocol::put_partial_terms(part.terms, extension);
    return rack_.sealed(header, extension, datagram.payload);
  }
  void give(const Part& part) { rig_.give_shard(packet(part)); }
  uint64_t counted(switch_agg::AggregatorEvent event) const { return rig_.counted_at_shard(event); }

  RackRig rig_;
  MadeUpWorker rack_{RackRig::kJob, job_key(3), 0x8000};
};

}  // namespace millrace::testing
