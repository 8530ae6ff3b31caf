#include <algorithm>

#include "worker/peer/contribution.h"
#include "worker/peer/registry.h"
#include "worker/peer/slices.h"

/// DSAR_Split_allgather: the split of SSAR_Split_allgather, then an allgather of slices that have become dense, quantized if
/// asked for. For sums that fill up.
///
/// Forms   a slice travels in the form that takes fewer bytes; the result is dense.
/// Any P   the gathering is recursive doubling or Bruck's.
/// Bits    one rank adds, in the order of the ranks; where it quantizes, it uses its own decoding.
/// Law     the quantization error of a slice of the sum is in the `returned` of the rank that is in charge of it.
/// Bytes   a rank: P - 1 messages of (P - 1) / P k entries in all, then its slice, N / P values at most, to P - 1 others.
/// Source  sparcml.txt, sections 5.3.3 and 6.
namespace millrace::peer {
namespace {

constexpr uint32_t kSplit = 0;
constexpr uint32_t kGather = 1;

/// The stream's entries that are not the neutral element. Sparse.
template <typename T>
Stream<T> sparse_of(const ReduceOp<T>& op, const StreamView<T>& dense) {
  Stream<T> out = Stream<T>::empty(dense.dimension);
  for (size_t i = 0; i < dense.values.size(); ++i) {
    if (dense.values[i] == op.neutral) continue;
    out.indices.push_back(static_cast<uint32_t>(i));
    out.values.push_back(dense.values[i]);
  }
  return out;
}

/// The slice in the form that takes fewer bytes with this codec.
template <typename T>
HeldStream<T> smaller_form(const ReduceOp<T>& op, const HeldStream<T>& slice, const std::optional<CodecSpec>& codec) {
  const StreamView<T>& view = slice.view;
  const uint64_t count =
      view.dense
          ? static_cast<uint64_t>(std::ranges::count_if(view.values, [&op](T value) { return value != op.neutral; }))
          : view.count();
  uint64_t sparse_bytes = count * (sizeof(T) + sizeof(uint32_t));
  uint64_t dense_bytes = view.dimension * sizeof(T);
  if (codec) {
    const ValueCodec& values = *find_value_codec(codec->value);
    sparse_bytes = find_index_codec(codec->index)->bytes_estimate(count, view.dimension, *codec) +
                   values.bytes_max(count, kValueTypeOf<T>, *codec);
    dense_bytes = values.bytes_max(view.dimension, kValueTypeOf<T>, *codec);
  }
  if (sparse_bytes < dense_bytes) return view.dense ? HeldStream<T>::from(sparse_of(op, view)) : slice;
  return view.dense ? slice : HeldStream<T>::from(to_dense(op, view));
}

template <typename T>
class DsarSplitAllgather final : public Allreduce<T> {
 public:
  explicit DsarSplitAllgather(const AllreduceSettings<T>& settings) : settings_(settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(AlgorithmId::kDsarSplitAllgather); }

  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override {
    if (Status status = check_contribution(own.view, settings_); !status) co_return std::unexpected(status.error());
    Result<OwnSlice<T>> mine = co_await split_and_combine(channel, std::move(own), settings_, kSplit);
    if (!mine) co_return std::unexpected(mine.error());
    const Slices slices(settings_.dimension, channel.size());
    Result<Packed<T>> packed = pack_sum(channel, slices, *mine);
    if (!packed) co_return std::unexpected(packed.error());
    const GatherOptions options{kGather, AllgatherWay::kDoubling, JoinAs::kDense};
    Result<HeldStream<T>> sum =
        co_await gather_slices(channel, std::move(*packed), slices, settings_.op, options, memory_);
    if (!sum) co_return std::unexpected(sum.error());
    co_return Reduced<T>{std::move(*sum), joined_returns<T>(settings_.dimension, mine->returned), {}};
  }

 private:
  /// The rank's slice of the sum as it is sent. What a quantizer changes of it goes into `mine.returned`.
  Result<Packed<T>> pack_sum(const Channel& channel, const Slices& slices, OwnSlice<T>& mine) const {
    const uint32_t rank = channel.rank();
    if (slices.dimension(rank) == 0) return Packed<T>{{}, mine.sum};
    const std::optional<CodecSpec>& codec = settings_.dense_quantizer ? settings_.dense_quantizer : settings_.wire.sums;
    const HeldStream<T> slice = smaller_form(settings_.op, mine.sum, codec);
    // Apart from the draws of the contribution's codec.
    RandomKey random = settings_.wire.random;
    random.high ^= 0x64736172;
    Result<Packed<T>> packed = pack(slice, codec, random_key_of(random, channel), slices.begin(rank));
    if (packed && settings_.dense_quantizer) {
      if (mine.returned.empty()) mine.returned = no_returns<T>(slices);
      mine.returned[rank] = difference(slice.view, packed->decoded.view);
    }
    return packed;
  }

  AllreduceSettings<T> settings_;
  ResultMemory<T> memory_;
};

template <typename T>
Result<std::unique_ptr<Allreduce<T>>> make(const AllreduceSettings<T>& settings) {
  if (settings.dense_quantizer) {
    if (Status status = validate(*settings.dense_quantizer); !status) return std::unexpected(status.error());
    if (!settings.op.is_sum()) {
      return fail(
          ErrorCode::kInvalidArgument,
          "dsar_split_allgather: what a quantizer changes can be kept for later where values are added, not for " +
              settings.op.name);
    }
  }
  return std::make_unique<DsarSplitAllgather<T>>(settings);
}

}  // namespace

AlgorithmEntry dsar_split_allgather_entry() {
  return {{.id = AlgorithmId::kDsarSplitAllgather,
           .name = "dsar_split_allgather",
           .source = "sparcml.txt, section 5.3.3",
           .result = ResultKind::kExactSum,
           .bounded_volume = true},
          make<float>,
          make<double>};
}

}  // namespace millrace::peer
