#include "switch_agg/packet_io/udp_port.h"

#include <fmt/format.h>
#include <poll.h>

#include "protocol/address/endpoint_text.h"

namespace millrace::switch_agg {

UdpPort::UdpPort(std::unique_ptr<protocol::UdpBursts> bursts) : bursts_(std::move(bursts)) {}
UdpPort::~UdpPort() = default;

Result<std::unique_ptr<UdpPort>> UdpPort::open(const UdpPortOptions& options) {
  auto one = open_lanes(options, 1);
  if (!one) return std::unexpected(one.error());
  return std::move(one->front());
}

Result<std::vector<std::unique_ptr<UdpPort>>> UdpPort::open_lanes(const UdpPortOptions& options, uint32_t lanes) {
  auto group =
      protocol::UdpBursts::open_group(options.listen, lanes, options.packet_bytes_max, options.socket_buffer_bytes);
  if (!group) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot listen on UDP {}: {}", endpoint_text(options.listen), group.error().message));
  }
  std::vector<std::unique_ptr<UdpPort>> ports;
  for (auto& bursts : *group) ports.push_back(std::unique_ptr<UdpPort>(new UdpPort(std::move(bursts))));
  return ports;
}

const protocol::Endpoint& UdpPort::address() const { return bursts_->address(); }

std::span<const protocol::ReceivedPacket> UdpPort::receive() {
  const std::span<const protocol::ReceivedPacket> packets = bursts_->receive();
  take_counts();
  return packets;
}

std::span<uint8_t> UdpPort::room() { return bursts_->room(); }

void UdpPort::send(size_t bytes, const protocol::Endpoint& to) { bursts_->send(bytes, to); }

size_t UdpPort::send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) {
  return bursts_->send_to_each(packet, to);
}

void UdpPort::set_ecn(protocol::Ecn ecn) { bursts_->set_ecn(ecn); }

void UdpPort::flush() {
  bursts_->flush();
  take_counts();
}

void UdpPort::wait(int timeout_ms) {
  pollfd readable{bursts_->descriptor(), POLLIN, 0};
  ::poll(&readable, 1, timeout_ms);
}

void UdpPort::take_counts() {
  const protocol::UdpBursts::Counters& now = bursts_->counters();
  counters_.packets_in = now.packets_in;
  counters_.bytes_in = now.bytes_in;
  counters_.packets_out = now.packets_out;
  counters_.bytes_out = now.bytes_out;
  counters_.too_long = now.too_long;
  counters_.send_full = now.send_full;
  counters_.send_refused = now.send_refused;
}

}  // namespace millrace::switch_agg
