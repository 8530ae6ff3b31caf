#include "worker/peer/collectives/contribution.h"

#include <algorithm>
#include <cstring>

namespace millrace::peer {

RandomKey random_key_of(RandomKey job, const Channel& channel) {
  constexpr uint64_t kPeerDraws = 0x70656572;  // apart from the server path's streams
  const auto words = random_words(job, uint64_t{channel.collective()} << 32 | channel.rank(), kPeerDraws);
  return {words[0], words[1]};
}

Status check_contribution(const Contribution& given, const AllreduceSettings& settings) {
  const auto refuse = [&settings](std::string_view what, uint64_t dimension) {
    return fail(ErrorCode::kInvalidArgument, std::string(what) + " of dimension " + std::to_string(dimension) +
                                                 " to an allreduce of " + std::to_string(settings.dimension));
  };
  const StreamView& own = given.own.view;
  const StreamView& rest = given.rest.view;
  if (own.dimension != settings.dimension) return refuse("a contribution", own.dimension);
  if (rest.dimension != 0 && rest.dimension != settings.dimension) return refuse("a rest", rest.dimension);
  if (!all_finite(own.values)) return fail(ErrorCode::kNonFinite, "the contribution has NaN or infinity");
  // Only a codec that adds entries reads the rest: without one, no step passes over a vector of the whole dimension.
  if (fills_from_rest(settings.wire) && !all_finite(rest.values))
    return fail(ErrorCode::kNonFinite, "the rest beside it has NaN or infinity");
  return {};
}

Result<CodedContribution> code_contribution(const Contribution& given, const AllreduceSettings& settings,
                                            Channel& channel) {
  if (Status status = check_contribution(given, settings); !status) return std::unexpected(status.error());
  const SharedStream& own = given.own;
  const RandomKey random = random_key_of(settings.wire.random, channel);
  Result<Packed> packed = settings.wire.contribution
                              ? pack_contribution(own, given.rest.view, {*settings.wire.contribution, random, 0})
                              : pack(own, {}, random, 0, channel.bodies());
  if (!packed) return std::unexpected(packed.error());
  CodedContribution coded{std::move(packed->packet), std::move(packed->decoded), Stream::empty(settings.dimension),
                          Stream::empty(settings.dimension)};
  if (coded.sent.view.values.data() == own.view.values.data()) return coded;
  CodecChange change = change_of(own.view, given.rest.view, coded.sent.view);
  coded.returned = std::move(change.returned);
  coded.added = std::move(change.added);
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

/// kDimensionMax: behind the last one.
uint64_t contribution_index_at(const StreamView& stream, size_t at) {
  return at == stream.values.size() ? kDimensionMax : stream.dense ? at : uint64_t{stream.indices[at]};
}

/// 0 where the stream has no entry.
float value_at(const StreamView& stream, uint64_t index) {
  if (stream.dense) return stream.values[index];
  const auto found = std::ranges::lower_bound(stream.indices, index);
  if (found == stream.indices.end() || *found != index) return 0;
  return stream.values[static_cast<size_t>(found - stream.indices.begin())];
}

bool have_same_indices(const StreamView& a, const StreamView& b) {
  return a.dense == b.dense && a.count() == b.count() &&
         (a.count() == 0 || a.dense || std::memcmp(a.indices.data(), b.indices.data(), a.indices.size_bytes()) == 0);
}

}  // namespace

CodecChange change_of(const StreamView& own, const StreamView& rest, const StreamView& sent) {
  CodecChange out{Stream::empty(own.dimension), Stream::empty(own.dimension)};
  if (have_same_indices(own, sent)) {
    out.returned = difference_of_values(own, sent);
    return out;
  }
  const auto append = [](Stream& stream, uint64_t index, float value) {
    if (value == 0) return;
    stream.indices.push_back(static_cast<uint32_t>(index));
    stream.values.push_back(value);
  };
  size_t i = 0, j = 0;
  for (;;) {
    const uint64_t left = contribution_index_at(own, i), right = contribution_index_at(sent, j);
    const uint64_t index = std::min(left, right);
    if (index == kDimensionMax) return out;
    float had = left == index ? own.values[i] : 0.0F;
    if (left != index && rest.dimension != 0) {
      had = value_at(rest, index);
      append(out.added, index, had);
    }
    append(out.returned, index, had - (right == index ? sent.values[j] : 0.0F));
    i += left == index ? 1 : 0;
    j += right == index ? 1 : 0;
  }
}

Stream difference(const StreamView& a, const StreamView& b) { return change_of(a, {}, b).returned; }

IndexBuffer merged_indices(IndexSpan a, IndexSpan b) {
  IndexBuffer out(a.size() + b.size());
  std::ranges::merge(a, b, out.begin());
  return out;
}

}  // namespace millrace::peer
