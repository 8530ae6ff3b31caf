#include "worker/peer/contribution.h"

#include <algorithm>
#include <cstring>

namespace millrace::peer {

RandomKey random_key_of(RandomKey job, const Channel& channel) {
  constexpr uint64_t kPeerDraws = 0x70656572;  // apart from the server path's streams
  const auto words = random_words(job, uint64_t{channel.collective()} << 32 | channel.rank(), kPeerDraws);
  return {words[0], words[1]};
}

Status check_contribution(const StreamView& own, const AllreduceSettings& settings) {
  if (own.dimension != settings.dimension) {
    return fail(ErrorCode::kInvalidArgument, "a contribution of dimension " + std::to_string(own.dimension) +
                                                 " to an allreduce of " + std::to_string(settings.dimension));
  }
  if (!all_finite(own.values)) return fail(ErrorCode::kNonFinite, "the contribution has NaN or infinity");
  return {};
}

Result<CodedContribution> code_contribution(const HeldStream& own, const AllreduceSettings& settings,
                                            Channel& channel) {
  if (Status status = check_contribution(own.view, settings); !status) return std::unexpected(status.error());
  const RandomKey random = random_key_of(settings.wire.random, channel);
  Result<Packed> packed = pack(own, settings.wire.contribution, random, 0, channel.bodies());
  if (!packed) return std::unexpected(packed.error());
  CodedContribution coded{std::move(packed->packet), std::move(packed->decoded), Stream::empty(settings.dimension)};
  if (coded.sent.view.values.data() != own.view.values.data()) coded.returned = difference(own.view, coded.sent.view);
  return coded;
}

namespace {

/// Of streams with the same indices, as a lossy value codec leaves them.
Stream difference_of_values(const StreamView& a, const StreamView& b) {
  Stream out = Stream::empty(a.dimension);
  out.indices.resize(a.count());
  out.values.resize(a.count());
  size_t at = 0;
  for (size_t i = 0; i < a.count(); ++i) {
    const float value = a.values[i] - b.values[i];
    out.indices[at] = a.dense ? static_cast<uint32_t>(i) : a.indices[i];
    out.values[at] = value;
    at += value != 0 ? 1 : 0;
  }
  out.indices.resize(at);
  out.values.resize(at);
  return out;
}

bool have_same_indices(const StreamView& a, const StreamView& b) {
  return a.dense == b.dense && a.count() == b.count() &&
         (a.count() == 0 || a.dense || std::memcmp(a.indices.data(), b.indices.data(), a.indices.size_bytes()) == 0);
}

}  // namespace

Stream difference(const StreamView& a, const StreamView& b) {
  if (have_same_indices(a, b)) return difference_of_values(a, b);
  Stream out = Stream::empty(a.dimension);
  const auto index_at = [](const StreamView& stream, size_t at) {
    return at == stream.values.size() ? kDimensionMax : stream.dense ? at : uint64_t{stream.indices[at]};
  };
  size_t i = 0, j = 0;
  for (;;) {
    const uint64_t left = index_at(a, i), right = index_at(b, j);
    const uint64_t index = std::min(left, right);
    if (index == kDimensionMax) return out;
    const float value = (left == index ? a.values[i] : 0.0F) - (right == index ? b.values[j] : 0.0F);
    i += left == index ? 1 : 0;
    j += right == index ? 1 : 0;
    if (value == 0) continue;
    out.indices.push_back(static_cast<uint32_t>(index));
    out.values.push_back(value);
  }
}

}  // namespace millrace::peer
