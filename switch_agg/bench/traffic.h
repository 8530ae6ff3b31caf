#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/window/window_code.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/bench/wire.h"

namespace millrace::switch_agg {

/// Datagrams one behind the other, and whose they are.
class PacketList {
 public:
  struct Packet {
    size_t at = 0;
    size_t bytes = 0;
    uint16_t worker = 0;
  };
  void clear() {
    packets_.clear();
    used_ = 0;
  }
  /// Returns room behind the last packet; keep() makes one of its first `bytes`.
  std::span<uint8_t> room(size_t bytes_max);
  void keep(size_t bytes, uint16_t worker);
  ByteSpan operator[](size_t at) const { return ByteSpan(bytes_).subspan(packets_[at].at, packets_[at].bytes); }
  uint16_t worker(size_t at) const { return packets_[at].worker; }
  size_t size() const { return packets_.size(); }
  size_t bytes() const { return used_; }

 private:
  ByteBuffer bytes_;
  std::vector<Packet> packets_;
  size_t used_ = 0;
};

/// Says which indices the workers of a turn draw.
enum class BenchDraw : uint8_t {
  kOwn,   ///< each its own: a sum has almost as many entries as all contributions
  kSame,  ///< all the same, and small values: a sum is as long as a contribution
};

/// Plays the workers of a benchmark: their handshake, their contributions, and the expected results.
class BenchWorkers {
 public:
  struct Options {
    SwitchJob job;
    uint32_t entries = 400;  ///< of a contribution, at indices drawn without replacement
    size_t packet_bytes = 1400;
    uint64_t seed = 1;
    BenchDraw draw = BenchDraw::kOwn;
  };
  /// Windows of a slot in a step.
  static constexpr uint32_t kTurnsPerStep = 16;

  explicit BenchWorkers(const Options& options);

  /// Sends the HELLOs of all workers and takes the WELCOMEs. Calls `wait` after each round of requests, until its
  /// answers can be taken.
  /// Error    unavailable: names the workers without an answer.
  Status join(BenchEnd& end, const std::function<void()>& wait);

  /// Makes up keys without a switch: for packets that a forwarder only returns.
  void sign_for_nobody();

  /// Appends all workers' contributions to a turn of a slot; turns count from 1.
  void append(uint64_t turn, uint16_t slot, PacketList& out);

  /// Returns the header of all workers' contributions to a turn of a slot, but for worker, entries and payload.
  protocol::DatagramHeader header_of(uint64_t turn, uint16_t slot) const;
  /// Signs a contribution once more, under its worker's next sequence number.
  size_t seal(protocol::DatagramHeader header, std::span<uint8_t> packet);

  /// Says whether fragments of a result, in their order, are the sum of the turn's contributions: every index, every
  /// value. Computed from the draws, not from the packets.
  bool is_sum(uint64_t turn, uint16_t slot, std::span<const uint16_t> indices, std::span<const int32_t> values);

  const protocol::DatagramKey& results_key() const { return *results_key_; }

 private:
  void draw(uint16_t worker, uint64_t turn, uint16_t slot);
  void ask(uint16_t id, BenchEnd& end) const;
  void say_hello(uint16_t id, const protocol::Nonce& aggregator_nonce, BenchEnd& end);

  struct Worker {
    protocol::Nonce nonce{};
    uint64_t sequence = 0;
    std::optional<protocol::DatagramKey> key;
  };
  Options options_;
  uint64_t incarnation_ = 0;
  std::vector<Worker> workers_;
  std::optional<protocol::DatagramKey> results_key_;
  std::vector<uint64_t> drawn_bits_;
  std::vector<uint16_t> indices_;  ///< of the last draw()
  std::vector<int32_t> values_;
  std::vector<int32_t> decoded_;
  std::vector<int32_t> sums_;
  std::vector<uint8_t> touched_;
};

/// Returns a job with the key 00 01 02 … 1f.
SwitchJob bench_job(uint32_t workers, uint32_t slots, uint32_t window_indices, uint32_t number = 7);

/// Returns the window (a multiple of 64) in which `density` of the indices fill a packet of `packet_bytes`.
uint32_t filling_window(double density, size_t packet_bytes, uint64_t seed);

/// Returns floor(density * window), at least 1.
uint32_t entries_in(uint32_t window_indices, double density);

}  // namespace millrace::switch_agg
