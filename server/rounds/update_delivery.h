#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "server/base/memory_account.h"

namespace millrace::server {

/// Mode asynchronous (R16d): how far the log of one part has been sent to each member, and which of these steps are
/// under way. A worker that takes merged updates is sent at most two messages ahead of its acknowledgements. The steps
/// decided meanwhile come as one update, their sum. Pure: the caller asks which steps to send, and reports the sent
/// ones.
class Delivery {
 public:
  /// The steps [from, below).
  struct Steps {
    uint64_t from = 0;
    uint64_t below = 0;
    auto operator<=>(const Steps&) const = default;
  };
  enum class Pace : uint8_t {
    kEach,    ///< every step by itself, at once
    kMerged,  ///< as acknowledgements come
  };

  /// Returns the next steps for the worker; empty: it was sent everything, or has to wait.
  std::optional<Steps> next(uint32_t worker, uint64_t decided, Pace pace) const;
  void sent(uint32_t worker, uint64_t below, Pace pace);

  /// Records that these next steps are being summed for the worker. True: no other worker waits for the same steps, so
  /// that the caller has to begin a task with this token. A worker has one task at a time: until it ends, next()
  /// returns nothing.
  bool wait_for_sum(uint32_t worker, Steps steps, uint64_t token, MemoryCharge charge);

  struct Waiting {
    std::vector<uint32_t> workers;     ///< they are sent the next steps
    std::optional<uint32_t> begun_by;  ///< the worker that may ask again
  };
  /// Returns the workers of a sum that is finished or failed. None where it is of another membership.
  Waiting take_waiting(Steps steps, uint64_t token);

  /// Records that the worker has the steps below n.
  void acknowledged(uint32_t worker, uint64_t n);
  /// Records that the steps sent from n on may be lost.
  void restart(uint32_t worker, uint64_t n);
  /// Returns the steps that the worker was sent: the most that it can have.
  uint64_t sent_to(uint32_t worker) const;
  /// Forgets everything, for another membership.
  void clear();

 private:
  struct Line {
    uint64_t sent = 0;
    std::deque<uint64_t> under_way = {};  ///< where each message that is not acknowledged ends
    std::optional<Steps> summed = {};     ///< waits for their sum
  };
  std::map<uint32_t, Line> lines_;
  struct Sum {
    uint64_t token = 0;
    uint32_t begun_by = 0;
    MemoryCharge charge;
  };
  std::map<Steps, Sum> sums_;  ///< being worked out
};

}  // namespace millrace::server
