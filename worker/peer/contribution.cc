#include "worker/peer/contribution.h"

#include <algorithm>
#include <cstring>

namespace millrace::peer {

RandomKey random_key_of(RandomKey job, const Channel& channel) {
  constexpr uint64_t kPeerDraws = 0x70656572;  // apart from the server path's streams
  const auto words = random_words(job, uint64_t{channel.collective()} << 32 | channel.rank(), kPeerDraws);
  return {words[0], words[1]};
}

template <typename T>
Status check_contribution(const StreamView<T>& own, const AllreduceSettings<T>& settings) {
  if (own.dimension != settings.dimension) {
    return fail(ErrorCode::kInvalidArgument, "a contribution of dimension " + std::to_string(own.dimension) +
                                                 " to an allreduce of " + std::to_string(settings.dimension));
  }
  if (!all_finite<T>(own.values)) return fail(ErrorCode::kNonFinite, "the contribution has NaN or infinity");
  return {};
}

template <typename T>
Result<CodedContribution<T>> code_contribution(const HeldStream<T>& own, const AllreduceSettings<T>& settings,
                                               Channel& channel) {
  if (Status status = check_contribution(own.view, settings); !status) return std::unexpected(status.error());
  const RandomKey random = random_key_of(settings.wire.random, channel);
  Result<Packed<T>> packed = pack(own, settings.wire.contribution, random, 0, channel.bodies());
  if (!packed) return std::unexpected(packed.error());
  CodedContribution<T> coded{std::move(packed->packet), std::move(packed->decoded),
                             Stream<T>::empty(settings.dimension)};
  if (coded.sent.view.values.data() != own.view.values.data()) coded.returned = difference(own.view, coded.sent.view);
  return coded;
}

namespace {

/// Of streams with the same indices, as a lossy value codec leaves them.
template <typename T>
Stream<T> difference_of_values(const StreamView<T>& a, const StreamView<T>& b) {
  Stream<T> out = Stream<T>::empty(a.dimension);
  out.indices.resize(a.count());
  out.values.resize(a.count());
  size_t at = 0;
  for (size_t i = 0; i < a.count(); ++i) {
    const T value = a.values[i] - b.values[i];
    out.indices[at] = a.dense ? static_cast<uint32_t>(i) : a.indices[i];
    out.values[at] = value;
    at += value != 0 ? 1 : 0;
  }
  out.indices.resize(at);
  out.values.resize(at);
  return out;
}

template <typename T>
bool have_same_indices(const StreamView<T>& a, const StreamView<T>& b) {
  return a.dense == b.dense && a.count() == b.count() &&
         (a.count() == 0 || a.dense || std::memcmp(a.indices.data(), b.indices.data(), a.indices.size_bytes()) == 0);
}

}  // namespace

template <typename T>
Stream<T> difference(const StreamView<T>& a, const StreamView<T>& b) {
  if (have_same_indices(a, b)) return difference_of_values(a, b);
  Stream<T> out = Stream<T>::empty(a.dimension);
  const auto index_at = [](const StreamView<T>& stream, size_t at) {
    return at == stream.values.size() ? kDimensionMax : stream.dense ? at : uint64_t{stream.indices[at]};
  };
  size_t i = 0, j = 0;
  for (;;) {
    const uint64_t left = index_at(a, i), right = index_at(b, j);
    const uint64_t index = std::min(left, right);
    if (index == kDimensionMax) return out;
    const T value = (left == index ? a.values[i] : T{0}) - (right == index ? b.values[j] : T{0});
    i += left == index ? 1 : 0;
    j += right == index ? 1 : 0;
    if (value == 0) continue;
    out.indices.push_back(static_cast<uint32_t>(index));
    out.values.push_back(value);
  }
}

template Status check_contribution(const StreamView<float>&, const AllreduceSettings<float>&);
template Status check_contribution(const StreamView<double>&, const AllreduceSettings<double>&);
template Result<CodedContribution<float>> code_contribution(const HeldStream<float>&, const AllreduceSettings<float>&,
                                                            Channel&);
template Result<CodedContribution<double>> code_contribution(const HeldStream<double>&,
                                                             const AllreduceSettings<double>&, Channel&);
template Stream<float> difference(const StreamView<float>&, const StreamView<float>&);
template Stream<double> difference(const StreamView<double>&, const StreamView<double>&);

}  // namespace millrace::peer
