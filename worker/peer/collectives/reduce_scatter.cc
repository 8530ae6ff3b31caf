#include "worker/peer/collectives/reduce_scatter.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "kernels/stream/stream_scan.h"
#include "worker/peer/collectives/contribution.h"

namespace millrace::peer {
namespace {

/// The slice of a stream; of a dense one a view that shares it. One slice of the contribution with a codec; the codec's
/// changes go into `out`.
Result<Packet> coded_slice(const Contribution& given, const Slices& slices, uint32_t at, const CodecSpec& codec,
                           RandomKey random, OwnSlice& out) {
  const uint64_t begin = slices.begin(at), end = slices.end(at);
  const SharedStream slice = slice_of(given.own, begin, end);
  SharedStream rest;
  if (given.rest.view.dimension != 0) rest = slice_of(given.rest, begin, end);
  Result<Packed> packed = pack_contribution(slice, rest.view, {codec, random, begin});
  if (!packed) return std::unexpected(packed.error());
  if (packed->decoded.view.values.data() != slice.view.values.data()) {
    CodecChange change = change_of(slice.view, rest.view, packed->decoded.view);
    out.returned[at] = std::move(change.returned);
    out.added[at] = std::move(change.added);
  }
  return std::move(packed->packet);
}

/// One slice of the contribution, as it is.
Result<Packet> plain_slice(const SharedStream& own, const Slices& slices, uint32_t at, const ReduceOp& op,
                           JoinAs form) {
  SharedStream slice = slice_of(own, slices.begin(at), slices.end(at));
  const bool is_smaller = slice.view.count() >= dense_from_count(slice.view.dimension);
  if (!slice.view.dense && (form == JoinAs::kDense || is_smaller)) {
    slice = SharedStream::from(to_dense(op, slice.view));
  }
  Result<Packed> packed = pack(slice, {}, {}, slices.begin(at));
  if (!packed) return std::unexpected(packed.error());
  return std::move(packed->packet);
}

/// The slices of all ranks but this one, as they are sent.
Result<std::vector<Packet>> slice_packets(const Contribution& given, const Slices& slices, Channel& channel,
                                          const AllreduceSettings& settings, OwnSlice& out) {
  if (!settings.wire.contribution) {
    return pack_slices(given.own, slices.bounds(), settings.op.neutral, SliceForm::kSmaller, channel.bodies());
  }
  std::vector<Packet> packets(slices.count());
  const RandomKey random = random_key_of(settings.wire.random, channel);
  for (uint32_t at = 0; at < slices.count(); ++at) {
    if (at == channel.rank() || slices.dimension(at) == 0) continue;
    Result<Packet> packet = coded_slice(given, slices, at, *settings.wire.contribution, random, out);
    if (!packet) return std::unexpected(packet.error());
    packets[at] = std::move(*packet);
  }
  return packets;
}

/// Slices of a stream from the last to the first, and around: each begins where the search for the one before ended.
class SlicesDownward {
 public:
  /// The first one is that before the slice `after`.
  SlicesDownward(const StreamView& stream, const Slices& slices, uint32_t after)
      : stream_(stream), slices_(slices), before_(after) {
    if (!stream.dense) first_ = range_of(stream.indices, slices.begin(after), slices.begin(after)).first;
  }

  /// The next one downward is `at`. Until the next call.
  StreamView take(uint32_t at) {
    const uint64_t begin = slices_.begin(at), dimension = slices_.dimension(at);
    if (stream_.dense) return {dimension, true, {}, stream_.values.subspan(begin, dimension)};
    if (at >= std::exchange(before_, at)) first_ = stream_.indices.size();
    const size_t last = first_;
    while (first_ > 0 && stream_.indices[first_ - 1] >= begin) --first_;
    indices_.resize(last - first_);
    moved_down(stream_.indices.data() + first_, last - first_, static_cast<uint32_t>(begin), indices_.data());
    return {dimension, false, indices_, stream_.values.subspan(first_, last - first_)};
  }

  /// Where the next one ends.
  const void* next_index() const { return stream_.dense || first_ == 0 ? nullptr : &stream_.indices[first_ - 1]; }
  const void* next_value() const { return stream_.dense || first_ == 0 ? nullptr : &stream_.values[first_ - 1]; }

