#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/result.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"

namespace millrace::peer {

/// Says how every rank gets the packets of all ranks. Either way, a rank sends (P - 1) / P of all bodies (of like
/// sizes).
enum class AllgatherWay : uint8_t {
  kDoubling = 1,  ///< ceil(log2 P) rounds: recursive doubling; where P is no power of two, Bruck's algorithm
  kRing = 2,      ///< P - 1 rounds between neighbours
};

/// From this size on a body travels without a copy, in a message of its own: this saves a copy and costs a latency. At
/// 1 Gbit/s such a body takes ten times the latency of a LAN.
inline constexpr uint64_t kBundledBytesMax = 65'536;

/// Gathers the packets of all ranks on every rank: [size] by rank. A part of other collectives; concatenation is the
/// caller's.
///
/// own        of any form and length, another on every rank.
/// first_tag  tags from here to first_tag + 32 + size are its own.
/// Bytes      kDoubling: in each round a message of 8 bytes for every packet (as many as the round doubles), and the
///            bodies. Those below kBundledBytesMax are padded to 8, larger ones are messages of their own. kRing: the
///            bodies.
/// Memory     the bodies are views into the received messages.
/// Errors     malformed: a bundle that is not one.
/// Source     [SparCML19, 5.3.2]; [RedSync19, appendix A]; [Thakur05]; [Bruck97]
Task<Result<std::vector<Packet>>> allgather(Channel& channel, Packet own, uint32_t first_tag, AllgatherWay way);

/// Gathers the numbers of all ranks on every rank: [size] by rank. N: uint32_t, uint64_t, float, double. By doubling.
///
/// own     any count, another on every rank.
/// Errors  malformed: no numbers.
template <typename N>
Task<Result<std::vector<std::vector<N>>>> allgather_numbers(Channel& channel, std::vector<N> own, uint32_t first_tag);

}  // namespace millrace::peer
