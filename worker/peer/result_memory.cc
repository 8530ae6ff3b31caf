#include "worker/peer/result_memory.h"

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

/// Takes an index's cache line for writing, some entries before it is its turn: so lines that are far apart are fetched side by
/// side.
template <typename T>
void fetch_ahead(std::span<const uint32_t> indices, size_t at, std::span<T> values) {
  constexpr size_t kAhead = 32;
  if (at + kAhead < indices.size()) __builtin_prefetch(values.data() + indices[at + kAhead], 1);
}

/// Makes `out` neutral at the indices `former`, then writes the pieces' entries at the indices `now`; both ascending. In blocks
/// that stay in a cache, so that what is in both lists is fetched once.
template <typename T>
void scatter(std::span<const Piece<T>> pieces, T neutral, std::span<const uint32_t> former,
             std::span<const uint32_t> now, std::span<T> out) {
  constexpr uint64_t kBlock = 1U << 14;
  size_t cleared = 0, written = 0;
  for (const Piece<T>& piece : pieces) {
    const std::span<const T> values = piece.stream.view.values;
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

template <typename T>
Stream<T> ResultMemory<T>::take() {
  written_.reset();
  if (!last_ || last_.use_count() != 1) return {};
  // Whoever let go of it may have read it on another thread.
  std::atomic_thread_fence(std::memory_order_acquire);
  Stream<T> stream = std::move(*last_);
  last_.reset();
  stream.indices.clear();
  stream.values.clear();
  return stream;
}

template <typename T>
Stream<T> ResultMemory<T>::take_dense(uint64_t dimension) {
  Stream<T> stream = take();
  stream.dimension = dimension;
  stream.dense = true;
  const bool is_new = stream.values.capacity() < dimension;
  stream.values.resize(dimension);
  if (is_new) ask_for_large_pages(std::as_writable_bytes(std::span(stream.values)));
  return stream;
}

template <typename T>
HeldStream<T> ResultMemory<T>::hold(Stream<T>&& result, uint32_t group_size) {
  auto kept = std::make_shared<Stream<T>>(std::move(result));
  if (group_size <= kKeptRanksMax) last_ = kept;
  return {kept->view(), kept, kept->memory_bytes()};
}

/// Whether the last result may be written over where it is not neutral.
template <typename T>
bool ResultMemory<T>::may_scatter_over(uint64_t dimension, T neutral) const {
  // From an entry in every second cache line on, filling all of it takes no longer.
  constexpr uint64_t kIndicesPerEntryMin = 8;
  return written_ && last_.use_count() == 1 && last_->dimension == dimension && neutral_ == neutral &&
         written_->size() < dimension / kIndicesPerEntryMin;
}

template <typename T>
Result<HeldStream<T>> ResultMemory<T>::hold_scattered(const ReduceOp<T>& op, std::span<const Piece<T>> pieces,
                                                      uint32_t group_size) {
  uint64_t dimension = 0, count = 0;
  for (const Piece<T>& piece : pieces) {
    // Before anything is written where an index says.
    if (Status status = check_piece(op, piece); !status) return std::unexpected(status.error());
    dimension += piece.stream.view.dimension;
    count += piece.stream.view.count();
  }
  IndexBuffer written(count);
  size_t at = 0;
  uint64_t base = 0;
  for (const Piece<T>& piece : pieces) {
    const StreamView<T>& view = piece.stream.view;
    moved_down(view.indices.data(), view.count(), 0 - static_cast<uint32_t>(base), written.data() + at);
    at += view.count();
    base += view.dimension;
  }
  IndexBuffer former;
  Stream<T> out;
  if (may_scatter_over(dimension, op.neutral)) {
    std::atomic_thread_fence(std::memory_order_acquire);  // as take()
    out = std::move(*last_);
    last_.reset();
    former = std::move(*written_);
  } else {
    out = take_dense(dimension);
    std::ranges::fill(out.values, op.neutral);
  }
  scatter<T>(pieces, op.neutral, former, written, out.values);
  HeldStream<T> held = hold(std::move(out), group_size);
  written_.reset();
  if (group_size <= kKeptRanksMax) written_ = std::move(written);
  neutral_ = op.neutral;
  return held;
}

template class ResultMemory<float>;
template class ResultMemory<double>;

}  // namespace millrace::peer
