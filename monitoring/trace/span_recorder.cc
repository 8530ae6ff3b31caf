#include "monitoring/trace/span_recorder.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace millrace::monitoring {
namespace {

constexpr std::array<std::string_view, kSpanNames> kNames = {"push",  "select", "encode", "send",
                                                             "admit", "decode", "reduce", "threshold",
                                                             "apply", "merge",  "store",  "exchange"};

uint64_t next_number() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

std::string_view span_name(SpanName name) { return kNames[static_cast<size_t>(name)]; }

std::string_view span_unit_name(SpanUnit unit) {
  constexpr std::array<std::string_view, 4> kUnits = {"part", "tensor", "bucket", "lane"};
  return kUnits[static_cast<size_t>(unit)];
}

/// The spans of one thread. `written` counts all of them, so that it names the next one.
struct SpanRecorder::Ring {
  std::thread::id thread;
  std::mutex mutex;
  std::vector<Span> spans;  ///< span number n is at (n - base) % kSpansPerThread
  uint64_t base = 0;        ///< first one of this recording
  uint64_t written = 0;

  uint64_t oldest() const { return written - spans.size(); }
  const Span& at(uint64_t number) const { return spans[(number - base) % kSpansPerThread]; }
  void put(const Span& span) {
    const size_t slot = (written - base) % kSpansPerThread;
    if (slot == spans.size()) {
      spans.push_back(span);
    } else {
      spans[slot] = span;
    }
    ++written;
  }
  void forget() {
    spans.clear();
    base = written;
  }
};

SpanRecorder::SpanRecorder() : number_(next_number()) {}
SpanRecorder::~SpanRecorder() = default;

void SpanRecorder::keep_on(TimeNs now, TimeNs until) {
  const std::lock_guard lock(mutex_);
  if (!on_.load() || now >= until_.load()) {
    for (const std::unique_ptr<Ring>& ring : rings_) {
      const std::lock_guard ring_lock(ring->mutex);
      ring->forget();
    }
    until_.store(until);
  } else {
    until_.store(std::max(until, until_.load()));
  }
  on_.store(until_.load() > now);
}

/// Under the lock: a reader may have prolonged the recording meanwhile.
void SpanRecorder::end_recording(TimeNs now) noexcept {
  const std::lock_guard lock(mutex_);
  if (now >= until_.load()) on_.store(false);
}

void SpanRecorder::record(const Span& span) noexcept {
  if (span.end >= until_.load(std::memory_order_relaxed)) return end_recording(span.end);
  Ring* const ring = ring_of_thread();
  if (ring == nullptr) {
    ++without_ring_;
    return;
  }
  const std::lock_guard lock(ring->mutex);
  try {
    ring->put(span);
  } catch (const std::bad_alloc&) {
    ++without_ring_;
  }
}

SpanRecorder::Ring* SpanRecorder::ring_of_thread() noexcept {
  struct Known {
    uint64_t recorder = 0;
    Ring* ring = nullptr;
  };
  thread_local Known known;
  if (known.recorder == number_) return known.ring;
  const std::lock_guard lock(mutex_);
  const std::thread::id own = std::this_thread::get_id();
  const auto found = std::ranges::find(rings_, own, [](const auto& ring) { return ring->thread; });
  if (found != rings_.end()) {
    known = {number_, found->get()};
    return known.ring;
  }
  if (rings_.size() == kThreadsMax) return nullptr;
  try {
    auto ring = std::make_unique<Ring>();
    ring->thread = own;
    rings_.push_back(std::move(ring));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  known = {number_, rings_.back().get()};
  return known.ring;
}

SpanRecorder::Page SpanRecorder::read(const std::optional<Cursor>& after, size_t spans_max) const {
  Page page;
  const std::lock_guard lock(mutex_);
  // Place 0 of the cursor counts the spans that no ring took.
  const uint64_t without_ring = without_ring_.load();
  if (after && !after->empty()) page.lost = without_ring - std::min(without_ring, after->front());
  page.next.push_back(without_ring);
  for (size_t thread = 0; thread < rings_.size(); ++thread) {
    const Ring& ring = *rings_[thread];
    const std::lock_guard ring_lock(rings_[thread]->mutex);
    uint64_t next = ring.oldest();
    if (after) {
      // A thread that the cursor does not know began after it.
      const uint64_t wanted = thread + 1 < after->size() ? std::min((*after)[thread + 1], ring.written) : 0;
      page.lost += next - std::min(wanted, next);
      next = std::max(next, wanted);
    }
    for (; next < ring.written && page.spans.size() < spans_max; ++next)
      page.spans.push_back({static_cast<uint32_t>(thread), ring.at(next)});
    page.next.push_back(next);
  }
  return page;
}

}  // namespace millrace::monitoring
