#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

/// Authenticity of datagrams. Keys derive from a pre-shared job key and both sides' nonces and are never sent: one per (job, life,
/// worker, direction), and one per (job, life) for results that go to all.
namespace millrace::protocol {

using JobKey = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, 16>;

/// What a session's keys are for; goes into the derivation.
enum class KeyUse : uint8_t { kWorkerToAggregator = 1, kAggregatorToWorker = 2, kAggregatorToAll = 3, kHandshake = 4 };

/// A key ready for use: made once per session, then no allocation and no set-up per packet beyond the sequence number.
/// Threads  one at a time.
class DatagramKey {
 public:
  DatagramKey(const JobKey& job_key, KeyUse use, uint32_t job, uint64_t life, uint16_t worker, const Nonce& worker_nonce,
              const Nonce& aggregator_nonce);
  DatagramKey(DatagramKey&&) noexcept;
  DatagramKey& operator=(DatagramKey&&) noexcept;
  ~DatagramKey();

  /// The MAC of `bytes`, whose header's sequence number is `sequence` (never twice under one key and direction).
  Mac sign(ByteSpan bytes, uint64_t sequence) const;
  /// In constant time.
  bool verify(ByteSpan bytes, uint64_t sequence, ByteSpan mac) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Which sequence numbers have come: a window of 2048 behind the highest.
class ReplayWindow {
 public:
  /// Whether `sequence` is new; it is known from then on. Call it with what has been verified only.
  bool accept(uint64_t sequence);

 private:
  static constexpr uint64_t kWidth = 2048;
  uint64_t highest_ = 0;
  std::array<uint64_t, kWidth / 64> seen_{};
};

/// A job key file: 64 hexadecimal digits, a newline; readable by its owner alone.
/// Errors   io; invalid_argument: other bytes, or others may read it (says chmod).
Result<JobKey> read_job_key(const std::string& path);

}  // namespace millrace::protocol
