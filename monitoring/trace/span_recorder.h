#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"

namespace millrace::monitoring {

/// The work of a step that a span covers. Workers: push, select, encode, send, decode, apply. Shards: admit, decode,
/// reduce, threshold, encode, send, merge, store. Switches: reduce. Ranks of peers: select, encode, exchange, apply.
enum class SpanName : uint8_t {
  kPush,
  kSelect,
  kEncode,
  kSend,
  kAdmit,
  kDecode,
  kReduce,
  kThreshold,
  kApply,
  kMerge,
  kStore,
  kExchange,
};
inline constexpr size_t kSpanNames = 12;
std::string_view span_name(SpanName name);

/// The kind of the number `unit` of a span.
enum class SpanUnit : uint8_t { kPart, kTensor, kBucket, kLane };
std::string_view span_unit_name(SpanUnit unit);

/// Holds one piece of work of one thread. Spans of a thread are nested or apart.
struct Span {
  TimeNs begin = 0;
  TimeNs end = 0;
  uint64_t step = 0;
  uint64_t job = 0;     ///< its number in the membership table; 0: the recorder's process has one job
  uint32_t unit = 0;    ///< the part, or as unit_kind says
  int32_t worker = -1;  ///< whose contribution; -1: no single worker's
  SpanName name = SpanName::kPush;
  SpanUnit unit_kind = SpanUnit::kPart;
};

/// Collects the spans of a process in a bounded ring for each thread, while a reader asks for them.
///
/// Memory   kSpansPerThread spans of 48 bytes for each thread that records, kept until the recorder ends.
/// Cost     off: one relaxed load for each span. On: a lock that only a reader contends for.
/// Threads  all members: any.
class SpanRecorder {
 public:
  static constexpr size_t kSpansPerThread = 16'384;
  static constexpr size_t kThreadsMax = 64;

  SpanRecorder();
  ~SpanRecorder();
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  /// Says whether spans are recorded now.
  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  /// Records spans from `now` to `until` at least. Recording that was over begins again without the earlier spans.
  void keep_on(TimeNs now, TimeNs until);
  /// Takes a span of the calling thread. Drops it where recording is over. A span that the ring has no room for takes
  /// the place of the oldest one, which counts as lost.
  void record(const Span& span) noexcept;

  /// Holds a reader's position: for each thread, the number of its next span.
  using Cursor = std::vector<uint64_t>;
  /// Holds a span, and the number of its thread.
  struct Taken {
    uint32_t thread = 0;
    Span span;
  };
  struct Page {
    std::vector<Taken> spans;  ///< by thread; of each in the order in which they ended
    uint64_t lost = 0;         ///< spans behind `after` that are gone
    Cursor next;
  };
  /// Returns at most `spans_max` spans behind the cursor. Without a cursor: all spans that are here, and none is lost.
  Page read(const std::optional<Cursor>& after, size_t spans_max) const;

 private:
  struct Ring;
  Ring* ring_of_thread() noexcept;
  void end_recording(TimeNs now) noexcept;

  const uint64_t number_;  ///< of this recorder in the process; never used again
  std::atomic<bool> on_ = false;
  std::atomic<TimeNs> until_ = 0;
  std::atomic<uint64_t> without_ring_ = 0;  ///< spans of threads beyond kThreadsMax, or without memory for a ring
  mutable std::mutex mutex_;                ///< guards the list below; before a ring's own
  std::vector<std::unique_ptr<Ring>> rings_;
};

/// Times one piece of work of the calling thread while its recorder is on; else does nothing.
class SpanTimer {
 public:
  explicit SpanTimer(SpanRecorder& recorder) : SpanTimer(&recorder) {}
  /// recorder  nullptr: the work is not timed.
  explicit SpanTimer(SpanRecorder* recorder)
      : recorder_(recorder != nullptr && recorder->on() ? recorder : nullptr),
        begin_(recorder_ != nullptr ? monotonic_now_ns() : 0) {}

  bool on() const { return recorder_ != nullptr; }
  /// Records the work from the constructor, or from the last call, until now. begin and end of `span` are set here.
  void end(Span span) {
    if (recorder_ == nullptr) return;
    span.begin = begin_;
    span.end = begin_ = monotonic_now_ns();
    recorder_->record(span);
  }

 private:
  SpanRecorder* recorder_;
  TimeNs begin_;
};

}  // namespace millrace::monitoring
