#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "worker/peer/algorithms/planner.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/collectives/allgather.h"

namespace millrace::peer {

/// Adds up a cost, message by message along the longest chain.
class CostChain {
 public:
  static constexpr double kValueBytes = sizeof(float);
  static constexpr double kPairBytes = kValueBytes + sizeof(uint32_t);

  CostChain(const SumShape& shape, const MachineSpeeds& speeds)
      : shape_(shape),
        speeds_(speeds),
        n_(static_cast<double>(shape.dimension)),
        k_(static_cast<double>(shape.k)),
        ranks_(shape.ranks) {}

  double n() const { return n_; }
  double k() const { return k_; }
  uint32_t ranks() const { return ranks_; }
  /// Returns the share of the dimension that one rank's slice has.
  double slice_share() const { return 1.0 / ranks_; }

  /// Adds `count` messages with bodies of `body` bytes each, one after the other.
  void send(double body, double count = 1) {
    latency_ += count * speeds_.latency_s;
    transfer_ += count * (kHeaderBytes + body) * speeds_.byte_s;
  }
  /// Adds the entries of sparse streams, or the values of streams that are smaller dense.
  void add_sparse(double entries) { add_ += entries * speeds_.add_entry_s; }
  void add_dense(double values) { add_ += values * speeds_.add_value_s; }
  /// Adds a sum of `draws` contributions in `share` of the dimension, `times` over.
  void add_sum(double draws, double share = 1, double times = 1) {
    const double count = support(draws);
    is_dense(count) ? add_dense(times * n_ * share) : add_sparse(times * count * share);
  }

  /// Adds `count` messages, one after the other, of a sum of `draws` contributions in `share` of the dimension.
  void send_sum(double draws, double share = 1, double count = 1) {
    send(bytes(draws, share), count);
    code(draws, share, count, count);
  }
  /// Adds `count` messages of `entries` entries each.
  void send_entries(double entries, const EntryCoding& coding, double count = 1) {
    send(entries * coding.bytes, count);
    code_entries(entries, coding, count, count);
  }
  /// Adds an allgather of such a sum's packets: each is encoded once, and passed on unchanged.
  void gather_sum(double draws, double share = 1) {
    gather(bytes(draws, share));
    code(draws, share, 1, ranks_ - 1.0);
  }
  /// Adds an allgather of the ranks' contributions, which every rank adds up.
  void gather_contributions() {
    gather_sum(1);
    add_sum(1, 1, ranks_);
  }
  /// Adds a split of the contributions, and an allgather of the slices' sums.
  void split_allgather() {
    send_sum(1, slice_share(), ranks_ - 1);
    add_sparse(k_);
    gather_sum(ranks_, slice_share());
    add_sum(ranks_);
  }
  /// Such a sum passed on around a ring: encoded once.
  void pass_sum(double draws, double share) {
    send(bytes(draws, share), ranks_ - 1.0);
    code(draws, share, 1, ranks_ - 1.0);
  }
  /// Times that such a sum is encoded and decoded.
  void code(double draws, double share, double encodes, double decodes) {
    const double count = support(draws);
    if (is_dense(count)) return;
    code_entries(count * share, coding_of(draws), encodes, decodes);
  }
  /// Of a sum of `draws` contributions in `share` of the dimension, in the form that is smaller.
  double bytes(double draws, double share = 1) const {
    const double count = support(draws);
    return (is_dense(count) ? n_ * kValueBytes : count * coding_of(draws).bytes) * share;
  }
  void select(double value_s) { select_of(n_, value_s); }
  void select_of(double values, double value_s) { select_ += values * value_s; }
  /// Adds the encoding and decoding of `entries` entries, each the given number of times.
  void code_entries(double entries, const EntryCoding& coding, double encodes, double decodes) {
    encode_ += encodes * entries * coding.encode_s;
    decode_ += decodes * entries * coding.decode_s;
  }
  /// Adds a server's link: `messages` messages, with `copies` times `bytes` bytes in all.
  void send_over_link(double bytes, double messages, double copies) {
    latency_ += messages * speeds_.latency_s;
    transfer_ += (messages * kHeaderBytes + copies * bytes) * speeds_.byte_s;
  }
  /// For a message without bytes.
  void wait() { latency_ += speeds_.latency_s; }
  const MachineSpeeds& speeds() const { return speeds_; }

  /// Adds an allgather of packets of `body` bytes, by recursive doubling or Bruck's algorithm.
  void gather(double body) {
    for (uint64_t held = 1; held < ranks_; held *= 2) {
      const auto count = static_cast<double>(std::min<uint64_t>(held, ranks_ - held));
      if (body >= static_cast<double>(kBundledBytesMax)) {
        send(kBundleTableBytes * count);
        send(body, count);
      } else {
        send((kBundleTableBytes + std::ceil(body / 8) * 8) * count);
      }
    }
  }

  /// Adds the work that one of `period` steps does besides, as a mean over the steps.
  void amortise(const CostChain& besides, uint32_t period) {
    reevaluate_ += (besides.latency_ + besides.transfer_ + besides.add_) / period;
  }
  /// A chain of its own, for amortise().
  CostChain besides() const { return {shape_, speeds_}; }
  const SumShape& shape() const { return shape_; }

  PlannedCost cost(const AlgorithmInfo& info) const {
    return {info, select_, encode_, decode_, latency_, transfer_, add_, reevaluate_};
  }

 private:
  static constexpr double kHeaderBytes = kMessageHeaderBytes;
  static constexpr double kBundleTableBytes = 8;  ///< of a packet in a bundle (allgather.h)

  double support(double draws) const { return expected_support(shape_.dimension, shape_.k, draws); }
  const EntryCoding& coding_of(double draws) const { return draws > 1 ? speeds_.sums : speeds_.contribution; }
  bool is_dense(double count) const { return count * kPairBytes >= n_ * kValueBytes; }

  const SumShape& shape_;
  const MachineSpeeds& speeds_;
  double n_;
  double k_;
  uint32_t ranks_;
  double select_ = 0;
  double encode_ = 0;
  double decode_ = 0;
  double latency_ = 0;
  double transfer_ = 0;
  double add_ = 0;
  double reevaluate_ = 0;
};

/// Adds recursive doubling to the chain, with the ranks above the power of two. `send` sends a sum of a number of
/// contributions; `add` adds two such sums.
template <typename Send, typename Add>
void add_doubling(CostChain& chain, Send send, Add add) {
  const uint32_t paired = std::bit_floor(chain.ranks());
  const uint32_t folded = chain.ranks() - paired;
  const bool folds = folded != 0;
  if (folds) {
    send(1.0);
    add(1.0);
  }
  for (uint32_t bit = 1; bit < paired; bit *= 2) {
    // The lowest ranks also have another rank's entries: their groups hold most, and the others are blocked on them.
    const double draws = bit + std::min(bit, folded);
    send(draws);
    add(draws);
  }
  if (folds) send(static_cast<double>(chain.ranks()));
}

}  // namespace millrace::peer
