#include "switch_agg/packet_io/memory_port.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace::switch_agg {

MemoryPort::MemoryPort(const Options& options)
    : options_(options),
      arriving_(options.arriving_max),
      burst_(kBurst),
      room_(options.packet_bytes_max * options.sent_max),
      sent_(options.sent_max) {}

bool MemoryPort::inject(ByteSpan bytes, const protocol::Endpoint& from) {
  if (bytes.size() > options_.packet_bytes_max) {
    ++counters_.too_long;
    return false;
  }
  if (waiting_ == arriving_.size()) {
    ++counters_.lane_full;
    return false;
  }
  arriving_[(next_in_ + waiting_) % arriving_.size()] = {bytes, from};
  ++waiting_;
  return true;
}

std::span<const protocol::ReceivedPacket> MemoryPort::receive() {
  const size_t count = std::min(waiting_, kBurst);
  for (size_t i = 0; i < count; ++i) {
    burst_[i] = arriving_[next_in_];
    counters_.bytes_in += burst_[i].bytes.size();
    next_in_ = next_in_ + 1 == arriving_.size() ? 0 : next_in_ + 1;
  }
  waiting_ -= count;
  counters_.packets_in += count;
  return std::span(burst_).first(count);
}

std::span<uint8_t> MemoryPort::room() {
  if (gathered_ == sent_.size()) {
    ++counters_.no_buffer;
    return {};
  }
  return std::span(room_).subspan(rooms_used_ * options_.packet_bytes_max, options_.packet_bytes_max);
}

void MemoryPort::send(size_t bytes, const protocol::Endpoint& to) {
  MILLRACE_CHECK(gathered_ < sent_.size() && bytes <= options_.packet_bytes_max, gathered_, bytes);
  sent_[gathered_] = {{room_.data() + rooms_used_ * options_.packet_bytes_max, bytes}, to};
  ++rooms_used_;
  ++gathered_;
  ++counters_.packets_out;
  counters_.bytes_out += bytes;
}

size_t MemoryPort::send_to_each(ByteSpan packet, std::span<const protocol::Endpoint> to) {
  if (to.empty()) return 0;
  const std::span<uint8_t> kept = room();
  if (kept.empty()) return 0;
  MILLRACE_CHECK(packet.size() <= kept.size(), packet.size(), kept.size());
  std::ranges::copy(packet, kept.begin());
  const size_t sent = std::min(to.size(), sent_.size() - gathered_);
  for (size_t i = 0; i < sent; ++i) sent_[gathered_++] = {kept.first(packet.size()), to[i]};
  ++rooms_used_;
  if (sent != to.size()) ++counters_.no_buffer;
  counters_.packets_out += sent;
  counters_.bytes_out += sent * packet.size();
  return sent;
}

void MemoryPort::flush() { flushed_ = gathered_; }

void MemoryPort::clear_sent() {
  MILLRACE_CHECK(flushed_ == gathered_, flushed_, gathered_);
  flushed_ = 0;
  gathered_ = 0;
  rooms_used_ = 0;
}

}  // namespace millrace::switch_agg
