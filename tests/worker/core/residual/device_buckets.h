#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/worker/core/residual/device_place.h"
#include "tests/worker/core/residual/forwarding_residual.h"
#include "worker/core/residual/bucket.h"
#include "worker/core/residual/idle_tensor.h"
#include "worker/core/residual/local_clip.h"

/// Buckets whose residual is in a device's memory, beside buckets of the host.
namespace millrace::worker {

inline constexpr uint64_t kDeviceDimension = 5'003;

/// A device that works until a test sets `fails_at`, as one whose memory has an error.
class FailingResidual final : public testing::ForwardingResidual {
 public:
  enum class Call : uint8_t { kNone, kAdd, kSelect, kEnter, kCode };
  static inline Call fails_at = Call::kNone;

  FailingResidual(const SelectionSpec& spec, uint64_t dimension)
      : ForwardingResidual(make_there(spec, dimension).value()) {}
  static Result<std::unique_ptr<DeviceResidual>> make(const SelectionSpec& spec, uint64_t dimension) {
    return std::make_unique<FailingResidual>(spec, dimension);
  }

  Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (auto whole = at(Call::kAdd); !whole) return std::unexpected(whole.error());
    return ForwardingResidual::add(gradient, weight, rule);
  }
  Status add(const StreamView& stream, uint64_t begin) override {
    if (auto whole = at(Call::kAdd); !whole) return whole;
    return ForwardingResidual::add(stream, begin);
  }
  Result<Stream> take_selected(uint64_t step, Stream&& arrays, TakenEntries entries) override {
    if (auto whole = at(Call::kSelect); !whole) return std::unexpected(whole.error());
    return ForwardingResidual::take_selected(step, std::move(arrays), entries);
  }
  Status keep_errors(const EntryRange& entries, const EncodeOptions& options) override {
    if (auto whole = at(Call::kCode); !whole) return whole;
    return ForwardingResidual::keep_errors(entries, options);
  }
  Result<std::optional<Mass>> take_coded(const IndexRange& range, const EncodeOptions& options,
                                         protocol::CodecError errors, ByteBuffer& out) override {
    if (auto whole = at(Call::kCode); !whole) return std::unexpected(whole.error());
    return ForwardingResidual::take_coded(range, options, errors, out);
  }
  Result<Stream> copy_part(const IndexRange& range) const override {
    if (!status_) return std::unexpected(status_.error());
    return ForwardingResidual::copy_part(range);
  }
  Result<Stream> copy() const override {
    if (!status_) return std::unexpected(status_.error());
    return ForwardingResidual::copy();
  }
  Result<double> norm() const override {
    if (!status_) return std::unexpected(status_.error());
    return ForwardingResidual::norm();
  }
  Result<uint64_t> stage(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) override {
    if (auto whole = at(Call::kAdd); !whole) return std::unexpected(whole.error());
    return ForwardingResidual::stage(gradient, weight, rule);
  }
  Status enter(float scale, const cuda::MomentumShares& shares) override {
    if (auto whole = at(Call::kEnter); !whole) return whole;
    return ForwardingResidual::enter(scale, shares);
  }
  Result<Stream> copy_velocity() const override {
    if (!status_) return std::unexpected(status_.error());
    return ForwardingResidual::copy_velocity();
  }
  Status status() const override { return status_; }

  using ForwardingResidual::copy;
  using ForwardingResidual::enter;
  using ForwardingResidual::stage;

 private:
  Status at(Call call) {
    if (status_ && call == fails_at) status_ = fail(ErrorCode::kInternal, "the device has failed");
    return status_;
  }

  Status status_;
};

struct DeviceJob {
  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<Bucket> bucket;

  explicit DeviceJob(const protocol::JobSpec& of) : spec(of), layout(protocol::plan_layout(spec, 1)) {
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts);
  }
};

