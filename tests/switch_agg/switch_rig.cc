#include "tests/switch_agg/switch_rig.h"

#include <gtest/gtest.h>

#include "kernels/base/check.h"

namespace millrace::testing {

using protocol::Datagram;
using protocol::DatagramType;

protocol::JobKey job_key(uint8_t seed) {
  protocol::JobKey key{};
  key.fill(seed);
  return key;
}

SwitchRig::SwitchRig(const Shape& shape)
    : aggregator_({.jobs_max = 4,
                   .slots_max = shape.slots_max,
                   .window_indices_max = 8192,
                   .packet_bytes_max = shape.packet_bytes_max,
                   .answer_gap_ns = kNsPerMs},
                  99) {
  job_.job = kJob;
  job_.name = "rig";
  job_.key = job_key(3);
  job_.workers = shape.workers;
  job_.window_indices = shape.window_indices;
  job_.slots = shape.slots;
  job_.packet_bytes = shape.job_packet_bytes != 0 ? shape.job_packet_bytes : shape.packet_bytes_max;
  job_.reselect_k = shape.reselect_k;
  MILLRACE_CHECK(aggregator_.add_job(job_, now).has_value());
  for (uint32_t id = 0; id < shape.workers; ++id) workers_.emplace_back(kJob, job_.key, static_cast<uint16_t>(id));
}

void SwitchRig::give(uint32_t from, ByteSpan packet, protocol::Ecn ecn) {
  sink_.sent.clear();
  const protocol::ReceivedPacket received{.bytes = packet, .from = workers_[from].endpoint(), .ecn = ecn};
  around(sink_, [&](protocol::PacketSink& sink) { aggregator_.receive(received, now, sink); });
}

void SwitchRig::tick() {
  sink_.sent.clear();
  around(sink_, [&](protocol::PacketSink& sink) { aggregator_.tick(now, sink); });
}

void SwitchRig::shake_hands(uint32_t at) {
  give(at, workers_[at].challenge_request());
  ASSERT_EQ(sent().size(), 1);
  ASSERT_TRUE(workers_[at].take_challenge(sent()[0].bytes));
}

void SwitchRig::shake_hands() {
  for (uint32_t at = 0; at < workers_.size(); ++at) shake_hands(at);
}

void SwitchRig::greet(uint32_t epoch, const std::vector<uint64_t>& positions) {
  for (uint32_t at = 0; at < workers_.size(); ++at) {
    give(at, workers_[at].hello(
                 {.epoch = epoch, .live = live(), .positions = std::vector<uint64_t>(job_.slots, positions[at])}));
  }
}

void SwitchRig::open() {
  shake_hands();
  greet(1, std::vector<uint64_t>(workers_.size(), 1));
  ASSERT_EQ(aggregator_.status()[0].phase, switch_agg::SwitchPhase::kOpen);
}

std::vector<Datagram> SwitchRig::heard(uint32_t at) const {
  std::vector<Datagram> all;
  for (const Sent& packet : sink_.sent) {
    if (packet.to != workers_[at].endpoint()) continue;
    const auto heard = workers_[at].hear(packet.bytes);
    EXPECT_TRUE(heard && heard->authentic);
    if (heard && heard->authentic) all.push_back(heard->datagram);
  }
  return all;
}

Datagram SwitchRig::only(uint32_t at) const {
  const std::vector<Datagram> all = heard(at);
  EXPECT_EQ(all.size(), 1);
  return all.empty() ? Datagram{} : all[0];
}

Entries SwitchRig::result(uint32_t at) const {
  Entries all;
  for (const Datagram& datagram : heard(at)) {
    EXPECT_EQ(datagram.header.type, DatagramType::kResult);
    for (const auto& [index, value] : entries_of(datagram, job_.window_indices)) {
      EXPECT_TRUE(all.emplace(index, value).second) << "index " << index << " in two fragments";
    }
  }
  return all;
}

void SwitchRig::turn(MadeUpWorker::ContributionFields fields, const std::vector<Entries>& by_worker) {
  fields.window_indices = job_.window_indices;
  for (uint32_t at = 0; at < by_worker.size(); ++at) {
    give(at, by_worker[at].empty() ? workers_[at].empty(fields) : workers_[at].contribution(fields, by_worker[at]));
  }
}

}  // namespace millrace::testing