 private:
  StreamView stream_;
  Slices slices_;
  uint32_t before_;  ///< the slice that was taken last
  size_t first_ = 0;
  IndexBuffer indices_;
};

/// out = the values, looked at on the way.
Status copy_values(const ReduceOp& op, std::span<const float> values, Checked entries, std::span<float> out) {
  if (entries == Checked::kNo && copy_finite(values.data(), out)) return {};
  // Only a neutral element may be infinite, which few operations have.
  if (entries == Checked::kNo && !is_admissible(op, values)) return std::unexpected(diverged());
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
  return {};
}

Status fill(const ReduceOp& op, std::span<const Piece> pieces, std::span<float> out) {
  uint64_t base = 0;
  for (const Piece& piece : pieces) {
    const StreamView& view = piece.stream.view;
    const std::span<float> slice = out.subspan(base, view.dimension);
    base += view.dimension;
    if (view.dense) {
      if (Status status = copy_values(op, view.values, piece.entries, slice); !status) return status;
      continue;
    }
    // Before anything is written where an index says.
    if (Status status = check_piece(op, piece); !status) return status;
    std::ranges::fill(slice, op.neutral);
    for (size_t i = 0; i < view.values.size(); ++i) slice[view.indices[i]] = view.values[i];
  }
  return {};
}

/// Down by -base, modulo 2^32.
Status append_indices(const Piece& piece, uint32_t base, uint32_t* out) {
  const StreamView& view = piece.stream.view;
  const bool looked_at = piece.entries == Checked::kNo && view.indices.back() < view.dimension &&
                         moved_down_increasing(view.indices.data(), view.count(), 0 - base, out);
  if (looked_at) return {};
  if (piece.entries == Checked::kNo) {
    if (Status status = validate(view); !status) return status;
  }
  moved_down(view.indices.data(), view.count(), 0 - base, out);
  return {};
}

/// REQUIRES: capacity for it.
Status append(const ReduceOp& op, const Piece& piece, uint32_t base, Stream& out) {
  const StreamView& view = piece.stream.view;
  const size_t at = out.indices.size();
  if (!view.dense) {
    if (view.count() == 0) return {};
    out.values.resize(at + view.count());
    const std::span<float> values = std::span<float>(out.values).subspan(at);
    if (Status status = copy_values(op, view.values, piece.entries, values); !status) return status;
    out.indices.resize(at + view.count());
    return append_indices(piece, base, out.indices.data() + at);
  }
  if (Status status = check_piece(op, piece); !status) return status;
  for (size_t i = 0; i < view.values.size(); ++i) {
    if (view.values[i] == op.neutral) continue;
    out.indices.push_back(base + static_cast<uint32_t>(i));
    out.values.push_back(view.values[i]);
  }
  return {};
}

}  // namespace

std::vector<Stream> no_returns(const Slices& slices) {
  std::vector<Stream> returned;
  returned.reserve(slices.count());
  for (uint32_t at = 0; at < slices.count(); ++at) returned.push_back(Stream::empty(slices.dimension(at)));
  return returned;
}

std::vector<uint64_t> Slices::bounds() const {
  std::vector<uint64_t> bounds(count_ + 1);
  for (uint32_t at = 0; at <= count_; ++at) bounds[at] = begin(at);
  return bounds;
}

Task<Result<OwnSlice>> split_and_combine(Channel& channel, Contribution given, const AllreduceSettings& settings,
                                         uint32_t first_tag) {
  const uint32_t size = channel.size();
  const uint32_t rank = channel.rank();
  const Slices slices(settings.dimension, size);
  OwnSlice out;
  if (size == 1) {
    out.sum = std::move(given.own);
    co_return std::move(out);
  }
  if (settings.wire.contribution) out.returned = out.added = no_returns(slices);
  {
    Result<std::vector<Packet>> packets = slice_packets(given, slices, channel, settings, out);
    if (!packets) co_return std::unexpected(packets.error());
    for (uint32_t ahead = 1; ahead < size; ++ahead) {
      const uint32_t to = (rank + ahead) % size;
      if (slices.dimension(to) != 0) channel.send(to, first_tag, std::move((*packets)[to]));
    }
  }
  const uint64_t dimension = slices.dimension(rank);
  if (dimension == 0) co_return std::move(out);
  std::vector<SharedStream> parts(size);
  parts[rank] = slice_of(given.own, slices.begin(rank), slices.end(rank));
  given.own = {};
  given.rest = {};
  for (uint32_t behind = 1; behind < size; ++behind) {
    const uint32_t from = (rank + size - behind) % size;
    const Packet packet = co_await channel.receive(from, first_tag);
    Result<SharedStream> part = unpack(packet, dimension, settings.op);
    if (!part) co_return std::unexpected(part.error());
    parts[from] = std::move(*part);
  }
  std::vector<StreamView> views;
  uint64_t entries = 0;
  for (const SharedStream& part : parts) {
    views.push_back(part.view);
    entries += part.view.count();
  }
  channel.charge(reduce_time(entries));
  Result<Stream> sum = combine(settings.op, views);
  if (!sum) co_return std::unexpected(sum.error());
  out.sum = SharedStream::from(std::move(*sum));
  co_return std::move(out);
}

Task<Result<OwnSlice>> ring_reduce_scatter(Channel& channel, Contribution given, const AllreduceSettings& settings,
                                           uint32_t first_tag, JoinAs form) {
  const SharedStream own = std::move(given.own);
  const uint32_t size = channel.size();
  const uint32_t rank = channel.rank();
  const Slices slices(settings.dimension, size);
  OwnSlice out;
  if (size == 1) {
    const bool becomes_dense = form == JoinAs::kDense && !own.view.dense;
    out.sum = becomes_dense ? SharedStream::from(to_dense(settings.op, own.view)) : own;
    co_return std::move(out);
  }
  const uint32_t next = (rank + 1) % size;
  const uint32_t previous = (rank + size - 1) % size;
  if (slices.dimension(previous) != 0) {
    const std::optional<CodecSpec>& codec = settings.wire.contribution;
    if (codec) out.returned = out.added = no_returns(slices);
    const Contribution whole{own, std::move(given.rest)};
    Result<Packet> first =
        codec ? coded_slice(whole, slices, previous, *codec, random_key_of(settings.wire.random, channel), out)
              : plain_slice(own, slices, previous, settings.op, form);
    if (!first) co_return std::unexpected(first.error());
    channel.send(next, first_tag, std::move(*first));
  }
  SlicesDownward own_slices(own.view, slices, previous);
  for (uint32_t step = 0; step + 1 < size; ++step) {
    // The last one is the rank's own.
    const uint32_t at = (rank + 2 * size - 2 - step) % size;
    const uint64_t dimension = slices.dimension(at);
    if (dimension == 0) continue;
    channel.will_look_at(own_slices.next_index(), own_slices.next_value());
    const Packet packet = co_await channel.receive(previous, first_tag + step);
    const Result<SharedStream> partial = unpack_addend(packet, dimension, settings.op);
    if (!partial) co_return std::unexpected(partial.error());
    const std::array<StreamView, 2> both{partial->view, own_slices.take(at)};
    channel.charge(reduce_time(both[0].count() + both[1].count()));
    Result<Stream> sum = combine(settings.op, both);
    if (!sum) co_return std::unexpected(sum.error());
    out.sum = SharedStream::from(std::move(*sum));
    if (step + 2 == size) break;
    Result<Packed> packed = pack(out.sum, settings.wire.sums, {}, slices.begin(at), channel.bodies());
    if (!packed) co_return std::unexpected(packed.error());
    channel.send(next, first_tag + step + 1, std::move(packed->packet));
  }
  channel.will_look_at(nullptr, nullptr);
  if (slices.dimension(rank) == 0) out.sum = OwnSlice{}.sum;
  co_return std::move(out);
}

Task<Result<SharedStream>> gather_slices(Channel& channel, Packed own, Slices slices, const ReduceOp& op,
                                         GatherOptions options, ResultMemory& memory) {
  const uint32_t rank = channel.rank();
  const bool whole = channel.size() == 1 && (own.decoded.view.dense || options.as == JoinAs::kSmaller);
  if (whole) co_return std::move(own.decoded);
  Packet packet = slices.dimension(rank) == 0 ? Packet{} : std::move(own.packet);
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(packet), options.first_tag, options.way);
  if (!packets) co_return std::unexpected(packets.error());
  std::vector<Piece> pieces;
  uint64_t entries = 0;
  for (uint32_t at = 0; at < channel.size(); ++at) {
    if (slices.dimension(at) == 0) continue;
    if (at == rank) {
      pieces.push_back({std::move(own.decoded), Checked::kYes});
    } else {
      Result<Piece> piece = unpack_unchecked((*packets)[at], slices.dimension(at), op);
      if (!piece) co_return std::unexpected(piece.error());
      pieces.push_back(std::move(*piece));
    }
    entries += pieces.back().stream.view.count();
  }
  channel.charge(reduce_time(entries));
  const bool all_sparse = std::ranges::none_of(pieces, [](const Piece& piece) { return piece.stream.view.dense; });
  if (options.as == JoinAs::kDense && all_sparse) co_return memory.share_scattered(op, pieces, channel.size());
  Result<Stream> joined = join(op, pieces, options.as, memory.take());
  if (!joined) co_return std::unexpected(joined.error());
  co_return memory.hold(std::move(*joined), channel.size());
}

