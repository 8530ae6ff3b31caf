#include "worker/peer/transport/shared_bodies.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::peer {
namespace {

constexpr uint64_t kAlignment = 64;  // two bodies share no cache line

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::unexpected<Error> bad_reference(const BodyReference& reference) {
  return fail(ErrorCode::kMalformed,
              "a peer refers to a body of rank " + std::to_string(reference.owner) + " that is not there");
}

}  // namespace

/// Holds this process's holdings in all segments, by their position, so that it finds a body that it passes on.
class SharedBodies::Holdings {
 public:
  struct Where {
    uint32_t owner = 0;
    uint32_t slot = 0;
    uint64_t bytes = 0;
  };
  using Places = std::multimap<const uint8_t*, Where, std::less<>>;

  /// An owner of `bytes`, which holds the slot once already, and lets it go.
  static std::shared_ptr<const void> add(std::shared_ptr<Holdings> holdings, std::shared_ptr<SharedSegment> segment,
                                         ByteSpan bytes, Where where) {
    where.bytes = bytes.size();
    const std::lock_guard lock(holdings->mutex_);
    const Places::iterator at = holdings->places_.emplace(bytes.data(), where);
    return std::make_shared<const BodyClaim>(std::move(holdings), std::move(segment), at);
  }

  /// Where a body lies, if all of it is in something held; then it is held once more.
  std::optional<Where> claim_again(ByteSpan body, const std::vector<std::shared_ptr<SharedSegment>>& segments) {
    const std::lock_guard lock(mutex_);
    auto at = places_.upper_bound(body.data());
    // Parts of one body may be held apart, and overlap: a few before are looked at.
    for (int looked = 0; looked < kLooks && at != places_.begin(); ++looked) {
      --at;
      const Where& where = at->second;
      const auto before = static_cast<uint64_t>(body.data() - at->first);
      if (before + body.size() > where.bytes) continue;
      segments[where.owner]->holders(where.slot).fetch_add(1, std::memory_order_relaxed);
      return where;
    }
    return std::nullopt;
  }

 private:
  static constexpr int kLooks = 4;

  class BodyClaim {
   public:
    BodyClaim(std::shared_ptr<Holdings> holdings, std::shared_ptr<SharedSegment> segment, Places::iterator at)
        : holdings_(std::move(holdings)), segment_(std::move(segment)), at_(at) {}
    BodyClaim(const BodyClaim&) = delete;
    BodyClaim& operator=(const BodyClaim&) = delete;
    ~BodyClaim() {
      const std::lock_guard lock(holdings_->mutex_);
      const uint32_t slot = at_->second.slot;
      holdings_->places_.erase(at_);
      segment_->holders(slot).fetch_sub(1, std::memory_order_release);
    }

   private:
    std::shared_ptr<Holdings> holdings_;
    std::shared_ptr<SharedSegment> segment_;
    Places::iterator at_;
  };

  std::mutex mutex_;
  Places places_;
};

SharedBodies::SharedBodies(uint32_t rank, std::vector<std::shared_ptr<SharedSegment>> segments)
    : rank_(rank), segments_(std::move(segments)), holdings_(std::make_shared<Holdings>()) {
  MILLRACE_CHECK(rank < segments_.size() && segments_[rank] != nullptr, rank, segments_.size());
  populated_max_ = segments_[rank]->bodies().size();
  free_.emplace(0, populated_max_);
  for (uint32_t slot = SharedSegment::kSlots; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

SharedBodies::~SharedBodies() = default;

std::optional<WritableBody> SharedBodies::take(size_t bytes) {
  const std::optional<Block> block = allocate(bytes);
  if (!block) return std::nullopt;
  const std::shared_ptr<SharedSegment>& segment = segments_[rank_];
  const std::span<uint8_t> body = segment->writable_bodies().subspan(block->begin, bytes);
  return WritableBody{Holdings::add(holdings_, segment, body, {.owner = rank_, .slot = block->slot}), body};
}

std::optional<BodyReference> SharedBodies::hold(ByteSpan body) {
  // A receiver's body begins at a multiple of 8.
  if (std::bit_cast<uintptr_t>(body.data()) % sizeof(uint64_t) == 0) {
    if (const auto where = holdings_->claim_again(body, segments_)) {
      ++counters_.in_place;
      const auto offset = static_cast<uint64_t>(body.data() - segments_[where->owner]->bodies().data());
      return BodyReference{where->owner, where->slot, offset};
    }
  }
  const std::optional<Block> block = allocate(body.size());
  if (!block) return std::nullopt;
  ++counters_.copied;
  std::memcpy(segments_[rank_]->writable_bodies().data() + block->begin, body.data(), body.size());
  return BodyReference{rank_, block->slot, block->begin};
}

void SharedBodies::let_go(const BodyReference& reference) {
  segments_[reference.owner]->holders(reference.slot).fetch_sub(1, std::memory_order_release);
}

Result<SharedBytes> SharedBodies::body_of(const BodyReference& reference, uint64_t bytes) {
  if (!reaches(reference.owner) || reference.slot >= SharedSegment::kSlots) return bad_reference(reference);
  const std::shared_ptr<SharedSegment>& segment = segments_[reference.owner];
  const ByteSpan bodies = segment->bodies();
  const bool is_inside = reference.offset <= bodies.size() && bytes <= bodies.size() - reference.offset;
  if (!is_inside || reference.offset % sizeof(uint64_t) != 0) return bad_reference(reference);
  // A body without a holder may be replaced by another at any time.
  if (segment->holders(reference.slot).load(std::memory_order_acquire) == 0) return bad_reference(reference);
  const ByteSpan body = bodies.subspan(reference.offset, bytes);
  return SharedBytes{Holdings::add(holdings_, segment, body, {.owner = reference.owner, .slot = reference.slot}), body};
}

/// The lowest place with room, so that memory is used again while it is in a cache; held once.
std::optional<SharedBodies::Block> SharedBodies::allocate(size_t bytes) {
  const uint64_t length = aligned(std::max<size_t>(bytes, 1));
  reclaim();
  const auto at = std::ranges::find_if(free_, [length](const auto& extent) { return extent.second >= length; });
  if (at == free_.end() || free_slots_.empty() || !is_populated(at->first + length)) {
    ++counters_.full;
    return std::nullopt;
  }
  const Block block{free_slots_.back(), at->first, length};
  free_slots_.pop_back();
  const uint64_t left = at->second - length;
  free_.erase(at);
  if (left > 0) free_.emplace(block.begin + length, left);
  segments_[rank_]->holders(block.slot).store(1, std::memory_order_relaxed);
  blocks_.push_back(block);
  return block;
}

bool SharedBodies::is_populated(uint64_t end) {
  while (populated_ < end) {
    if (populated_ >= populated_max_) return false;
    if (!segments_[rank_]->populate(populated_)) {
      populated_max_ = populated_;
      return false;
    }
    populated_ += SharedSegment::kPieceBytes;
  }
  return true;
}

void SharedBodies::reclaim() {
  const SharedSegment& segment = *segments_[rank_];
  std::erase_if(blocks_, [&](const Block& block) {
    if (segment.holders(block.slot).load(std::memory_order_acquire) != 0) return false;
    free_slots_.push_back(block.slot);
    give_back(block.begin, block.bytes);
    return true;
  });
}

void SharedBodies::give_back(uint64_t begin, uint64_t bytes) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, begin, bytes);
}

}  // namespace millrace::peer
