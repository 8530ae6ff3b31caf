#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::testing {

/// Entries of a window as a test writes them down.
using Entries = std::map<uint16_t, int32_t>;

struct Sent {
  ByteBuffer bytes;
  protocol::Endpoint to;
  protocol::Ecn ecn = protocol::Ecn::kEct0;
};

/// A sink that keeps its packets. It has no room after `rooms_left` packets.
class KeepingSink : public protocol::PacketSink {
 public:
  std::span<uint8_t> room() override {
    if (rooms_left == 0) return {};
    return room_;
  }
  void send(size_t bytes, const protocol::Endpoint& to) override {
    --rooms_left;
    sent.push_back({ByteBuffer(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(bytes)), to, ecn_});
  }
  void set_ecn(protocol::Ecn ecn) override { ecn_ = ecn; }
  std::vector<Sent> sent;
  uint64_t rooms_left = UINT64_MAX;

 private:
  std::vector<uint8_t> room_ = std::vector<uint8_t>(9000);
  protocol::Ecn ecn_ = protocol::Ecn::kEct0;
};

/// Wraps each call of a machine, with the sink that it writes to: for tests that count the machines' packets.
using AroundCall =
    std::function<void(protocol::PacketSink& sink, const std::function<void(protocol::PacketSink& sink)>& call)>;
inline const AroundCall kNothingAround = [](protocol::PacketSink& sink, const auto& call) { call(sink); };

/// A worker's knowledge of its job, and the packets that it sends, one by one. It has no state machine: the test
/// chooses every field.
class MadeUpWorker {
 public:
  MadeUpWorker(uint32_t job, const protocol::JobKey& key, uint16_t id);

  uint16_t id() const { return id_; }
  uint64_t incarnation() const { return incarnation_; }
  protocol::Endpoint endpoint() const;

  /// A new nonce each time.
  ByteBuffer challenge_request();
  /// Takes a CHALLENGE of its nonce: keys are derived. False: it is none, or not signed as it should be.
  bool take_challenge(ByteSpan packet);

  struct HelloFields {
    uint32_t epoch = 1;
    uint64_t live = 0;
    std::vector<uint64_t> positions;
    uint64_t membership_hash = 77;
  };
  ByteBuffer hello(const HelloFields& fields);

  struct ContributionFields {
    uint64_t turn = 1;
    uint32_t epoch = 1;
    uint32_t step = 0;
    uint32_t window = 0;
    uint32_t next = protocol::kNoWindow;
    uint16_t slot = 0;
    uint8_t fragment = 0;
    uint8_t flags = protocol::datagram_flag::kLast;
    int8_t exponent = -10;
    uint32_t window_indices = 256;
    protocol::WindowCodecs codecs{protocol::WindowIndexCodec::kGap, protocol::WindowValueCodec::kFixed32};
  };
  ByteBuffer contribution(const ContributionFields& fields, const Entries& entries);
  /// Flags EMPTY and LAST besides those given.
  ByteBuffer empty(ContributionFields fields);

  /// The header as given, incarnation and job and worker excepted, around extension and payload; signed under the
  /// session's key.
  ByteBuffer sealed(protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload);
  /// As a packet of its own under a sequence number of the test's choice, 0 and used ones among them.
  ByteBuffer sealed_as(uint64_t sequence, protocol::DatagramHeader header, ByteSpan extension, ByteSpan payload);
  uint64_t sequence() const { return sequence_; }

  struct Heard {
    protocol::Datagram datagram;  ///< points into the packet
    bool authentic = false;
  };
  /// Parses a packet from an aggregator to this worker. Empty: not a datagram.
  std::optional<Heard> hear(ByteSpan packet) const;

  protocol::DatagramHeader header(protocol::DatagramType type) const;

 private:
  uint32_t job_;
  protocol::JobKey key_;
  uint16_t id_;
  uint64_t incarnation_ = 0;
  uint64_t nonces_ = 0;
  protocol::Nonce nonce_{};
  uint64_t sequence_ = 0;
  protocol::DatagramKey handshake_;
  std::optional<protocol::DatagramKey> to_aggregator_;
  std::optional<protocol::DatagramKey> from_aggregator_;
  std::optional<protocol::DatagramKey> to_all_;
};

/// The entries of one RESULT or CONTRIB fragment.
Entries entries_of(const protocol::Datagram& datagram, uint32_t window_indices);

}  // namespace millrace::testing
