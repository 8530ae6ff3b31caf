#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/base/buffer.h"

namespace millrace::testing {

/// Listens to the packets from workers to racks, and computes the size of their sums as codes: the slow oracle of
/// "bytes into the shard". The entries are those that were really sent (rounded, saturated, offered again). A run with
/// another number of workers sends other entries, so that its sizes do not apply here.
class CodedUnion {
 public:
  struct Bytes {
    uint64_t sums = 0;     ///< one a rack, slot and turn
    uint64_t entries = 0;  ///< of them
    uint64_t codes = 0;  ///< gaps and values alone, without any header: 16 bits a value where all of a sum fit, else 32
    uint64_t packets = 0;  ///< UDP payload of as few PARTIALs as hold them; an empty sum takes one
  };

  /// Takes a packet that reached a rack. Ignores all packets except contributions; counts a repeated fragment once.
  void take(uint32_t rack, ByteSpan packet, uint32_t window_indices);
  Bytes bytes(uint32_t window_indices, uint32_t packet_bytes) const;

 private:
  using Turn = std::tuple<uint32_t, uint16_t, uint64_t>;  ///< rack, slot, turn
  std::map<Turn, std::map<uint16_t, int64_t>> sums_;
  std::set<std::pair<Turn, std::pair<uint16_t, uint8_t>>> seen_;  ///< (worker, fragment)
};

}  // namespace millrace::testing
