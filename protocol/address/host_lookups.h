#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"

namespace millrace::protocol {

/// Looks up many hosts, a few at a time, on threads of their own. A resolver may take long, and the caller's thread has
/// other work.
///
/// Threads  one.
class HostLookups {
 public:
  using Found = Result<std::vector<HostAddress>>;
  static constexpr size_t kRunningMax = 16;
  /// An answer is given to later callers for this time.
  static constexpr TimeNs kFreshFor = 100 * kNsPerMs;

  explicit HostLookups(HostResolver resolver) : resolver_(std::move(resolver)) {}

  /// Returns the host's addresses. Empty: they are not there yet; a descriptor of poll_for() becomes readable.
  std::optional<Found> find(const std::string& host, TimeNs now);
  /// Adds the descriptors of the lookups that run.
  void poll_for(std::vector<pollfd>& polled) const;

 private:
  struct Entry {
    std::unique_ptr<HostLookup> running = {};
    std::optional<Found> answer = {};
    TimeNs at = 0;  ///< when the answer came
  };
  HostResolver resolver_;
  std::map<std::string, Entry> hosts_;
  size_t running_ = 0;
};

}  // namespace millrace::protocol
