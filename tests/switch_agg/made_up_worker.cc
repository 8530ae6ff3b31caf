#include "tests/switch_agg/made_up_worker.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "kernels/base/check.h"

namespace millrace::testing {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramKey;
using protocol::DatagramType;
using protocol::kDatagramHeaderBytes;
using protocol::kDatagramMacBytes;
using protocol::KeyScope;
using protocol::KeyUse;
namespace flag = protocol::datagram_flag;

namespace {

/// Memory for the longest code. Not written: that would take a fuzzer longer than all else that it does with a packet.
template <typename T, size_t kCount>
class Unwritten {
 public:
  std::span<T> span() const { return {memory_.get(), kCount}; }

 private:
  std::unique_ptr<T[]> memory_ = std::make_unique_for_overwrite<T[]>(kCount);
};

}  // namespace

MadeUpWorker::MadeUpWorker(uint32_t job, const protocol::JobKey& key, uint16_t id)
    : job_(job), key_(key), id_(id), handshake_(key, KeyScope::handshake(job, id)) {}

protocol::Endpoint MadeUpWorker::endpoint() const {
  protocol::Endpoint endpoint;
  endpoint.address[15] = static_cast<uint8_t>(id_);
  endpoint.port = static_cast<uint16_t>(1000 + job_);
  return endpoint;
}

DatagramHeader MadeUpWorker::header(DatagramType type) const {
  DatagramHeader header;
  header.type = type;
  header.job = job_;
  header.incarnation = incarnation_;
  header.worker = id_;
  return header;
}

ByteBuffer MadeUpWorker::challenge_request() {
  ++nonces_;
  nonce_.fill(0);
  std::memcpy(nonce_.data(), &nonces_, sizeof(nonces_));
  nonce_[15] = static_cast<uint8_t>(id_);
  ByteBuffer packet(256);
  DatagramHeader header = this->header(DatagramType::kChallengeRequest);
  header.incarnation = 0;
  header.extension_words = static_cast<uint8_t>(
      protocol::put_challenge_request({.worker_nonce = nonce_}, std::span(packet).subspan(kDatagramHeaderBytes)) / 8);
  packet.resize(handshake_.seal(header, packet));
  return packet;
}

bool MadeUpWorker::take_challenge(ByteSpan packet) {
  const auto datagram = protocol::parse_datagram(packet);
  if (!datagram || datagram->header.type != DatagramType::kChallenge || !handshake_.verify(*datagram)) return false;
  const auto challenge = protocol::read_challenge(datagram->extension);
  if (!challenge || challenge->worker_nonce != nonce_) return false;
  incarnation_ = datagram->header.incarnation;
  KeyScope scope{.use = KeyUse::kWorkerToAggregator,
                 .job = job_,
                 .incarnation = incarnation_,
                 .worker = id_,
                 .worker_nonce = nonce_,
                 .aggregator_nonce = challenge->aggregator_nonce};
  to_aggregator_.emplace(key_, scope);
  scope.use = KeyUse::kAggregatorToWorker;
  from_aggregator_.emplace(key_, scope);
  to_all_.emplace(key_, KeyScope::to_all(job_, incarnation_));
  sequence_ = 0;
  return true;
}

ByteBuffer MadeUpWorker::hello(const HelloFields& fields) {
  protocol::HelloTerms hello{.membership_hash = fields.membership_hash,
                             .live = fields.live,
                             .worker_nonce = nonce_,
                             .slots = static_cast<uint32_t>(fields.positions.size()),
                             .positions = {}};
  std::ranges::copy(fields.positions, hello.positions.begin());
  ByteBuffer extension(protocol::kExtensionBytesMax);
  extension.resize(put_hello(hello, extension));
  DatagramHeader header = this->header(DatagramType::kHello);
  header.epoch = fields.epoch;
  return sealed(header, extension, {});
}

ByteBuffer MadeUpWorker::contribution(const ContributionFields& fields, const Entries& entries) {
  DatagramHeader header = this->header(DatagramType::kContribution);
  header.turn = fields.turn;
  header.epoch = fields.epoch;
  header.step = fields.step;
  header.window = fields.window;
  header.next = fields.next;
  header.slot = fields.slot;
  header.fragment = fields.fragment;
  header.flags = fields.flags;
  header.exponent = fields.exponent;
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;
  for (const auto& [index, value] : entries) {
    indices.push_back(index);
    values.push_back(value);
  }
  if (entries.empty()) return sealed(header, {}, {});
  const Unwritten<int32_t, protocol::kFragmentEntriesMax> decoded;
  const Unwritten<uint8_t, 8'000> payload;
  const uint32_t taken =
      encode_window({indices, values}, fields.codecs, fields.window_indices, header, payload.span(), decoded.span());
  MILLRACE_CHECK(taken == entries.size(), taken, entries.size());
  return sealed(header, {}, payload.span().first(header.payload_bytes));
}

ByteBuffer MadeUpWorker::empty(ContributionFields fields) {
  fields.flags |= flag::kEmpty | flag::kLast;
  return contribution(fields, {});
}

ByteBuffer MadeUpWorker::sealed(DatagramHeader header, ByteSpan extension, ByteSpan payload) {
  return sealed_as(++sequence_, header, extension, payload);
}

ByteBuffer MadeUpWorker::sealed_as(uint64_t sequence, DatagramHeader header, ByteSpan extension, ByteSpan payload) {
  MILLRACE_CHECK(to_aggregator_.has_value());
  header.sequence = sequence;
  header.extension_words = static_cast<uint8_t>(extension.size() / 8);
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  ByteBuffer packet(datagram_bytes(header));
  std::ranges::copy(extension, packet.begin() + kDatagramHeaderBytes);
  std::ranges::copy(payload, packet.begin() + static_cast<std::ptrdiff_t>(kDatagramHeaderBytes + extension.size()));
  to_aggregator_->seal(header, packet);
  return packet;
}

std::optional<MadeUpWorker::Heard> MadeUpWorker::hear(ByteSpan packet) const {
  const auto datagram = protocol::parse_datagram(packet);
  if (!datagram) return std::nullopt;
  Heard heard{.datagram = *datagram, .authentic = false};
  const DatagramHeader& header = datagram->header;
  if (header.sequence == 0) {
    heard.authentic = handshake_.verify(*datagram);
  } else if (header.worker == protocol::kAllWorkers) {
    heard.authentic = to_all_ && to_all_->verify(*datagram);
  } else {
    heard.authentic = header.worker == id_ && from_aggregator_ && from_aggregator_->verify(*datagram);
  }
  return heard;
}

Entries entries_of(const Datagram& datagram, uint32_t window_indices) {
  Entries entries;
  if (datagram.header.entries == 0) return entries;
  const Unwritten<uint16_t, protocol::kFragmentEntriesMax> indices;
  const Unwritten<int32_t, protocol::kFragmentEntriesMax> values;
  const auto count = decode_window(datagram.header, datagram.payload, window_indices, {indices.span(), values.span()});
  MILLRACE_CHECK(count.has_value());
  for (uint32_t at = 0; at < *count; ++at) entries[indices.span()[at]] = values.span()[at];
  return entries;
}

}  // namespace millrace::testing
