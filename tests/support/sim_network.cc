#include "tests/support/sim_network.h"

#include <algorithm>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/messages/frame.h"

namespace millrace::testing {

void SimNetwork::block(uint32_t from, uint32_t to, TimeNs until) {
  TimeNs& blocked = blocked_until_[from * nodes_ + to];
  blocked = std::max(blocked, until);
}

TimeNs SimNetwork::draw_latency() {
  TimeNs latency = scheduler_.draw(faults_.latency_min, std::max(faults_.latency_min, faults_.latency_max));
  if (scheduler_.chance(faults_.slow)) latency += scheduler_.draw(0, faults_.slow_max);
  return latency;
}

void SimNetwork::send(uint32_t from, uint32_t to, const protocol::Message& message, const Deliver& deliver) {
  MILLRACE_CHECK(from < nodes_ && to < nodes_, from, to, nodes_);
  ++sent_;
  if (blocked(from, to) || scheduler_.chance(faults_.loss)) {
    ++lost_;
    return;
  }
  protocol::Message travelling = real_bytes_ ? through_bytes(message) : message;
  if (!travelling.payload.bytes.empty() && scheduler_.chance(faults_.corruption)) {
    ByteBuffer damaged(travelling.payload.bytes.begin(), travelling.payload.bytes.end());
    damaged[scheduler_.dice().next_below(damaged.size())] ^=
        static_cast<uint8_t>(1u << scheduler_.dice().next_below(8));
    travelling.payload = SharedBytes::from(std::move(damaged));
  }
  if (scheduler_.chance(faults_.duplication)) schedule(from, to, travelling, deliver);
  schedule(from, to, std::move(travelling), deliver);
}

void SimNetwork::schedule(uint32_t from, uint32_t to, protocol::Message message, const Deliver& deliver) {
  TimeNs arrival = scheduler_.now() + draw_latency();
  if (faults_.in_order) {
    TimeNs& last = last_arrival_[{from, to}];
    arrival = last = std::max(arrival, last);
  }
  // A message that was sent before a partition began is lost with it, unless it has arrived by then.
  scheduler_.at(arrival, [this, from, to, message = std::move(message), deliver]() mutable {
    if (blocked(from, to)) {
      ++lost_;
      return;
    }
    deliver(std::move(message));
  });
}

protocol::Message SimNetwork::through_bytes(const protocol::Message& message) {
  const ByteBuffer envelope = protocol::encode_envelope(message);
  SharedBytes payload = SharedBytes::from(ByteBuffer(message.payload.bytes.begin(), message.payload.bytes.end()));
  auto decoded = protocol::decode_message(envelope, std::move(payload), {});
  if (!decoded) {
    byte_faults_.push_back(describe_message(message) + ": " + decoded.error().message);
    return message;
  }
  return std::move(*decoded);
}

namespace {

struct Describe {
  std::string operator()(const protocol::Contribution& body) const {
    return " part " + std::to_string(body.part) + " step " + std::to_string(body.step);
  }
  std::string operator()(const protocol::Update& body) const {
    std::string text = " part " + std::to_string(body.part) + " step " + std::to_string(body.step) + " decided_in " +
                       std::to_string(body.decided_in) + " stable " + std::to_string(body.stable) + " of";
    for (const auto& id : body.contributors)
      text += ' ' + std::to_string(id.worker) + '/' + std::to_string(id.incarnation);
    for (const auto& one : body.merged)
      text += " +" + std::to_string(one.contributor.worker) + '/' + std::to_string(one.contributor.incarnation);
    return text;
  }
  std::string operator()(const protocol::Duplicate& body) const {
    return " part " + std::to_string(body.part) + " step " + std::to_string(body.step);
  }
  std::string operator()(const protocol::StepDecided& body) const {
    return " part " + std::to_string(body.part) + " step " + std::to_string(body.step) +
           (body.counted ? " counted" : " not counted");
  }
  std::string operator()(const protocol::Refuse& body) const {
    std::string text = std::string(" ") + std::string(error_code_name(body.code)) + (body.retry ? " (retry)" : "");
    if (body.about_contribution) text += " part " + std::to_string(body.part) + " step " + std::to_string(body.step);
    return text + ": " + body.sentence;
  }
  std::string operator()(const protocol::Abort& body) const {
    return std::string(" ") + std::string(error_code_name(body.code)) + ": " + body.sentence;
  }
  std::string operator()(const protocol::Goodbye& body) const {
    return " reason " + std::to_string(static_cast<int>(body.reason)) + ": " + body.sentence;
  }
  std::string operator()(const protocol::Ack& body) const {
    std::string text;
    for (const auto& entry : body.entries) text += ' ' + std::to_string(entry.part) + '<' + std::to_string(entry.n);
    return text;
  }
  std::string operator()(const protocol::ThresholdHistogram& body) const {
    return " bucket " + std::to_string(body.bucket) + " step " + std::to_string(body.step);
  }
  std::string operator()(const protocol::Welcome& body) const { return membership(body.membership); }
  std::string operator()(const protocol::MembershipChange& body) const { return membership(body.membership); }
  std::string operator()(const protocol::Heartbeat& body) const {
    return " applied " + std::to_string(body.steps_applied);
  }
  std::string operator()(const protocol::Hello& body) const { return " nonce " + std::to_string(body.nonce); }
  std::string operator()(const protocol::ShardHello&) const { return ""; }
  std::string operator()(const protocol::Collect&) const { return ""; }
  std::string operator()(const protocol::Synced&) const { return ""; }
  std::string operator()(const protocol::Pull& body) const {
    return " part " + std::to_string(body.part) + ", at least " + std::to_string(body.at_least);
  }
  std::string operator()(const protocol::Pulled& body) const {
    return " part " + std::to_string(body.part) + ", n " + std::to_string(body.n) + ", values " +
           std::to_string(body.values);
  }
  std::string operator()(const protocol::Place& body) const {
    return " part " + std::to_string(body.part) + " from " + std::to_string(body.offset);
  }
  std::string operator()(const protocol::State& body) const {
    std::string text = std::string(body.synced ? " synced" : " joining") + (body.stranded ? " stranded" : "");
    for (const auto& part : body.parts) {
      text += ' ' + std::to_string(part.part) + ':' + std::to_string(part.n) + '@' + std::to_string(part.decided_in) +
              " branch " + std::to_string(part.branch) + " keeps " + std::to_string(part.retained_from) + "..";
    }
    return text;
  }
  std::string operator()(const protocol::Fetch& body) const {
    return " part " + std::to_string(body.part) + " from step " + std::to_string(body.first_step);
  }
  std::string operator()(const protocol::Fetched& body) const {
    return " part " + std::to_string(body.part) + " n " + std::to_string(body.n) + " decided_in " +
           std::to_string(body.decided_in);
  }
  std::string operator()(const protocol::Settle& body) const {
    const char* weights[] = {"?", "own", "snapshot", "none"};
    std::string text = " part " + std::to_string(body.part) + " decided " + std::to_string(body.decided) + " branch " +
                       std::to_string(body.branch) + (body.on_log ? " on the log" : " off the log") + ", weights " +
                       weights[static_cast<size_t>(body.weights) % 4];
    if (body.counted) {
      text += ", counted " + std::to_string(body.counted->last_step) + '/' + std::to_string(body.counted->incarnation) +
              " mask " + std::to_string(body.counted->counted_mask);
    }
    return text;
  }
  std::string operator()(const protocol::SnapshotRequest& body) const {
    std::string text =
        " for " + std::to_string(body.for_worker) + '/' + std::to_string(body.for_incarnation) + " parts";
    for (const uint32_t part : body.parts) text += ' ' + std::to_string(part);
    return text;
  }
  std::string operator()(const protocol::Snapshot& body) const {
    return " for " + std::to_string(body.for_worker) + '/' + std::to_string(body.for_incarnation) + " part " +
           std::to_string(body.part) + " n " + std::to_string(body.n) + '@' + std::to_string(body.decided_in) +
           " from " + std::to_string(body.offset);
  }

  static std::string membership(const protocol::Membership& membership) {
    std::string text = " epoch " + std::to_string(membership.epoch) + (membership.started ? " started" : "") +
                       (membership.finished ? " finished" : "");
    for (const auto& member : membership.members)
      text += ' ' + std::to_string(member.worker) + '/' + std::to_string(member.incarnation) +
              (member.state == protocol::MemberState::kJoining ? "?" : "");
    return text;
  }
};

}  // namespace

std::string describe_message(const protocol::Message& message) {
  const protocol::Header& header = message.header;
  return std::string(protocol::body_name(message.body)) + " [job " + std::to_string(header.job) + " epoch " +
         std::to_string(header.epoch) + " worker " + std::to_string(header.worker) + '/' +
         std::to_string(header.incarnation) + " shard " + std::to_string(header.shard) + '/' +
         std::to_string(header.shard_incarnation) + "]" + std::visit(Describe(), message.body) +
         (message.payload.bytes.empty() ? "" : " payload " + std::to_string(message.payload.bytes.size()));
}

uint64_t fingerprint(const protocol::Message& message) {
  return hash64(message.payload.bytes, hash64(describe_message(message)));
}

}  // namespace millrace::testing
