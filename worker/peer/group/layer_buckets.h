#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/group/peer_group.h"

namespace millrace::peer {

/// Plans which layers of a gradient travel together, and when. A bucket holds consecutive layers, in the order in which
/// back-propagation is expected to finish them. It ends with the layer that takes it to `bucket_bytes` or more. The
/// last layers are a bucket of their own even if smaller, since no computation hides it.
///
/// Order    buckets start in their own order, each once its layers and those of all buckets before it are ready. So
///          ranks whose layers become ready in different orders start the same collectives.
class BucketPlan {
 public:
  /// layer_bytes  in the expected order; a layer of 0 bytes is one of its neighbour's bucket. bucket_bytes: 0 is taken
  ///              for 1.
  BucketPlan(std::span<const uint64_t> layer_bytes, uint64_t bucket_bytes);

  size_t layers() const { return bucket_of_.size(); }
  size_t buckets() const { return first_layer_.size() - 1; }
  size_t bucket_of(size_t layer) const { return bucket_of_[layer]; }
  size_t first_layer(size_t bucket) const { return first_layer_[bucket]; }
  size_t end_layer(size_t bucket) const { return first_layer_[bucket + 1]; }

  bool is_ready(size_t layer) const { return ready_[layer]; }
  /// Notes that the layer's gradient is there. Returns the end of the buckets that may have started now: those below it
  /// that have not.
  /// REQUIRES: it was not ready.
  size_t set_ready(size_t layer);
  /// Returns the number of buckets that may have started: [0, startable()).
  size_t startable() const { return startable_; }
  /// Returns one of the layers that are not ready; none: all are.
  std::optional<size_t> missing() const;
  /// Begins the next step: no layer is ready.
  void reset();

 private:
  std::vector<size_t> bucket_of_;
  std::vector<size_t> first_layer_ = {0};
  std::vector<size_t> waiting_for_;  ///< by bucket: layers that are not ready
  std::vector<bool> ready_;
  size_t startable_ = 0;
};

struct DenseBucketsOptions {
  std::vector<uint64_t> layers;                ///< values of each, in the order in which back-propagation finishes them
  uint64_t bucket_bytes = uint64_t{25} << 20;  ///< that of PyTorch's DistributedDataParallel
  AlgorithmId algorithm = AlgorithmId::kDenseRabenseifner;
};

/// Reduces a dense gradient while the rest of it is computed (DenseOvlp). An allreduce of its own sums a bucket of
/// layers as soon as its last layer is ready. wait() blocks at the end until all are done. Step after step; a step
/// begins with its first ready().
///
/// Progress  collectives in flight progress in ready() and wait(), or always where the group has its own thread. Then
///           computation that calls nothing hides them.
/// Bits      the same on all ranks. They equal those of one allreduce of the whole gradient only where sums are exact,
///           since slices differ.
/// Memory    one copy of the gradient, in buckets; layers may lie anywhere.
/// Errors    the group's, where it has ended.
/// Threads   one.
/// Source    [OkTopk22, 5] (DenseOvlp).
class DenseBuckets {
 public:
  /// Makes the buckets; the same options on all ranks. The group outlives it.
  ///
  /// Errors   invalid_argument: no layers, none with a value, or an algorithm whose result is not the exact sum.
  static Result<std::unique_ptr<DenseBuckets>> make(PeerGroup& group, DenseBucketsOptions options);

  const BucketPlan& plan() const { return plan_; }

  /// Takes the layer's gradient of this step: [layers[layer]], read before it returns. Starts the buckets that may
  /// start now. Any order.
  ///
  /// Errors   invalid_argument: no such layer, another number of values, or a layer that was ready before; nothing is
  ///          taken.
  Status ready(size_t layer, std::span<const float> gradient);

  /// Waits for all buckets, and ends the step.
  /// Errors   invalid_argument: a layer is not ready; the sentence names it, and the step continues.
  Status wait();

  /// Returns the layer's sum over the ranks: [layers[layer]], valid until the next ready(). REQUIRES: wait() has
  /// succeeded.
  std::span<const float> sum(size_t layer) const;

 private:
  struct Bucket {
    uint64_t values = 0;
    AllreduceSettings settings;
    std::shared_ptr<Allreduce> allreduce;  ///< none for a bucket without values
    std::shared_ptr<Buffer<float>> own;    ///< this rank's contribution
    std::optional<Pending<Reduced>> pending;
    Reduced reduced;
    Buffer<float> dense;  ///< the sum, where it came sparse
  };

  DenseBuckets(PeerGroup& group, DenseBucketsOptions options, const BucketPlan& plan)
      : group_(group), options_(std::move(options)), plan_(plan) {}
  Status start(size_t at);

  PeerGroup& group_;
  DenseBucketsOptions options_;
  BucketPlan plan_;
  std::vector<uint64_t> offset_;  ///< by layer: in its bucket
  std::vector<Bucket> buckets_;
  size_t started_ = 0;
};

}  // namespace millrace::peer
