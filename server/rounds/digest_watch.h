#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/messages/messages.h"

namespace millrace::server {

/// A member whose log of a part is another one than the shard's: its weights are not those of the others.
struct Disagreement {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint32_t part = 0;
  uint64_t steps = 0;  ///< the number of steps after which it was found; it may be older
  TimeNs since = 0;
};

/// Holds which members of a job disagree, part by part, as their log digests show (protocol/messages/log_digest.h). A
/// member can agree again only by taking over another's weights.
class DigestWatch {
 public:
  enum class News : uint8_t { kNone, kFirstOfWorker, kAgreesAgain };

  News differs(const protocol::Member& member, uint32_t part, uint64_t steps, TimeNs now);
  News agrees(const protocol::Member& member, uint32_t part);
  /// Forgets members that are no longer members under that incarnation.
  void keep(std::span<const protocol::Member> members);
  /// Returns the disagreements by worker, then part.
  std::vector<Disagreement> all() const;

 private:
  std::map<std::pair<uint32_t, uint32_t>, Disagreement> known_;  ///< by (worker, part)
};

}  // namespace millrace::server
