#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/datagram/packet_sink.h"

namespace millrace::worker {

/// Sends to the aggregators that a job of path switch names: the one that decides, and a worker's rack. A name may have
/// several addresses, and other ones later. The session's core knows each name as one fixed endpoint; this sink sends
/// to the address that answers. Pure: another class looks names up.
///
/// Rule     A request for a challenge goes to every address of a name until one has answered. It goes to all again once
///          that one left two requests unanswered. Other packets go to the address that answered last, or to the first
///          one. An address that answers stays until it left three requests unanswered: the answers of two addresses of
///          one switch do not alternate.
/// Trust    The core checks whether a challenge is authentic. A forged one can divert packets until the requests that
///          it leaves unanswered restore all addresses.
/// Threads  one at a time.
class NamedPeers final : public protocol::PacketSink {
 public:
  /// out  outlives this.
  explicit NamedPeers(protocol::PacketSink& out) : out_(out) {}

  /// Gives a name its addresses. Returns the endpoint that stands for it: the first one of the first call.
  /// REQUIRES: at least one address.
  protocol::Endpoint set(std::string_view name, std::vector<protocol::Endpoint> addresses);
  /// Returns the endpoint that stands for a name; nothing for a name that set() was not called with.
  std::optional<protocol::Endpoint> endpoint_of(std::string_view name) const;
  /// Returns a name whose addresses left many requests unanswered, so that it may have other addresses now. Returns
  /// each name once in that number of requests. Empty: there is none.
  std::string take_silent();

  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  void set_ecn(protocol::Ecn ecn) override { out_.set_ecn(ecn); }

  /// Returns the packet as of the endpoint that stands for its sender's name; any other sender stays.
  protocol::ReceivedPacket received(const protocol::ReceivedPacket& packet);

 private:
  struct Peer {
    std::string name;
    protocol::Endpoint resolved;
    std::vector<protocol::Endpoint> addresses;
    size_t used = 0;  ///< of the addresses
    bool has_answered = false;
    uint32_t unanswered = 0;  ///< requests since the used address answered
    uint32_t until_silent = kSilentAfter;
  };
  static constexpr uint32_t kSilentAfter = 16;

  void send_request(Peer& peer, size_t bytes);

  protocol::PacketSink& out_;
  std::span<uint8_t> room_;  ///< of the last room()
  std::vector<Peer> peers_;
  std::vector<uint8_t> copy_;
};

}  // namespace millrace::worker