inline protocol::JobSpec job_of(const std::string& select, const std::string& codec,
                                uint64_t dimension = kDeviceDimension) {
  protocol::JobSpec spec;
  spec.name = "device";
  spec.tensors.push_back({.name = "w", .dimension = dimension});
  spec.select = selection_from_text(select).value();
  spec.parts_per_shard = 3;
  spec.codec_up = codec_from_text(codec).value();
  spec.codec_error = protocol::CodecError::kRetain;
  return spec;
}

inline protocol::JobSpec momentum_job(const std::string& select, protocol::Momentum momentum, bool masked = true) {
  protocol::JobSpec spec = job_of(select, "gap+qsgd4");
  spec.momentum = {.momentum = momentum, .factor = 0.9, .masked = masked};
  return spec;
}

/// Returns the bits without the sign of zeros.
inline std::vector<uint32_t> residual_bits_of(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value + 0.0f));
  return bits;
}

/// Two buckets of one job, to which the same happens.
class BucketPair {
 public:
  explicit BucketPair(const protocol::JobSpec& spec, uint64_t seed)
      : host_(spec), device_(spec), random_(random_key(seed)), in_flight_(host_.layout.parts.size()) {}

  void push(std::span<const float> gradient, float weight = 1) {
    const Status wanted = host_.bucket->slot(0).add_dense(gradient, weight);
    const Status done = device_.bucket->slot(0).add_device(GradientThere(gradient), weight, make_there);
    ASSERT_EQ(done.has_value(), wanted.has_value());
    if (!done) {
      ASSERT_EQ(done.error().code, wanted.error().code);
    }
    ASSERT_EQ(device_.bucket->slot(0).non_finite_dropped(), host_.bucket->slot(0).non_finite_dropped());
    compare();
  }
  /// Pushes from the host's memory in both.
  void push_host(std::span<const float> gradient) {
    for (DeviceJob* job : {&host_, &device_}) ASSERT_TRUE(job->bucket->slot(0).add_dense(gradient, 0.5f).has_value());
    compare();
  }
  void push_sparse(const Stream& gradient) {
    for (DeviceJob* job : {&host_, &device_}) {
      ASSERT_TRUE(job->bucket->slot(0).add_sparse(gradient.indices, gradient.values, 1).has_value());
    }
    compare();
  }

  /// Selects and codes a step, with updates of earlier steps in between.
  ///
  /// allocations  that succeed on the device in the meantime.
  void step(uint64_t step, uint64_t allocations = ScarceMemory::kPlenty) {
    const double squares = host_.bucket->slot(0).squared_norm();
    ASSERT_EQ(device_.bucket->slot(0).squared_norm(), squares);
    const double clip = host_.spec.clip;
    const auto factor = squares > clip * clip ? static_cast<float>(clip / std::sqrt(squares)) : 1.0f;
    const Status wanted = host_.bucket->select(step, clip != 0 ? factor : 1);
    ScarceMemory::left = allocations;
    const Status done = device_.bucket->select(step, clip != 0 ? factor : 1);
    allocations = std::exchange(ScarceMemory::left, ScarceMemory::kPlenty);
    ASSERT_TRUE(wanted.has_value()) << wanted.error().message;
    ASSERT_TRUE(done.has_value()) << done.error().message;
    compare();
    for (size_t at = 0; at < in_flight_.size(); ++at) {
      if (random_.next_below(4) == 0) update(at);  // of an earlier step, between selection and code
      if (at == skipped_) {
        for (DeviceJob* job : {&host_, &device_}) job->bucket->skip_part(at);
        continue;
      }
      code(at, step, allocations);
      if (::testing::Test::HasFatalFailure()) return;
      if (random_.next_below(2) == 0) update(at);
    }
    compare();
  }
  /// Later steps skip this part: it is decided already.
  void skip(size_t at) { skipped_ = at; }

