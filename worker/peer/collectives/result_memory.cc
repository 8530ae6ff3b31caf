#include "worker/peer/collectives/result_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <utility>

#include "kernels/stream/stream_scan.h"

namespace millrace::peer {
namespace {

/// Before it is touched: entries that are far apart then find their pages in the processor's table of them.
void ask_for_large_pages(std::span<std::byte> memory) {
  constexpr uintptr_t kPage = 2 << 20;
  const auto begin = std::bit_cast<uintptr_t>(memory.data());
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = (begin + memory.size()) / kPage * kPage;
  if (first < last) (void)::madvise(memory.data() + (first - begin), last - first, MADV_HUGEPAGE);
}

/// Takes an index's cache line for writing, some entries before it is its turn: so lines that are far apart are fetched
/// side by side.
void fetch_ahead(std::span<const uint32_t> indices, size_t at, std::span<float> values) {
  constexpr size_t kAhead = 32;
  if (at + kAhead < indices.size()) __builtin_prefetch(values.data() + indices[at + kAhead], 1);
}

/// Makes `out` neutral at the indices `former`, then writes the pieces' entries at the indices `now`; both ascending.
/// In blocks that stay in a cache, so that an index in both lists is fetched once.
void scatter(std::span<const Piece> pieces, float neutral, std::span<const uint32_t> former,
             std::span<const uint32_t> now, std::span<float> out) {
  constexpr uint64_t kBlock = 1U << 14;
  size_t cleared = 0, written = 0;
  for (const Piece& piece : pieces) {
    const std::span<const float> values = piece.stream.view.values;
    const size_t first = written;
    while (written - first < values.size()) {
      const uint64_t end = now[written] / kBlock * kBlock + kBlock;
      for (; cleared < former.size() && former[cleared] < end; ++cleared) {
        fetch_ahead(former, cleared, out);
        out[former[cleared]] = neutral;
      }
      for (; written - first < values.size() && now[written] < end; ++written) {
        fetch_ahead(now, written, out);
        out[now[written]] = values[written - first];
      }
    }
  }
  for (; cleared < former.size(); ++cleared) out[former[cleared]] = neutral;
}

}  // namespace

Stream ResultMemory::take() {
  written_.reset();
  if (!last_ || last_.use_count() != 1) return {};
  // The thread that released it may have read it on another core.
  std::atomic_thread_fence(std::memory_order_acquire);
  Stream stream = std::move(*last_);
  last_.reset();
  stream.indices.clear();
  stream.values.clear();
  return stream;
}

Stream ResultMemory::take_dense(uint64_t dimension) {
  Stream stream = take();
  stream.dimension = dimension;
  stream.dense = true;
  const bool is_new = stream.values.capacity() < dimension;
  stream.values.resize(dimension);
  if (is_new) ask_for_large_pages(std::as_writable_bytes(std::span(stream.values)));
  return stream;
}

SharedStream ResultMemory::hold(Stream&& result, uint32_t group_size) {
  auto kept = std::make_shared<Stream>(std::move(result));
  if (group_size <= kKeptRanksMax) last_ = kept;
  return {kept->view(), kept, kept->memory_bytes()};
}

/// Whether the last result may be written over where it is not neutral.
bool ResultMemory::may_scatter_over(uint64_t dimension, float neutral) const {
  // From an entry in every second cache line on, filling all of it takes no longer.
  constexpr uint64_t kIndicesPerEntryMin = 8;
  return written_ && last_.use_count() == 1 && last_->dimension == dimension && neutral_ == neutral &&
         written_->size() < dimension / kIndicesPerEntryMin;
}

Result<SharedStream> ResultMemory::share_scattered(const ReduceOp& op, std::span<const Piece> pieces,
                                                   uint32_t group_size) {
  uint64_t dimension = 0, count = 0;
  for (const Piece& piece : pieces) {
    // Before anything is written where an index says.
    if (Status status = check_piece(op, piece); !status) return std::unexpected(status.error());
    dimension += piece.stream.view.dimension;
    count += piece.stream.view.count();
  }
  IndexBuffer written(count);
  size_t at = 0;
  uint64_t base = 0;
  for (const Piece& piece : pieces) {
    const StreamView& view = piece.stream.view;
    moved_down(view.indices.data(), view.count(), 0 - static_cast<uint32_t>(base), written.data() + at);
    at += view.count();
    base += view.dimension;
  }
  IndexBuffer former;
  Stream out;
  if (may_scatter_over(dimension, op.neutral)) {
    std::atomic_thread_fence(std::memory_order_acquire);  // as take()
    out = std::move(*last_);
    last_.reset();
    former = std::move(*written_);
  } else {
    out = take_dense(dimension);
    std::ranges::fill(out.values, op.neutral);
  }
  scatter(pieces, op.neutral, former, written, out.values);
  SharedStream held = hold(std::move(out), group_size);
  if (group_size <= kKeptRanksMax) {
    written_.emplace(std::move(written));
  } else {
    written_.reset();
  }
  neutral_ = op.neutral;
  return held;
}

}  // namespace millrace::peer
