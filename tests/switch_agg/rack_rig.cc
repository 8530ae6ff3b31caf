#include "tests/switch_agg/rack_rig.h"

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {

using protocol::Datagram;
using protocol::DatagramType;

namespace {

protocol::Endpoint machine(uint16_t port) {
  protocol::Endpoint out;
  out.address[14] = 1;
  out.port = port;
  return out;
}

const protocol::Endpoint kShard = machine(1);
const protocol::Endpoint kRack = machine(2);

switch_agg::AggregatorOptions options_of(uint32_t packet_bytes_max, uint32_t slots_max) {
  return {.jobs_max = 2,
          .slots_max = slots_max,
          .window_indices_max = 65'536,
          .packet_bytes_max = packet_bytes_max,
          .answer_gap_ns = kNsPerMs};
}

}  // namespace

RackRig::RackRig(const Shape& shape)
    : options_(options_of(shape.packet_bytes_max, 4)),
      rack_(options_of(shape.rack_packet_bytes_max, shape.rack_slots_max), 77) {
  shard_job_.job = kJob;
  shard_job_.name = "rig";
  shard_job_.key = job_key(3);
  shard_job_.workers = 3;
  shard_job_.window_indices = shape.window_indices;
  shard_job_.slots = 1;
  shard_job_.packet_bytes = shape.packet_bytes_max;
  rack_job_ = shard_job_;
  shard_job_.racks = std::vector<uint64_t>{3};
  rack_job_.role = switch_agg::Role::kCombine;
  rack_job_.rack = 3;
  rack_job_.shard = kShard;
  rack_job_.packet_bytes = shape.rack_packet_bytes_max;
  rack_job_.reselect_k = shape.rack_reselect_k;
  MILLRACE_CHECK(rack_.add_job(rack_job_, now).has_value() == (shape.rack_slots_max >= rack_job_.slots));
  restart_shard();
  for (uint16_t id = 0; id < 3; ++id) {
    at_shard_.emplace_back(kJob, shard_job_.key, id);
    at_rack_.emplace_back(kJob, shard_job_.key, id);
  }
}

void RackRig::restart_shard() {
  shard_ = std::make_unique<switch_agg::Aggregator>(options_, ++lives_);
  MILLRACE_CHECK(shard_->add_job(shard_job_, now).has_value());
}

/// Until nothing is under way between the two.
void RackRig::carry(KeepingSink& from) {
  std::vector<Sent> sent;
  sent.swap(from.sent);
  for (const Sent& packet : sent) {
    if (packet.to != kShard && packet.to != kRack) {
      to_workers_.push_back(packet);
      continue;
    }
    const Datagram datagram = *protocol::parse_datagram(packet.bytes);
    if (datagram.header.type == DatagramType::kPartial) partials_.push_back(packet.bytes);
    if (lost(datagram)) continue;
    if (packet.to == kShard) {
      hand_to_shard({.bytes = packet.bytes, .from = kRack, .ecn = packet.ecn});
    } else {
      hand_to_rack({.bytes = packet.bytes, .from = kShard, .ecn = packet.ecn});
    }
  }
}

void RackRig::hand_to_rack(const protocol::ReceivedPacket& packet) {
  around(rack_sink_, [&](protocol::PacketSink& sink) { rack_.receive(packet, now, sink); });
  carry(rack_sink_);
}

void RackRig::hand_to_shard(const protocol::ReceivedPacket& packet) {
  around(shard_sink_, [&](protocol::PacketSink& sink) { shard_->receive(packet, now, sink); });
  carry(shard_sink_);
}

void RackRig::give_rack(ByteSpan packet, protocol::Ecn ecn) {
  hand_to_rack({.bytes = packet, .from = at_rack_[0].endpoint(), .ecn = ecn});
}

void RackRig::give_shard(ByteSpan packet) {
  const auto worker = protocol::parse_datagram(packet)->header.worker;
  const bool is_worker = worker < at_shard_.size();
  hand_to_shard({.bytes = packet, .from = is_worker ? at_shard_[worker].endpoint() : kRack});
}

void RackRig::shake_hands_with_shard() {
  for (MadeUpWorker& worker : at_shard_) {
    to_workers_.clear();
    give_shard(worker.challenge_request());
    ASSERT_EQ(to_workers_.size(), 1);
    ASSERT_TRUE(worker.take_challenge(to_workers_[0].bytes));
  }
}

void RackRig::greet_shard(uint32_t epoch, uint64_t live, uint64_t position) {
  for (MadeUpWorker& worker : at_shard_) {
    if ((live >> worker.id() & 1) == 0) continue;
    give_shard(worker.hello({.epoch = epoch, .live = live, .positions = {position}}));
  }
}

void RackRig::greet_rack(uint32_t epoch, uint64_t live, uint64_t membership_hash) {
  for (uint32_t worker = 0; worker < 2; ++worker) {
    if ((live >> worker & 1) == 0) continue;
    give_rack(
        at_rack_[worker].hello({.epoch = epoch, .live = live, .positions = {}, .membership_hash = membership_hash}));
  }
}

void RackRig::shake_hands_with_rack() {
  for (uint32_t worker = 0; worker < 2; ++worker) {
    to_workers_.clear();
    give_rack(at_rack_[worker].challenge_request());
    ASSERT_EQ(to_workers_.size(), 1);
    ASSERT_TRUE(at_rack_[worker].take_challenge(to_workers_[0].bytes));
  }
}

void RackRig::open() {
  shake_hands_with_shard();
  greet_shard(1, 7, 1);
  shake_hands_with_rack();
  greet_rack(1, 7);
  ASSERT_EQ(shard_->status()[0].phase, switch_agg::SwitchPhase::kOpen);
  ASSERT_EQ(rack_.status()[0].phase, switch_agg::SwitchPhase::kOpen);
  to_workers_.clear();
}

void RackRig::to_rack(uint32_t worker, const Fields& fields, const Entries& entries) {
  MadeUpWorker& from = at_rack_[worker];
  give_rack(entries.empty() ? from.empty(fields) : from.contribution(fields, entries));
}

void RackRig::tick_rack() {
  around(rack_sink_, [&](protocol::PacketSink& sink) { rack_.tick(now, sink); });
  carry(rack_sink_);
}

void RackRig::tick_shard() {
  around(shard_sink_, [&](protocol::PacketSink& sink) { shard_->tick(now, sink); });
  carry(shard_sink_);
}

void RackRig::to_shard(uint32_t worker, const Fields& fields, const Entries& entries) {
  MadeUpWorker& from = at_shard_[worker];
  give_shard(entries.empty() ? from.empty(fields) : from.contribution(fields, entries));
}

std::vector<Datagram> RackRig::partials() {
  given_.swap(partials_);
  partials_.clear();
  std::vector<Datagram> out;
  for (const ByteBuffer& packet : given_) out.push_back(*protocol::parse_datagram(packet));
  return out;
}

std::vector<ByteBuffer> RackRig::results(uint32_t worker) {
  std::vector<ByteBuffer> out;
  std::erase_if(to_workers_, [&](const Sent& packet) {
    const auto heard = at_shard_[worker].hear(packet.bytes);
    const bool is_his = packet.to == at_shard_[worker].endpoint() && heard && heard->authentic &&
                        heard->datagram.header.type == DatagramType::kResult;
    if (is_his) out.push_back(packet.bytes);
    return is_his;
  });
  return out;
}

Entries RackRig::told(uint32_t worker) {
  Entries all;
  for (const ByteBuffer& packet : results(worker)) {
    const Datagram datagram = *protocol::parse_datagram(packet);
    for (const auto& [index, value] : entries_of(datagram, shard_job_.window_indices)) all[index] = value;
  }
  return all;
}

}  // namespace millrace::testing
