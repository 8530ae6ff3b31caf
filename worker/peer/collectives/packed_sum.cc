#include "worker/peer/collectives/packed_sum.h"

#include <algorithm>

#include "worker/peer/collectives/contribution.h"

namespace millrace::peer {
namespace {

/// The stream's entries that are not the neutral element. Sparse.
Stream sparse_of(const ReduceOp& op, const StreamView& dense) {
  Stream out = Stream::empty(dense.dimension);
  for (size_t i = 0; i < dense.values.size(); ++i) {
    if (dense.values[i] == op.neutral) continue;
    out.indices.push_back(static_cast<uint32_t>(i));
    out.values.push_back(dense.values[i]);
  }
  return out;
}

/// The slice in the form that takes fewer bytes with this codec.
SharedStream smaller_form(const ReduceOp& op, const SharedStream& slice, const std::optional<CodecSpec>& codec) {
  const StreamView& view = slice.view;
  const uint64_t count = view.dense ? static_cast<uint64_t>(std::ranges::count_if(
                                          view.values, [&op](float value) { return value != op.neutral; }))
                                    : view.count();
  uint64_t sparse_bytes = count * (sizeof(float) + sizeof(uint32_t));
  uint64_t dense_bytes = view.dimension * sizeof(float);
  if (codec) {
    const ValueCodec& values = *find_value_codec(codec->value);
    sparse_bytes =
        find_index_codec(codec->index)->bytes_estimate(count, view.dimension, *codec) + values.bytes_max(count, *codec);
    dense_bytes = values.bytes_max(view.dimension, *codec);
  }
  if (sparse_bytes < dense_bytes) return view.dense ? SharedStream::from(sparse_of(op, view)) : slice;
  return view.dense ? slice : SharedStream::from(to_dense(op, view));
}

}  // namespace

Status check_sum_quantizer(const AllreduceSettings& settings, std::string_view algorithm) {
  if (!settings.dense_quantizer) return {};
  if (Status status = validate(*settings.dense_quantizer); !status) return status;
  if (settings.op.is_sum()) return {};
  return fail(ErrorCode::kInvalidArgument,
              std::string(algorithm) +
                  ": the error of a quantizer can be kept for later only where values are added, not for " +
                  settings.op.name);
}

Result<Packed> pack_own_sum(Channel& channel, OwnSlice& mine, const AllreduceSettings& settings) {
  const Slices slices(settings.dimension, channel.size());
  const uint32_t rank = channel.rank();
  if (slices.dimension(rank) == 0) return Packed{{}, mine.sum};
  const std::optional<CodecSpec>& codec = settings.dense_quantizer ? settings.dense_quantizer : settings.wire.sums;
  const SharedStream slice = smaller_form(settings.op, mine.sum, codec);
  // Apart from the draws of the contribution's codec.
  RandomKey random = settings.wire.random;
  random.high ^= 0x64736172;
  Result<Packed> packed = pack(slice, codec, random_key_of(random, channel), slices.begin(rank), channel.bodies());
  if (packed && settings.dense_quantizer) {
    if (mine.returned.empty()) mine.returned = no_returns(slices);
    mine.returned[rank] = difference(slice.view, packed->decoded.view);
  }
  return packed;
}

}  // namespace millrace::peer
