#include "tests/worker/switch/scripted_switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "protocol/datagram/window/window_code.h"

namespace millrace::worker::testing {

using protocol::DatagramHeader;
using protocol::DatagramKey;
using protocol::DatagramType;
using protocol::KeyScope;
using protocol::KeyUse;

namespace {

DatagramHeader header_of(DatagramType type, uint32_t epoch) {
  DatagramHeader header;
  header.type = type;
  header.epoch = epoch;
  return header;
}

}  // namespace

void CollectingSink::send(size_t bytes, const protocol::Endpoint& to) {
  sent_.push_back({ByteBuffer(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(bytes)), to});
}

std::vector<SentPacket> CollectingSink::take() { return std::exchange(sent_, {}); }

std::vector<SentPacket> CollectingSink::take(DatagramType type) {
  std::vector<SentPacket> out = take();
  std::erase_if(out, [&](const SentPacket& packet) { return packet.header().type != type; });
  return out;
}

void Told::on_completed(const CompletedWindow& window) {
  Window out{.step = window.step,
             .window = window.window,
             .turn = window.turn,
             .exponent = window.exponent,
             .contributors = window.contributors,
             .update = {},
             .returned = {}};
  for (size_t i = 0; i < window.indices.size(); ++i) out.update[window.begin + window.indices[i]] = window.sums[i];
  window.each_returned([&out](uint32_t index, float value) { out.returned[index] = value; });
  windows.push_back(std::move(out));
}

protocol::Endpoint endpoint(uint16_t port) {
  protocol::Endpoint out;
  out.address[15] = 1;
  out.port = port;
  return out;
}

DatagramKey ScriptedSwitch::key(KeyUse use) const {
  return DatagramKey(options_.key, {.use = use,
                                    .job = options_.job,
                                    .incarnation = incarnation_,
                                    .worker = options_.worker,
                                    .worker_nonce = worker_nonce_,
                                    .aggregator_nonce = own_nonce_});
}

ByteBuffer ScriptedSwitch::seal(DatagramHeader header, ByteSpan extension, ByteSpan payload, const DatagramKey& with) {
  header.job = options_.job;
  header.incarnation = incarnation_;
  header.extension_words = static_cast<uint8_t>(extension.size() / 8);
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  ByteBuffer out(protocol::datagram_bytes(header));
  uint8_t* const body = out.data() + protocol::kDatagramHeaderBytes;
  if (!extension.empty()) std::memcpy(body, extension.data(), extension.size());
  if (!payload.empty()) std::memcpy(body + extension.size(), payload.data(), payload.size());
  EXPECT_EQ(with.seal(header, out), out.size());
  return out;
}

ByteBuffer ScriptedSwitch::challenge(const SentPacket& request) {
  const auto asked = protocol::read_challenge_request(request.datagram().extension);
  EXPECT_TRUE(asked.has_value());
  worker_nonce_ = asked->worker_nonce;
  own_nonce_.fill(static_cast<uint8_t>(incarnation_));
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes = protocol::put_challenge({worker_nonce_, own_nonce_}, room);
  DatagramHeader header = header_of(DatagramType::kChallenge, 0);
  header.worker = options_.worker;
  const DatagramKey handshake(options_.key, KeyScope::handshake(options_.job, options_.worker));
  return seal(header, ByteSpan(room).first(bytes), {}, handshake);
}

ByteBuffer ScriptedSwitch::welcome(uint32_t epoch, const std::vector<uint64_t>& turns) {
  protocol::WelcomeTerms welcome;
  welcome.slots = static_cast<uint32_t>(turns.size());
  welcome.window_indices = options_.window_indices;
  std::ranges::copy(turns, welcome.turns.begin());
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes = protocol::put_welcome(welcome, room);
  DatagramHeader header = header_of(DatagramType::kWelcome, epoch);
  header.worker = options_.worker;
  header.sequence = ++sequence_;
  return seal(header, ByteSpan(room).first(bytes), {}, key(KeyUse::kAggregatorToWorker));
}

ByteBuffer ScriptedSwitch::fetch(uint32_t epoch, uint16_t slot, uint64_t turn) {
  DatagramHeader header = header_of(DatagramType::kFetch, epoch);
  header.worker = options_.worker;
  header.slot = slot;
  header.turn = turn;
  header.sequence = ++sequence_;
  return seal(header, {}, {}, key(KeyUse::kAggregatorToWorker));
}

ByteBuffer ScriptedSwitch::result(uint32_t epoch, const ResultSays& says) {
  DatagramHeader header = header_of(DatagramType::kResult, epoch);
  header.worker = protocol::kAllWorkers;
  header.sequence = ++sequence_to_all_;
  header.slot = says.slot;
  header.turn = says.turn;
  header.step = says.step;
  header.window = says.window;
  header.next = says.next;
  header.fragment = says.fragment;
  header.flags = says.flags;
  header.exponent = static_cast<int8_t>(says.exponent);
  ByteBuffer payload(1024);
  std::vector<int32_t> decoded(says.sums.size());
  const protocol::WindowCodecs codecs{protocol::WindowIndexCodec::kRaw, protocol::WindowValueCodec::kFixed32};
  uint32_t taken = 0;
  if (!says.indices.empty()) {
    taken =
        protocol::encode_window({says.indices, says.sums}, codecs, options_.window_indices, header, payload, decoded);
  }
  EXPECT_EQ(taken, says.indices.size());
  payload.resize(header.payload_bytes);
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  size_t bytes = protocol::put_result_terms(
      {.contributors = says.contributors, .selected = says.selected, .decided_epoch = epoch}, room);
  const std::array<uint64_t, 2> marks{says.selected, says.kept};
  const size_t mark_bytes = says.selected == 0 ? 0 : says.indices.empty() ? 8 : 16;
  std::memcpy(room.data() + bytes, marks.data(), mark_bytes);
  bytes += mark_bytes;
  const DatagramKey all(options_.key, KeyScope::to_all(options_.job, incarnation_));
  return seal(header, ByteSpan(room).first(bytes), payload, all);
}

ByteBuffer ScriptedSwitch::notice(protocol::NoticeCode code, uint32_t epoch, const protocol::Nonce& nonce) {
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes =
      protocol::put_notice({.code = code, .epoch = epoch, .incarnation = incarnation_, .worker_nonce = nonce}, room);
  const bool is_hint = code == protocol::NoticeCode::kUnknownIncarnation || code == protocol::NoticeCode::kNoSlots;
  DatagramHeader header = header_of(DatagramType::kNotice, epoch);
  header.worker = options_.worker;
  header.sequence = is_hint ? 0 : ++sequence_;
  const DatagramKey handshake(options_.key, KeyScope::handshake(options_.job, options_.worker));
  const DatagramKey session = key(KeyUse::kAggregatorToWorker);
  return seal(header, ByteSpan(room).first(bytes), {}, is_hint ? handshake : session);
}

bool ScriptedSwitch::verifies(const SentPacket& packet) const {
  return key(KeyUse::kWorkerToAggregator).verify(packet.datagram());
}

SwitchClientOptions ClientRig::options() {
  SwitchClientOptions out;
  out.job = 5;
  out.key.fill(0x42);
  out.worker = 1;
  out.workers = 2;
  out.dimension = 512;
  out.window_indices = 64;
  out.slots = 2;
  out.packet_bytes_max = 1232;
  out.exponent_initial = 0;
  out.nonce_seed = 9;
  return out;
}

ClientRig::ClientRig(const SwitchClientOptions& given)
    : client_options(given), client(given, told), aggregator(given, 0xA11CE), rack(given, 0x4ACC) {
  epoch.epoch = 1;
  epoch.live = 3;
  epoch.membership_hash = 77;
  epoch.decider = endpoint(1000);
  epoch.rack = endpoint(2000);
}

void ClientRig::hand(const ByteBuffer& bytes, protocol::Ecn ecn) {
  client.receive({.bytes = bytes, .from = endpoint(1000), .ecn = ecn}, now, sink);
}

void ClientRig::hand_from_rack(const ByteBuffer& bytes, protocol::Ecn ecn) {
  client.receive({.bytes = bytes, .from = endpoint(2000), .ecn = ecn}, now, sink);
}

void ClientRig::welcome_by_rack() {
  ASSERT_TRUE(rack_request.has_value());
  hand_from_rack(rack.challenge(*rack_request));
  const auto hellos = sink.take(DatagramType::kHello);
  ASSERT_EQ(hellos.size(), 1u);
  ASSERT_EQ(hellos[0].to, epoch.rack);
  ASSERT_TRUE(rack.verifies(hellos[0]));
  hand_from_rack(rack.welcome(epoch.epoch, std::vector<uint64_t>(client_options.slots, 0)));
}

void ClientRig::run_from_start() {
  client.set_epoch(epoch, now, sink);
  auto requests = sink.take(DatagramType::kChallengeRequest);
  std::erase_if(requests, [this](const SentPacket& packet) {
    if (packet.to == epoch.rack) rack_request = packet;
    return packet.to == epoch.rack;
  });
  ASSERT_EQ(requests.size(), 1u);
  hand(aggregator.challenge(requests.front()));
  ASSERT_EQ(sink.take(DatagramType::kHello).size(), 1u);
  hand(aggregator.welcome(epoch.epoch, std::vector<uint64_t>(client_options.slots, 0)));
  ASSERT_EQ(client.phase(), SwitchPhase::kRunning);
}

void ClientRig::begin(uint32_t step, const std::map<uint32_t, float>& entries) {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  for (const auto& [index, value] : entries) {
    indices.push_back(index);
    values.push_back(value);
  }
  ASSERT_TRUE(client.begin_step(step, indices, values, now, sink).has_value());
}

}  // namespace millrace::worker::testing
