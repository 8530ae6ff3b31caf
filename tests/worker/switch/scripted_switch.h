#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "worker/switch/switch_client.h"

namespace millrace::worker::testing {

/// A packet that the client sent, taken apart; its bytes are its own.
struct SentPacket {
  ByteBuffer bytes;
  protocol::Endpoint to;
  protocol::Datagram datagram() const { return protocol::parse_datagram(bytes).value(); }
  const protocol::DatagramHeader header() const { return datagram().header; }
};

class CollectingSink : public protocol::PacketSink {
 public:
  std::span<uint8_t> room() override { return room_; }
  void send(size_t bytes, const protocol::Endpoint& to) override;
  std::vector<SentPacket> take();
  /// Of one type.
  std::vector<SentPacket> take(protocol::DatagramType type);

 private:
  std::vector<uint8_t> room_ = std::vector<uint8_t>(2048);
  std::vector<SentPacket> sent_;
};

/// Holds a client's reports to its owner.
struct Told : SwitchOutcome {
  struct Window {
    uint32_t step = 0;
    uint32_t window = 0;
    uint64_t turn = 0;
    int exponent = 0;
    uint64_t contributors = 0;
    std::map<uint32_t, int32_t> update;
    std::map<uint32_t, float> returned;
  };
  void on_completed(const CompletedWindow& window) override;
  void step_done(uint32_t step) override { steps.push_back(step); }
  std::vector<Window> windows;
  std::vector<uint32_t> steps;
};

protocol::Endpoint endpoint(uint16_t port);

/// The fields of a RESULT, and the entries of its only fragment unless a test sets others.
struct ResultSays {
  uint16_t slot = 0;
  uint64_t turn = 1;
  uint32_t step = 0;
  uint32_t window = 0;
  uint32_t next = protocol::kNoWindow;
  int exponent = 0;
  uint64_t contributors = 3;
  uint64_t selected = 0;  ///< workers of one rack that cut its sum
  uint64_t kept = 0;      ///< of the entries, a bit each
  std::vector<uint16_t> indices = {};
  std::vector<int32_t> sums = {};
  uint8_t fragment = 0;
  uint8_t flags = protocol::datagram_flag::kLast;
};

/// An aggregator that sends packets of the test's choice, with valid keys.
class ScriptedSwitch {
 public:
  ScriptedSwitch(const SwitchClientOptions& options, uint64_t incarnation)
      : options_(options), incarnation_(incarnation) {}

  /// The answer to a CHALREQ.
  ByteBuffer challenge(const SentPacket& request);
  ByteBuffer welcome(uint32_t epoch, const std::vector<uint64_t>& turns);
  ByteBuffer fetch(uint32_t epoch, uint16_t slot, uint64_t turn);
  ByteBuffer result(uint32_t epoch, const ResultSays& says);
  ByteBuffer notice(protocol::NoticeCode code, uint32_t epoch, const protocol::Nonce& nonce);
  bool verifies(const SentPacket& packet) const;
  uint64_t incarnation() const { return incarnation_; }

 private:
  ByteBuffer seal(protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload,
                  const protocol::DatagramKey& with);
  protocol::DatagramKey key(protocol::KeyUse use) const;

  SwitchClientOptions options_;
  uint64_t incarnation_;
  uint64_t sequence_ = 0;         ///< of packets to the worker
  uint64_t sequence_to_all_ = 0;  ///< of results
  protocol::Nonce worker_nonce_{};
  protocol::Nonce own_nonce_{};
};

/// One client, running in epoch 1 of workers 0 and 1 unless told, its aggregator scripted.
struct ClientRig {
  explicit ClientRig(const SwitchClientOptions& given);
  static SwitchClientOptions options();

  /// Challenge, hello, welcome of turns T = position - 1 in all slots.
  void run_from_start();
  void hand(const ByteBuffer& bytes, protocol::Ecn ecn = protocol::Ecn::kNotEct);
  /// From the rack's address.
  void hand_from_rack(const ByteBuffer& bytes, protocol::Ecn ecn = protocol::Ecn::kNotEct);
  /// The rack answers its challenge and welcomes.
  void welcome_by_rack();
  /// begin_step() with entries; fails the test where it is refused.
  void begin(uint32_t step, const std::map<uint32_t, float>& entries);
  void later(TimeNs by) { now += by; }
  void tick() { client.tick(now, sink); }

  SwitchClientOptions client_options;
  Told told;
  SwitchClient client;
  ScriptedSwitch aggregator;
  ScriptedSwitch rack;
  std::optional<SentPacket> rack_request;
  CollectingSink sink;
  SwitchEpoch epoch;
  TimeNs now = kNsPerS;
};

}  // namespace millrace::worker::testing
