#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/window/window_code.h"
#include "worker/switch/switch_client.h"

/// One turn of one slot as its worker sees it: the contribution that it sent, and the fragments of the result so far.
namespace millrace::worker {

using Fragment = SwitchFragment;

/// Holds the entries that this worker offers in one window.
struct Offer {
  std::span<const uint16_t> indices;  ///< in the window, strictly increasing
  std::span<const float> values;
};

/// Holds the packets of one turn. Their payloads never change again: a retransmission has the same bytes under another
/// sequence number.
struct Contribution {
  std::vector<Fragment> fragments;  ///< 1 .. kFragmentsMax; no extension
  uint32_t skipped = 0;             ///< entries that round to 0 and are not sent
  uint32_t left_over = 0;           ///< entries that did not fit: the last ones
  uint32_t saturated = 0;
};

struct ContributionTerms {
  protocol::DatagramHeader header;  ///< turn, step, window, next, slot, exponent; flags of all fragments (FIN)
  protocol::WindowCodecs codecs;
  uint32_t window_indices = 0;
  size_t payload_bytes_max = 0;
  int32_t limit = 0;
};

/// Rounds the offer to the grid and packs it. Without entries: one EMPTY fragment. If all entries round to 0: one entry
/// of 0, so that the result shows that the exponent is too large.
///
/// sent  [as offered] overwritten: the integers as receivers decode them; 0 for entries that are not sent.
/// out   overwritten; its memory is used again.
void make_contribution(const Offer& offer, const ContributionTerms& terms, std::span<int32_t> sent, Contribution& out);

/// Collects the fragments of a result, in any order of arrival. Decodes each at once.
class Gathering {
 public:
  enum class Taken : uint8_t { kMore, kWhole, kDuplicate, kContradiction, kBadPayload };

  void clear();
  bool whole() const { return whole_; }
  bool begun() const { return count_ != 0; }
  Taken take(const protocol::Datagram& datagram, uint32_t window_indices);

  /// Returns the header of the first received fragment. REQUIRES: there is one.
  const protocol::DatagramHeader& header() const { return first_; }
  const std::vector<uint16_t>& indices() const { return indices_; }  ///< REQUIRES: whole()
  const std::vector<int32_t>& integers() const { return integers_; }
  const std::vector<RackSelection>& racks() const { return racks_; }
  /// Frees the entries' memory after the result was read: the next result of this thread uses it, and finds it in the
  /// cache.
  void drop_entries();
  /// Hands out the packets themselves, in order, once. The former content of `out` becomes memory for later packets.
  /// REQUIRES: whole().
  void take_packets(std::vector<Fragment>& out);

 private:
  struct Part {
    bool is_here = false;
    Fragment packet;
    std::vector<uint16_t> indices;  ///< not of the part that comes last
    std::vector<int32_t> integers;
  };
  /// Holds a part's entries.
  struct Run {
    const Part* part = nullptr;
    std::span<const uint16_t> indices;
    std::span<const int32_t> integers;
  };
  bool contradicts(const protocol::Datagram& datagram) const;
  Taken join(const Run& latest);
  void take_room();
  bool join_racks(const Part& part, size_t entries);

  std::span<Part> parts() { return std::span(parts_).first(reach_); }
  std::span<const Part> parts() const { return std::span(parts_).first(reach_); }

  std::vector<Part> parts_;  ///< grows only: their memory is used again
  size_t reach_ = 0;         ///< as many parts as have come, or were left out on the way
  uint32_t count_ = 0;       ///< that have come
  std::optional<uint8_t> last_;
  bool whole_ = false;
  protocol::DatagramHeader first_;
  std::vector<uint16_t> indices_;
  std::vector<int32_t> integers_;
  std::vector<RackSelection> racks_;
};

}  // namespace millrace::worker
