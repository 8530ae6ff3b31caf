#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/base/clock.h"
#include "worker/session/switch_socket.h"
#include "worker/switch/switch_client.h"

namespace millrace::worker::testing {

/// The port's number on this machine. REQUIRES: a port of one lane.
uint16_t port_number(const SwitchUdpPort& port);
/// Waits until the port has something to receive, at most `at_most`.
void wait_for_packets(const SwitchUdpPort& port, TimeNs at_most);

/// A step's whole update, and the worker's own values that it omits.
struct SwitchStep {
  struct Window {
    uint32_t window = 0;
    int exponent = 0;
    uint64_t contributors = 0;
    size_t first = 0;  ///< of `indices` and `sums`
    size_t last = 0;
  };
  std::vector<Window> windows;    ///< in the order in which they were settled
  std::vector<uint32_t> indices;  ///< of the tensor
  std::vector<int32_t> sums;      ///< x 2^exponent of their window
  std::vector<uint32_t> returned_indices;
  std::vector<float> returned_values;
};

/// Client and socket, steps one at a time, blocking. The caller owns the table: `epoch` is asked now and then for its
/// present state.
/// Threads  one at a time.
class SwitchStepper : private SwitchOutcome {
 public:
  using ReadEpoch = std::function<SwitchEpoch()>;

  /// REQUIRES: SwitchClient::validate(options).
  static Result<std::unique_ptr<SwitchStepper>> open(const SwitchClientOptions& options, ReadEpoch epoch);
  ~SwitchStepper() override;

  /// Errors   as SwitchClient::begin_step(); timeout: the step continues all the same, wait_step() may be called again.
  Result<SwitchStep> run_step(uint32_t step, IndexSpan indices, std::span<const float> values, TimeNs timeout);
  Result<SwitchStep> wait_step(TimeNs timeout);
  /// Answers the others until all have finished.
  Status finish(TimeNs timeout);
  const SwitchClient& client() const { return *client_; }

 private:
  SwitchStepper() = default;
  void on_completed(const CompletedWindow& window) override;
  void step_done(uint32_t step) override;
  /// Runs one pass: received packets, actions that are due.
  void turn(TimeNs wait_at_most);
  template <typename Done>
  Status pump(TimeNs timeout, const Done& done);

  ReadEpoch read_epoch_;
  TimeNs epoch_read_at_ = INT64_MIN;
  std::unique_ptr<SwitchUdpPort> port_;
  std::unique_ptr<SwitchClient> client_;
  SwitchStep under_way_;
  bool done_ = false;
};

}  // namespace millrace::worker::testing
