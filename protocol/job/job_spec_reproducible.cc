#include "protocol/job/job_spec_reproducible.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "kernels/grid/grid.h"
#include "protocol/datagram/header.h"
#include "protocol/job/layout.h"

/// The items of protocol/job/REFUSED.md about `reproducible`, and tests of validate() each.
namespace millrace::protocol {
namespace {

std::unexpected<Error> refuse_reproducible(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

/// Bytes that a code may put before a fragment's values, at most.
constexpr uint32_t kFragmentLead = 16;
constexpr uint32_t kResultExtensionBytes = 24;

constexpr uint32_t block_max_of(uint32_t packet_bytes_max) {
  const size_t room =
      packet_bytes_max - kDatagramHeaderBytes - kDatagramMacBytes - kResultExtensionBytes - kFragmentLead;
  return static_cast<uint32_t>(kFragmentsMax * room / sizeof(int32_t) / 64 * 64);
}

static_assert(kReproducibleGrid.block_indices <= block_max_of(kSwitchPacketBytesMin));

Status check_steps(const JobSpec& spec) {
  if (spec.mode != Mode::kSynchronous || spec.staleness != 0) {
    return refuse_reproducible(
        "reproducible needs mode synchronous with staleness 0: otherwise the contributors of a step, and the updates "
        "that determine its exponents, depend on which workers are slow");
  }
  if (spec.combine == Combine::kWeightedMean) {
    return refuse_reproducible(
        "reproducible with combine weighted_mean: values times a weight are sums that f32 rounds by their order; set "
        "combine mean");
  }
  if (spec.unbiased) {
    return refuse_reproducible(
        "reproducible rounds to a grid and keeps the rest in a residual, an unbiased job keeps none; set unbiased off");
  }
  if (spec.codec_error == CodecError::kDrop) {
    return refuse_reproducible(
        "reproducible with codec_error drop: what rounding to the grid leaves is kept, there is nothing else to drop; "
        "set codec_error retain");
  }
  if (spec.initial_weights == InitialWeights::kFirst) {
    return refuse_reproducible(
        "reproducible with initial_weights first: workers would join a running job, and only workers that have all of "
        "its updates know the exponents of its grid; give all workers the same weights, and set initial_weights own");
  }
  if (spec.has_store())
    return fail(ErrorCode::kUnsupported, "reproducible with a store: not in this version; set store none");
  return {};
}

Status check_reproducible_codec(const CodecSpec& codec, std::string_view which, const std::string& where) {
  const ValueCodec& value = *find_value_codec(codec.value);
  if (!value.lossless(codec)) {
    return refuse_reproducible(
        fmt::format("{}{}: {} forms its buckets by parts, and rounds exact values; a reproducible job needs "
                    "codecs without loss: set value codec raw",
                    where, which, value.text(codec)));
  }
  const IndexCodec& index = *find_index_codec(codec.index);
  if (!index.lossless()) {
    return refuse_reproducible(
        fmt::format("{}{}: {} sends other entries than were selected, by the parts that shards have; a "
                    "reproducible job has codecs without loss: set gap",
                    where, which, index.name()));
  }
  return {};
}

Status check_reselection(const BucketLayout& bucket, size_t buckets, uint32_t lanes) {
  if (bucket.reselect.reselect == Reselect::kNone) return {};
  if (buckets > 1) {
    return refuse_reproducible(
        fmt::format("reproducible with reselect topk and {} buckets: shards would cut each by its own k, a switch all "
                    "of them by one; a job of one tensor re-selects (or of small ones that travel together), or set "
                    "reselect none",
                    buckets));
  }
  if (lanes > 1) {
    return refuse_reproducible(fmt::format(
        "reproducible with reselect topk and {} lanes at the switch: each lane cuts its own windows, shards "
        "cut all of them by one threshold; set lanes to 1, or reselect none",
        lanes));
  }
  if (bucket.reselect.threshold_period != 1) {
    return refuse_reproducible(
        "reproducible with a threshold_period: a step is cut by the counts of the step before, always; set it to 1");
  }
  return {};
}

/// Checks that a switch can always send whole sums: a window's sums fit its fragments in every case.
Status check_switch_path(const JobSpec& spec) {
  if (spec.path != Path::kSwitch) return {};
  const SwitchSpec& at = spec.switch_path;
  const int32_t limit = exact_f32_limit(spec.workers);
  const bool holds_limit =
      at.value == WindowValueCodec::kFixed32 || (at.value == WindowValueCodec::kFixed16 && limit <= INT16_MAX);
  if (!holds_limit) {
    return refuse_reproducible(
        fmt::format("reproducible over a switch: integers of up to {} need value codec fixed32", limit));
  }
  if (at.index == WindowIndexCodec::kBloom) {
    return refuse_reproducible(
        "reproducible over a switch: bloom sends entries that no selection chose; set gap, raw or bitmap");
  }
  const uint32_t block_max = reproducible_block_max(at.packet_bytes_max);
  if (spec.grid.block_indices > block_max) {
    return refuse_reproducible(fmt::format(
        "reproducible over a switch: sums of a window of {} indices may not fit {} packets of {} bytes, and what does "
        "not fit would stay out by chance: a grid of {} indices a block at most; without a grid of its own a "
        "reproducible job has {} on every path",
        spec.grid.block_indices, kFragmentsMax, at.packet_bytes_max, block_max, kReproducibleGrid.block_indices));
  }
  return {};
}

}  // namespace

uint32_t reproducible_block_max(uint32_t packet_bytes_max) { return block_max_of(packet_bytes_max); }

Status check_grid(const GridSpec& grid) {
  if (grid.block_indices == 0 || grid.block_indices % 64 != 0 || grid.block_indices > kWindowIndicesMax) {
    return refuse_reproducible(
        fmt::format("grid: block_indices {} is no multiple of 64 up to {}", grid.block_indices, kWindowIndicesMax));
  }
  if (grid.exponent_initial < kGridExponentMin || grid.exponent_initial > kGridExponentMax) {
    return refuse_reproducible(fmt::format("grid: exponent_initial {} is not in {} to {}", grid.exponent_initial,
                                           kGridExponentMin, kGridExponentMax));
  }
  return {};
}

Status check_reproducible(const JobSpec& spec) {
  if (!spec.reproducible) return {};
  if (Status s = check_steps(spec); !s) return s;
  if (Status s = check_switch_path(spec); !s) return s;
  JobSpec planned = spec;
  planned.parts_per_shard = 1;  // the buckets are asked for, not the parts
  const JobLayout layout = plan_layout(planned, 1);
  for (const BucketLayout& bucket : layout.buckets) {
    const std::string where = layout.buckets.size() > 1 ? bucket_text(spec, bucket) + ": " : "";
    if (Status s = check_reproducible_codec(bucket.codec_up, "codec_up", where); !s) return s;
    if (Status s = check_reproducible_codec(bucket.codec_down, "codec_down", where); !s) return s;
    if (Status s = check_reselection(bucket, layout.buckets.size(), spec.switch_path.lanes); !s) return s;
  }
  return {};
}

}  // namespace millrace::protocol
