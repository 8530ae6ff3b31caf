#include "worker/peer/group/layer_buckets.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::peer {
namespace {

/// Returns whether no other owner holds it. The end of a copy is an acquire: the others' reads are before this thread's
/// writes.
bool is_owned_once(std::shared_ptr<Buffer<float>> copy) { return copy.use_count() == 2; }

}  // namespace

BucketPlan::BucketPlan(std::span<const uint64_t> layer_bytes, uint64_t bucket_bytes) : ready_(layer_bytes.size()) {
  uint64_t bytes = 0;
  for (size_t layer = 0; layer < layer_bytes.size(); ++layer) {
    bucket_of_.push_back(first_layer_.size() - 1);
    bytes += layer_bytes[layer];
    const bool is_last = layer + 1 == layer_bytes.size();
    if (bytes < std::max<uint64_t>(bucket_bytes, 1) && !is_last) continue;
    first_layer_.push_back(layer + 1);
    bytes = 0;
  }
  reset();
}

void BucketPlan::reset() {
  std::fill(ready_.begin(), ready_.end(), false);
  waiting_for_.clear();
  for (size_t bucket = 0; bucket < buckets(); ++bucket) waiting_for_.push_back(end_layer(bucket) - first_layer(bucket));
  startable_ = 0;
}

size_t BucketPlan::set_ready(size_t layer) {
  MILLRACE_CHECK(layer < layers() && !ready_[layer], layer, layers());
  ready_[layer] = true;
  --waiting_for_[bucket_of_[layer]];
  while (startable_ < buckets() && waiting_for_[startable_] == 0) ++startable_;
  return startable_;
}

std::optional<size_t> BucketPlan::missing() const {
  const auto at = std::ranges::find(ready_, false);
  if (at == ready_.end()) return std::nullopt;
  return static_cast<size_t>(at - ready_.begin());
}

Result<std::unique_ptr<DenseBuckets>> DenseBuckets::make(PeerGroup& group, DenseBucketsOptions options) {
  std::vector<uint64_t> bytes;
  for (const uint64_t values : options.layers) bytes.push_back(values * sizeof(float));
  if (std::ranges::all_of(bytes, [](uint64_t one) { return one == 0; })) {
    return fail(ErrorCode::kInvalidArgument, "dense buckets: there is no layer with a value");
  }
  const AlgorithmInfo& info = algorithm_info(options.algorithm);
  if (info.result != ResultKind::kExactSum) {
    return fail(ErrorCode::kInvalidArgument,
                "dense buckets: " + std::string(info.name) + " does not sum all of a dense gradient");
  }
  const BucketPlan plan(bytes, options.bucket_bytes);
  std::unique_ptr<DenseBuckets> made(new DenseBuckets(group, std::move(options), plan));
  for (size_t bucket = 0; bucket < plan.buckets(); ++bucket) {
    Bucket& one = made->buckets_.emplace_back();
    for (size_t layer = plan.first_layer(bucket); layer < plan.end_layer(bucket); ++layer) {
      made->offset_.push_back(one.values);
      one.values += made->options_.layers[layer];
    }
    if (one.values == 0) continue;
    one.settings.dimension = one.values;
    auto allreduce = make_allreduce(made->options_.algorithm, one.settings);
    if (!allreduce) return std::unexpected(allreduce.error());
    one.allreduce = std::move(*allreduce);
  }
  return made;
}

Status DenseBuckets::ready(size_t layer, std::span<const float> gradient) {
  if (layer >= plan_.layers()) {
    return fail(ErrorCode::kInvalidArgument,
                "there is no layer " + std::to_string(layer) + "; there are " + std::to_string(plan_.layers()));
  }
  const std::string name = "layer " + std::to_string(layer);
  if (gradient.size() != options_.layers[layer]) {
    return fail(ErrorCode::kInvalidArgument, name + " has " + std::to_string(options_.layers[layer]) + " values, not " +
                                                 std::to_string(gradient.size()));
  }
  if (plan_.is_ready(layer)) {
    return fail(ErrorCode::kInvalidArgument, name + " was ready before: a step waits for its end first");
  }
  Bucket& bucket = buckets_[plan_.bucket_of(layer)];
  // Messages of the step before may still look into its array: then there is another one.
  if (!is_owned_once(bucket.own)) bucket.own = std::make_shared<Buffer<float>>(bucket.values);
  std::ranges::copy(gradient, bucket.own->begin() + static_cast<std::ptrdiff_t>(offset_[layer]));
  const size_t startable = plan_.set_ready(layer);
  for (; started_ < startable; ++started_) {
    if (Status status = start(started_); !status) return status;
  }
  group_.make_progress();
  return {};
}

Status DenseBuckets::start(size_t at) {
  Bucket& bucket = buckets_[at];
  if (bucket.allreduce == nullptr) return {};
  const StreamView view{bucket.values, true, {}, *bucket.own};
  SharedStream own{view, bucket.own, bucket.values * sizeof(float)};
  const std::string what = "dense bucket " + std::to_string(at) + " of " + std::to_string(plan_.buckets()) + ": " +
                           description_of(*bucket.allreduce, bucket.settings);
  // The body keeps the allreduce: a caller that gives up in the middle of a step leaves no reference to this object
  // behind.
  auto pending = group_.start<Reduced>(what, [allreduce = bucket.allreduce, own = std::move(own)](Channel& channel) {
    return allreduce->run(channel, own);
  });
  if (!pending) return std::unexpected(pending.error());
  bucket.pending = std::move(*pending);
  return {};
}

Status DenseBuckets::wait() {
  if (const auto layer = plan_.missing()) {
    return fail(ErrorCode::kInvalidArgument, "layer " + std::to_string(*layer) + " is not ready");
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.allreduce == nullptr) continue;
    auto reduced = bucket.pending->wait();
    if (!reduced) return std::unexpected(reduced.error());
    bucket.pending.reset();
    bucket.reduced = std::move(*reduced);
    if (!bucket.reduced.sum.view.dense) bucket.dense = to_dense(bucket.reduced.sum.view).values;
  }
  plan_.reset();
  started_ = 0;
  return {};
}

std::span<const float> DenseBuckets::sum(size_t layer) const {
  const Bucket& bucket = buckets_[plan_.bucket_of(layer)];
  const uint64_t values = options_.layers[layer];
  if (values == 0) return {};
  const StreamView& sum = bucket.reduced.sum.view;
  const std::span<const float> all = sum.dense ? sum.values : std::span<const float>(bucket.dense);
  return all.subspan(offset_[layer], values);
}

}  // namespace millrace::peer