  /// The oldest step in flight of a part was not counted, or its update carries some of it.
  void update(size_t at) {
    if (in_flight_[at].empty()) return;
    auto [of_host, of_device, step] = std::move(in_flight_[at].front());
    in_flight_[at].pop_front();
    if (random_.next_below(3) == 0) {
      host_.bucket->give_back(at, of_host.copy());
      device_.bucket->give_back(at, of_device.copy());
      return;
    }
    Stream carried = Stream::empty(of_host.view.dimension);
    for (uint32_t index = 0; index < carried.dimension; ++index) {
      if (random_.next_below(2) != 0) continue;
      carried.indices.push_back(index);
      carried.values.push_back(1);
    }
    const SharedStream shared = SharedStream::from(std::move(carried));
    host_.bucket->mask_applied(at, step, of_host, &shared);
    device_.bucket->mask_applied(at, step, of_device, &shared);
    host_.bucket->return_uncarried(at, std::move(of_host), shared);
    device_.bucket->return_uncarried(at, std::move(of_device), shared);
  }

  uint64_t dimension() const { return host_.bucket->dimension(); }

  void settle() {
    for (size_t at = 0; at < in_flight_.size(); ++at) {
      while (!in_flight_[at].empty()) update(at);
    }
    compare();
  }

  void rejoin() {
    for (DeviceJob* job : {&host_, &device_}) ASSERT_TRUE(job->bucket->quarantine_residual());
    compare();
    for (DeviceJob* job : {&host_, &device_}) {
      job->bucket->drop_quarantined(in_flight_.size() - 1);
      job->bucket->merge_quarantined();
    }
    compare();
  }

  void take_and_restore() {
    Stream taken[2];
    for (DeviceJob* job : {&host_, &device_}) taken[job == &device_] = job->bucket->take_residual(0, dimension());
    ASSERT_EQ(testing::listed(taken[1].indices), testing::listed(taken[0].indices));
    ASSERT_EQ(residual_bits_of(taken[1].values), residual_bits_of(taken[0].values));
    ASSERT_EQ(device_.bucket->residual().count() == 0 ||
                  residual_bits_of(device_.bucket->residual().values) == std::vector<uint32_t>(dimension(), 0),
              true);
    host_.bucket->slot(0).restore(taken[0].view());
    device_.bucket->slot(0).restore(taken[1].view());
    compare();
  }

  /// allocations  that succeed on the device, of each call.
  void take_and_restore_velocity(uint64_t allocations = ScarceMemory::kPlenty) {
    Stream taken[2];
    ScarceMemory::left = allocations;
    for (DeviceJob* job : {&host_, &device_}) taken[job == &device_] = idle(*job).take_velocity();
    ScarceMemory::left = ScarceMemory::kPlenty;
    ASSERT_EQ(testing::listed(taken[1].indices), testing::listed(taken[0].indices));
    ASSERT_EQ(residual_bits_of(taken[1].values), residual_bits_of(taken[0].values));
    ASSERT_GT(taken[0].count(), 0u);
    compare();
    for (DeviceJob* job : {&host_, &device_}) {
      ScarceMemory::left = allocations;
      const Status restored = idle(*job).restore(Stream::empty(dimension()), taken[job == &device_].view());
      ScarceMemory::left = ScarceMemory::kPlenty;
      ASSERT_TRUE(restored.has_value()) << restored.error().message;
    }
    compare();
  }

  static IdleTensor idle(const DeviceJob& job) { return {job.bucket.get(), &job.bucket->slot(0)}; }

