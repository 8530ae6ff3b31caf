#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/stream/stream.h"
#include "protocol/job/layout.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/ledger_observer.h"

namespace millrace::testing {

/// Names a contribution of which only the outcome "counted" is known.
struct UnreturnableContribution {
  uint32_t part = 0;
  uint64_t step = 0;  ///< mode asynchronous: its number
  uint64_t incarnation = 0;
};

/// Keeps the ledgers of one worker by index: one f64 for each index of a bucket and cause.
class IndexLedger : public worker::LedgerObserver {
 public:
  explicit IndexLedger(const protocol::JobLayout& layout) {
    for (const protocol::BucketLayout& bucket : layout.buckets) books_.emplace_back(bucket.dimension);
  }

  /// Return [dimension] of the bucket: the values that entered, the applied sums, the values of a loaded state.
  std::span<const double> entered(uint32_t bucket) const { return books_[bucket].entered; }
  std::span<const double> applied(uint32_t bucket) const { return books_[bucket].applied; }
  std::span<const double> opening_residual(uint32_t bucket) const { return books_[bucket].opened; }
  const std::vector<UnreturnableContribution>& unreturnable() const { return unreturnable_; }

  /// Returns the lost values with those that postponed work will book. `report` gives an observer the latter.
  template <typename Report>
  std::vector<double> lost(uint32_t bucket, const Report& report) const {
    Postponed postponed;
    report(postponed);
    std::vector<double> all = books_[bucket].lost;
    for (const auto& [index, amount] : postponed.amounts) all[index] += amount;
    return all;
  }
  /// Does the same for a bucket that has no core: bucket 0 of the layout.
  std::vector<double> lost(const worker::Bucket& bucket) const {
    return lost(0, [&bucket](worker::LedgerObserver& to) { bucket.report_postponed(to); });
  }

  void entered(uint32_t bucket, uint64_t begin, const StreamView& gradient, float weight) override {
    each(begin, gradient,
         [&](uint64_t index, float value) { books_[bucket].entered[index] += static_cast<double>(weight * value); });
  }
  void opened(uint32_t bucket, uint64_t begin, const StreamView& share) override {
    add(begin, share, books_[bucket].opened);
  }
  void lost(uint32_t bucket, uint64_t begin, const StreamView& values) override {
    add(begin, values, books_[bucket].lost);
  }
  void lost(uint32_t bucket, uint64_t index, double amount) override { books_[bucket].lost[index] += amount; }
  void applied(uint32_t bucket, uint64_t begin, const StreamView& sum) override {
    add(begin, sum, books_[bucket].applied);
  }
  void replaced(uint32_t bucket, uint64_t begin, uint64_t end) override {
    for (uint64_t index = begin; index < end; ++index) books_[bucket].applied[index] = 0;
  }
  void unreturnable(uint32_t part, uint64_t step, uint64_t incarnation) override {
    unreturnable_.push_back({part, step, incarnation});
  }

 protected:
  template <typename Entry>
  static void each(uint64_t begin, const StreamView& stream, const Entry& entry) {
    for (size_t i = 0; i < stream.values.size(); ++i) {
      entry(begin + (stream.dense ? i : stream.indices[i]), stream.values[i]);
    }
  }

 private:
  struct Books {
    explicit Books(uint64_t dimension) : entered(dimension), applied(dimension), opened(dimension), lost(dimension) {}
    std::vector<double> entered;
    std::vector<double> applied;
    std::vector<double> opened;
    std::vector<double> lost;
  };
  /// Lists the losses of postponed work in their order: sums of f64 depend on it.
  struct Postponed : worker::LedgerObserver {
    void lost(uint32_t /*bucket*/, uint64_t begin, const StreamView& values) override {
      each(begin, values,
           [this](uint64_t index, float value) { amounts.emplace_back(index, static_cast<double>(value)); });
    }
    void lost(uint32_t /*bucket*/, uint64_t index, double amount) override { amounts.emplace_back(index, amount); }
    std::vector<std::pair<uint64_t, double>> amounts;
  };

  static void add(uint64_t begin, const StreamView& stream, std::vector<double>& to) {
    each(begin, stream, [&to](uint64_t index, float value) { to[index] += static_cast<double>(value); });
  }

  std::vector<Books> books_;
  std::vector<UnreturnableContribution> unreturnable_;
};

}  // namespace millrace::testing
