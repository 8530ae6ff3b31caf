#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/selector.h"
#include "protocol/container/container.h"
#include "worker/core/residual/bucket.h"

/// Decides which jobs take gradients in a device's memory, pushes them, and codes dense steps there.
namespace millrace::worker {
namespace {

std::string why_not_coded(const CodecSpec& spec) {
  const std::string codec = "selection none with codec " + codec_text(spec);
  return device_codes(spec, 1) ? codec + ", which has too many buckets" : codec;
}

std::string why_not_selected(const SelectionSpec& spec) {
  const std::string name(selection_name(spec.selection));
  if (spec.alternate_signs) return name + " with alternating signs";
  return spec.selection == SelectionId::kBucketTopK ? name + " with a warm-up, or with such buckets" : name;
}

}  // namespace

bool device_selects(const SelectionSpec& spec, uint64_t dimension) {
  switch (spec.selection) {
    case SelectionId::kTopK:
    case SelectionId::kTrimmed:
    case SelectionId::kRadix:
    case SelectionId::kThreshold:
    case SelectionId::kThresholdReuse:
    case SelectionId::kBinarySearch:
    case SelectionId::kSampled:
    case SelectionId::kGaussian: return !spec.alternate_signs;
    case SelectionId::kBucketTopK: return !spec.alternate_signs && cuda::selects_buckets(spec, dimension);
    default: return false;
  }
}

bool device_codes(const CodecSpec& spec, uint64_t dimension) {
  if (spec.automatic) return false;
  switch (spec.value) {
    case ValueCodecId::kF16:
    case ValueCodecId::kBf16: return true;
    case ValueCodecId::kQsgd:
    case ValueCodecId::kTernGrad:
    case ValueCodecId::kOneBit: return cuda::launches_buckets(dimension, spec.bucket_size);
    default: return false;
  }
}

Status Bucket::may_be_on_device() const {
  const auto refuse = [](const std::string& why) {
    return fail(
        ErrorCode::kUnsupported,
        "a gradient in a device's memory cannot be pushed here: " + why +
            ". Tensors of their own (fuse_below) can be pushed so that select by topk, trimmed, radix, "
            "threshold, threshold_reuse, binary_search, sampled, gaussian or bucket_topk (buckets of up to "
            "4,096 entries, 256 of them selected), or select none with codec qsgd, f16, bf16, terngrad or onebit; "
            "without alternating signs, unbiased, audit and Bloom filters");
  };
  if (slots_.size() != 1) return refuse("the tensor is fused with others");
  if (residual_.spec().selection == SelectionId::kNone) {
    if (!device_codes(codec_, dimension_)) return refuse(why_not_coded(codec_));
    if (spec_.path != protocol::Path::kServer) return refuse("selection none, not over servers");
    if (spec_.reproducible) return refuse("selection none in a reproducible job");
  } else if (!device_selects(residual_.spec(), dimension_)) {
    return refuse("selection " + why_not_selected(residual_.spec()));
  }
  if (spec_.unbiased) return refuse("the job is unbiased");
  if (spec_.audit) return refuse("the job audits");
  if (!find_index_codec(codec_.index)->lossless()) return refuse("the index code adds entries of the residual");
  return {};
}

Status PushSlot::takes_device() const { return bucket_.may_be_on_device(); }

Status PushSlot::device_status() const { return bucket_.residual_.status(); }

Status PushSlot::add_device(const DeviceGradient& gradient, float weight, const MakeDeviceResidual& make) {
  if (auto valid = check(weight); !valid) return valid;
  if (auto possible = bucket_.may_be_on_device(); !possible) return possible;
  if (gradient.count != dimension_) {
    return fail(ErrorCode::kInvalidArgument, "a gradient of " + std::to_string(gradient.count) +
                                                 " values for a tensor of dimension " + std::to_string(dimension_));
  }
  const std::lock_guard fill(bucket_.fill_);
  if (auto moved = bucket_.residual_.move_to_device(make); !moved) return moved;
  // For the observer of a test: no program has one.
  Result<Stream> seen = Stream{};
  const bool enters_now = !bucket_.enters_in_select();
  if (enters_now && bucket_.ledger_.is_observed()) seen = bucket_.residual_.copy(gradient);
  if (!seen) return std::unexpected(seen.error());
  const bool clips = bucket_.spec_.clip != 0;
  const auto squares = clips ? bucket_.residual_.squares(gradient) : Result<double>(0);
  if (!squares) return std::unexpected(squares.error());
  const auto rule = bucket_.spec_.non_finite;
  const auto when = enters_now ? ResidualSum::Enters::kNow : ResidualSum::Enters::kLater;
  const auto left_out = bucket_.residual_.add(gradient, weight, rule, when);
  if (!left_out) return std::unexpected(left_out.error());
  if (enters_now && bucket_.ledger_.is_observed()) {
    for (float& value : seen->values) value = std::isfinite(value) ? value : 0;
    bucket_.ledger_.enter(offset_, seen->view(), weight);
  }
  squared_norm_ = *squares;
  weight_ = weight;
  filled_ = true;
  non_finite_dropped_ += *left_out;
  return {};
}

/// Codes a part where the sum holds it: the code's error stays in the sum. Empty: nothing has changed, and a copy is
/// coded. So is a part with returned entries, as for keep_errors().
Result<std::optional<CodedPart>> Bucket::code_in_sum(size_t at, const EncodeOptions& options) {
  if (has_returned(at)) return std::nullopt;
  const IndexRange range = range_of_part(at);
  const uint64_t count = range.end - range.begin;
  Stream had;  // for the observer of a test: no program has one
  if (ledger_.is_observed()) {
    Stream copied;
    had = slice_of(residual_.view(copied), range.begin, range.end);
  }
  const ValueCodec& codec = *find_value_codec(options.spec.value);
  // All memory is taken before the sum changes: it has no other copy of the values.
  const auto bytes = std::make_shared<ByteBuffer>();
  bytes->reserve(kContainerHeaderBytes + codec.bytes_max(count, options.spec));
  bytes->resize(kContainerHeaderBytes);
  const auto sent = std::make_shared<Stream>(Stream{count, true, {}, {}});
  sent->values.resize(count);
  const auto lost = residual_.take_coded(range, options, spec_.codec_error, *bytes);
  if (!lost) return std::unexpected(lost.error());
  if (!*lost) return std::nullopt;
  const ByteSpan code = ByteSpan(*bytes).subspan(kContainerHeaderBytes);
  if (auto decoded = codec.decode(code, {}, sent->values); !decoded) return std::unexpected(decoded.error());
  if (ledger_.is_observed()) {
    lose_difference(at, had.view(), sent->view());
  } else {
    ledger_.lose_sums(at, **lost);
  }
  seal_dense_container(count, options.spec.value, *bytes);
  part_is_coded(at, count);
  return CodedPart{{bytes, ByteSpan(*bytes)}, {sent->view(), sent, sent->memory_bytes()}};
}

}  // namespace millrace::worker