Task<Result<Reduced>> gather_sum(Channel& channel, OwnSlice mine, const AllreduceSettings& settings,
                                 GatherOptions options, ResultMemory& memory) {
  const Slices slices(settings.dimension, channel.size());
  Result<Packed> packed = pack(mine.sum, settings.wire.sums, {}, slices.begin(channel.rank()), channel.bodies());
  if (!packed) co_return std::unexpected(packed.error());
  mine.sum = {};
  Result<SharedStream> sum = co_await gather_slices(channel, std::move(*packed), slices, settings.op, options, memory);
  if (!sum) co_return std::unexpected(sum.error());
  co_return Reduced{std::move(*sum),
                    joined_returns(settings.dimension, mine.returned),
                    {},
                    joined_returns(settings.dimension, mine.added)};
}

Result<Stream> join(const ReduceOp& op, std::span<const Piece> pieces, JoinAs as, Stream out) {
  uint64_t dimension = 0, count = 0;
  bool all_dense = true;
  for (const Piece& piece : pieces) {
    dimension += piece.stream.view.dimension;
    all_dense &= piece.stream.view.dense;
  }
  for (const Piece& piece : pieces) {
    if (as == JoinAs::kDense || all_dense) break;
    const StreamView& view = piece.stream.view;
    count += view.dense ? static_cast<uint64_t>(
                              std::ranges::count_if(view.values, [&op](float value) { return value != op.neutral; }))
                        : view.count();
  }
  out.dimension = dimension;
  out.dense = as == JoinAs::kDense || all_dense || count >= dense_from_count(dimension);
  if (out.dense) {
    out.values.resize(dimension);
    if (Status status = fill(op, pieces, out.values); !status) return std::unexpected(status.error());
    return out;
  }
  // Room for the sums of later steps, which will not all have as many entries.
  const uint64_t room = count + count / 16;
  if (out.indices.capacity() < count) out.indices.reserve(room);
  if (out.values.capacity() < count) out.values.reserve(room);
  uint64_t base = 0;
  for (const Piece& piece : pieces) {
    if (Status status = append(op, piece, static_cast<uint32_t>(base), out); !status) {
      return std::unexpected(status.error());
    }
    base += piece.stream.view.dimension;
  }
  return out;
}

Stream joined_returns(uint64_t dimension, std::span<const Stream> returned) {
  Stream out = Stream::empty(dimension);
  uint64_t base = 0, count = 0;
  for (const Stream& slice : returned) count += slice.count();
  out.indices.reserve(count);
  out.values.reserve(count);
  for (const Stream& slice : returned) {
    const Piece piece{{slice.view(), nullptr, 0}, Checked::kYes};
    MILLRACE_CHECK(append(sum_op(), piece, static_cast<uint32_t>(base), out), slice.dimension);
    base += slice.dimension;
  }
  return out;
}

}  // namespace millrace::peer
