#include "protocol/datagram/switch_link.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"

namespace millrace::protocol {

SwitchLink::SwitchLink(const Identity& identity)
    : identity_(identity),
      random_(random_key(identity.nonce_seed, identity.job, identity.worker)),
      handshake_(identity.key, KeyScope::handshake(identity.job, identity.worker)) {}

void SwitchLink::aim(const Endpoint& aggregator) {
  if (aggregator_ == aggregator) return;
  aggregator_ = aggregator;
  incarnation_.reset();
  pending_.reset();
}

void SwitchLink::request_challenge(uint32_t epoch, PacketSink& sink) {
  if (!pending_) {
    Nonce nonce;
    const std::array<uint64_t, 2> words{random_.next_u64(), random_.next_u64()};
    std::memcpy(nonce.data(), words.data(), nonce.size());
    pending_ = nonce;
  }
  std::array<uint8_t, kExtensionBytesMax> extension;
  const size_t bytes = put_challenge_request({*pending_}, extension);
  DatagramHeader header;
  header.type = DatagramType::kChallengeRequest;
  header.epoch = epoch;
  write(header, ByteSpan(extension).first(bytes), {}, handshake_, aggregator_, sink);
}

bool SwitchLink::expects(const Datagram& challenge) const {
  const std::optional<protocol::Challenge> answer = read_challenge(challenge.extension);
  return answer && pending_ && answer->worker_nonce == *pending_;
}

SwitchLink::Challenge SwitchLink::take_challenge(const Datagram& datagram, Renew renew) {
  const std::optional<protocol::Challenge> answer = read_challenge(datagram.extension);
  if (!answer || !pending_ || answer->worker_nonce != *pending_) return Challenge::kRefused;
  if (!is_hint(datagram) || !handshake_.verify(datagram)) return Challenge::kRefused;
  const uint64_t incarnation = datagram.header.incarnation;
  if (std::ranges::find(left_, Left{.aggregator = aggregator_, .incarnation = incarnation}) != left_.end())
    return Challenge::kRefused;
  const bool is_new = incarnation_ != incarnation;
  if (is_new && incarnation_)
    left_[incarnations_left_++ % kIncarnationsLeftMax] = {.aggregator = aggregator_, .incarnation = *incarnation_};
  if (is_new) all_seen_ = {};
  if (is_new || renew == Renew::kAlways) begin_session(incarnation, answer->aggregator_nonce);
  pending_.reset();
  return is_new ? Challenge::kNewIncarnation : Challenge::kSameIncarnation;
}

bool SwitchLink::answers_request(const Notice& notice) const { return pending_ && notice.worker_nonce == *pending_; }

void SwitchLink::begin_session(uint64_t incarnation, const Nonce& theirs) {
  incarnation_ = incarnation;
  session_nonce_ = *pending_;
  KeyScope scope{.use = KeyUse::kWorkerToAggregator,
                 .job = identity_.job,
                 .incarnation = incarnation,
                 .worker = identity_.worker,
                 .worker_nonce = session_nonce_,
                 .aggregator_nonce = theirs};
  up_.derive(identity_.key, scope);
  scope.use = KeyUse::kAggregatorToWorker;
  down_.derive(identity_.key, scope);
  all_.derive(identity_.key, KeyScope::to_all(identity_.job, incarnation));
  down_seen_ = {};
}

uint64_t SwitchLink::send(DatagramHeader header, ByteSpan extension, ByteSpan payload, const Endpoint& to,
                          PacketSink& sink) {
  MILLRACE_CHECK(incarnation_.has_value());
  header.incarnation = *incarnation_;
  return write(header, extension, payload, up_, to, sink);
}

uint64_t SwitchLink::write(DatagramHeader header, ByteSpan extension, ByteSpan payload, const DatagramKey& key,
                           const Endpoint& to, PacketSink& sink) {
  const std::span<uint8_t> room = sink.room();
  if (room.empty()) return 0;  // lost; the timer resends
  header.job = identity_.job;
  header.worker = identity_.worker;
  header.sequence = &key == &handshake_ ? 0 : ++sequence_;
  header.extension_words = static_cast<uint8_t>(extension.size() / 8);
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  MILLRACE_CHECK(room.size() >= datagram_bytes(header), room.size(), datagram_bytes(header));
  uint8_t* const body = room.data() + kDatagramHeaderBytes;
  if (!extension.empty()) std::memcpy(body, extension.data(), extension.size());
  if (!payload.empty()) std::memcpy(body + extension.size(), payload.data(), payload.size());
  const size_t bytes = key.seal(header, room);
  const bool is_request = header.type == DatagramType::kChallengeRequest;
  const size_t filled = is_request ? std::clamp<size_t>(identity_.packet_bytes, bytes, room.size()) : bytes;
  std::ranges::fill(room.subspan(bytes, filled - bytes), uint8_t{0});
  sink.send(filled, to);
  return header.sequence;
}

uint32_t SwitchLink::take_lost() {
  uint32_t count = 0;
  for (LostSequences lost = all_seen_.take_lost(); lost.first != 0; lost = all_seen_.take_lost()) {
    count += 1 + static_cast<uint32_t>(std::popcount(lost.others));
  }
  return count;
}

bool SwitchLink::is_hint(const Datagram& datagram) { return datagram.header.sequence == 0; }

SwitchLink::Verdict SwitchLink::judge(const Datagram& datagram) {
  const uint64_t sequence = datagram.header.sequence;
  const uint16_t worker = datagram.header.worker;
  const bool to_all = worker == kAllWorkers;
  if (!to_all && worker != identity_.worker) return Verdict::kForged;
  if (is_hint(datagram)) {
    return handshake_.verify(datagram) ? Verdict::kGood : Verdict::kForged;
  }
  if (!incarnation_) return Verdict::kForged;
  if (!(to_all ? all_ : down_).verify(datagram)) return Verdict::kForged;
  return (to_all ? all_seen_ : down_seen_).accept(sequence) ? Verdict::kGood : Verdict::kReplayed;
}

}  // namespace millrace::protocol