  void compare() const {
    const Stream wanted = to_dense(host_.bucket->state(1).residual.view());
    const Stream found = to_dense(device_.bucket->state(1).residual.view());
    ASSERT_EQ(residual_bits_of(found.values), residual_bits_of(wanted.values));
    const auto velocity_of = [](const DeviceJob& job) {
      const std::optional<Stream> velocity = job.bucket->state(1).velocity;
      return velocity ? residual_bits_of(to_dense(velocity->view()).values) : std::vector<uint32_t>();
    };
    ASSERT_EQ(velocity_of(device_), velocity_of(host_));
    const double norm = std::sqrt(squared_norm_of(host_.bucket->residual().values));
    for (const DeviceJob* job : {&host_, &device_}) {
      ASSERT_NEAR(job->bucket->residual_norm(), norm, std::max(1e-5, 1e-7 * norm));
    }
    const BucketCounters of_host = host_.bucket->counters();
    const BucketCounters of_device = device_.bucket->counters();
    ASSERT_EQ(of_device.entries_sent, of_host.entries_sent);
    ASSERT_EQ(of_device.entries_returned, of_host.entries_returned);
    if (host_.spec.select.selection != SelectionId::kNone) {
      ASSERT_EQ(of_device.dropped_error, of_host.dropped_error);
    }
    // Other lanes add the errors of a code on the device.
    ASSERT_NEAR(of_device.dropped_error, of_host.dropped_error, kMassError * of_host.dropped_magnitude);
    ASSERT_NEAR(of_device.dropped_magnitude, of_host.dropped_magnitude, kMassError * of_host.dropped_magnitude);
    const auto retained = [](const DeviceJob& job) { return idle(job).retained(); };
    ASSERT_EQ(retained(device_), retained(host_));
    ASSERT_TRUE(device_.bucket->slot(0).device_status().has_value());
  }

 private:
  void code(size_t at, uint64_t step, uint64_t& allocations) {
    EncodeOptions options;
    options.spec = host_.spec.codec_up;
    options.random = random_key(host_.spec.seed, at, step);
    options.index_base = host_.layout.parts[at].begin;
    auto expected = host_.bucket->code(at, options);
    std::swap(ScarceMemory::left, allocations);
    auto found = device_.bucket->code(at, options);
    std::swap(ScarceMemory::left, allocations);
    ASSERT_TRUE(expected.has_value() && found.has_value());
    ASSERT_TRUE(std::ranges::equal(found->container.bytes, expected->container.bytes)) << "part " << at;
    const Stream sent = found->sent.copy(), wanted = expected->sent.copy();
    ASSERT_EQ(sent.dense, wanted.dense);
    ASSERT_EQ(testing::listed(sent.indices), testing::listed(wanted.indices));
    ASSERT_TRUE(std::ranges::equal(sent.values, wanted.values));
    in_flight_[at].push_back({std::move(expected->sent), std::move(found->sent), step});
  }

  DeviceJob host_;
  DeviceJob device_;
  RandomSequence random_;
  struct InFlight {
    SharedStream of_host;
    SharedStream of_device;
    uint64_t step = 0;
  };
  std::vector<std::deque<InFlight>> in_flight_;
  size_t skipped_ = std::numeric_limits<size_t>::max();
};

/// The law is checked index by index through an observer.
struct DeviceEntered : LedgerObserver {
  void entered(uint32_t, uint64_t begin, const StreamView& gradient, float weight) override {
    for (size_t at = 0; at < gradient.count(); ++at) {
      sum[begin + (gradient.dense ? at : gradient.indices[at])] += weight * gradient.values[at];
    }
  }
  std::vector<float> sum = std::vector<float>(kDeviceDimension);
};

/// Pushes gradients of the host's memory, dense and sparse, beside one of the device.
inline void push_from_both(BucketPair& pair) {
  Stream sparse = Stream::empty(kDeviceDimension);
  for (uint32_t index = 3; index < kDeviceDimension; index += 91) {
    sparse.indices.push_back(index);
    sparse.values.push_back(static_cast<float>(index) * 1e-3f);
  }
  const auto gradient = testing::values_of(testing::Pattern::kGaussian, kDeviceDimension, 1);
  pair.push_sparse(sparse);
  pair.step(0);
  pair.push(gradient);
  pair.step(1);
  pair.push_host(gradient);
  pair.step(2);
  pair.push_sparse(sparse);
  pair.step(3);
  pair.settle();
}

}  // namespace millrace::worker
