#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::protocol {

/// Holds the contents of each of a link's latest packets, by its sequence number: an aggregator names the numbers that
/// it lacks (NOTICE 7, protocol/wire/datagrams.md). Older ones are forgotten; time-outs handle their loss.
/// Memory   24 KiB.
class SentLog {
 public:
  static constexpr size_t kPackets = 1024;

  struct Packet {
    uint64_t sequence = 0;  ///< 0: none
    uint64_t turn = 0;
    uint16_t slot = 0;
    uint16_t fragment = 0;
  };

  void note(const Packet& packet) { packets_[packet.sequence % kPackets] = packet; }
  /// Returns the packet; null: it is not known, or not any more.
  const Packet* find(uint64_t sequence) const {
    const Packet& packet = packets_[sequence % kPackets];
    return sequence != 0 && packet.sequence == sequence ? &packet : nullptr;
  }

 private:
  std::array<Packet, kPackets> packets_{};
};

}  // namespace millrace::protocol
