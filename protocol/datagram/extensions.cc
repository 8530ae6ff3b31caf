#include "protocol/datagram/extensions.h"

#include <cstring>

#include "kernels/base/check.h"

namespace millrace::protocol {
namespace {

/// Puts fields one behind the other into room that is known to be there.
class RoomWriter {
 public:
  explicit RoomWriter(std::span<uint8_t> room) : room_(room) {}

  template <typename... Fields>
  size_t put(const Fields&... fields) {
    (put_bytes(&fields, sizeof(fields)), ...);
    return used_;
  }
  size_t put_words(std::span<const uint64_t> words) {
    put_bytes(words.data(), words.size_bytes());
    return used_;
  }

 private:
  void put_bytes(const void* bytes, size_t count) {
    MILLRACE_CHECK(count <= room_.size() - used_, count, room_.size(), used_);
    std::memcpy(room_.data() + used_, bytes, count);
    used_ += count;
  }

  std::span<uint8_t> room_;
  size_t used_ = 0;
};

/// Takes fields off the front of bytes that are known to be enough.
template <typename... Fields>
ByteSpan take(ByteSpan bytes, Fields&... fields) {
  const auto one = [&](void* field, size_t count) {
    std::memcpy(field, bytes.data(), count);
    bytes = bytes.subspan(count);
  };
  (one(&fields, sizeof(fields)), ...);
  return bytes;
}

constexpr size_t kHelloFixedBytes = 32;
constexpr size_t kWelcomeFixedBytes = 8;

/// Returns the number of u64 after the fixed part; nothing where the length is impossible.
std::optional<uint32_t> slots_of(ByteSpan extension, size_t fixed_bytes) {
  if (extension.size() < fixed_bytes || extension.size() % 8 != 0) return std::nullopt;
  const size_t slots = (extension.size() - fixed_bytes) / 8;
  if (slots > kSlotsMax) return std::nullopt;
  return static_cast<uint32_t>(slots);
}

}  // namespace

std::optional<ChallengeRequest> read_challenge_request(ByteSpan extension) {
  ChallengeRequest request;
  Nonce padding{};
  if (extension.size() != 2 * sizeof(Nonce)) return std::nullopt;
  take(extension, request.worker_nonce, padding);
  if (padding != Nonce{}) return std::nullopt;
  return request;
}

std::optional<Challenge> read_challenge(ByteSpan extension) {
  Challenge challenge;
  if (extension.size() != 2 * sizeof(Nonce)) return std::nullopt;
  take(extension, challenge.worker_nonce, challenge.aggregator_nonce);
  return challenge;
}

std::optional<HelloTerms> read_hello(ByteSpan extension) {
  const auto slots = slots_of(extension, kHelloFixedBytes);
  if (!slots) return std::nullopt;
  HelloTerms hello;
  hello.slots = *slots;
  const ByteSpan rest = take(extension, hello.membership_hash, hello.live, hello.worker_nonce);
  if (!rest.empty()) std::memcpy(hello.positions.data(), rest.data(), rest.size());
  return hello;
}

std::optional<WelcomeTerms> read_welcome(ByteSpan extension) {
  const auto slots = slots_of(extension, kWelcomeFixedBytes);
  if (!slots) return std::nullopt;
  WelcomeTerms welcome;
  const ByteSpan rest = take(extension, welcome.slots, welcome.window_indices);
  if (welcome.slots != *slots) return std::nullopt;
  if (!rest.empty()) std::memcpy(welcome.turns.data(), rest.data(), rest.size());
  return welcome;
}

std::optional<ResultTerms> read_result_terms(ByteSpan extension) {
  ResultTerms terms;
  uint32_t reserved = 0;
  if (extension.size() < kResultTermsBytes || extension.size() % 8 != 0) return std::nullopt;
  take(extension, terms.contributors, terms.selected, terms.decided_epoch, reserved);
  if (reserved != 0 || (terms.selected & ~terms.contributors) != 0) return std::nullopt;
  if ((terms.selected == 0) != (extension.size() == kResultTermsBytes)) return std::nullopt;
  return terms;
}

std::optional<RetainedMarks> RetainedMarks::read(ByteSpan extension, uint32_t entries) {
  const std::optional<ResultTerms> terms = read_result_terms(extension);
  if (!terms) return std::nullopt;
  RetainedMarks marks;
  marks.records_ = extension.subspan(kResultTermsBytes);
  marks.entries_ = entries;
  if (marks.records_.size() % record_bytes(entries) != 0) return std::nullopt;
  uint64_t named = 0;
  for (size_t rack = 0; rack < marks.racks(); ++rack) {
    const uint64_t workers = marks.workers(rack);
    if (workers == 0 || (named & workers) != 0) return std::nullopt;
    named |= workers;
    if (entries % 64 != 0 && marks.word(rack, 1 + entries / 64) >> (entries % 64) != 0) return std::nullopt;
  }
  if (named != terms->selected) return std::nullopt;
  return marks;
}

uint64_t RetainedMarks::word(size_t rack, size_t at) const {
  uint64_t word = 0;
  std::memcpy(&word, records_.data() + rack * record_bytes(entries_) + at * sizeof(word), sizeof(word));
  return word;
}

std::optional<PartialTerms> read_partial_terms(ByteSpan extension) {
  PartialTerms terms;
  if (extension.size() != kPartialTermsBytes) return std::nullopt;
  take(extension, terms.have, terms.last, terms.hash);
  if ((terms.last & ~terms.have) != 0) return std::nullopt;
  return terms;
}

std::optional<Notice> read_notice(ByteSpan extension) {
  Notice notice;
  if (extension.size() != 32) return std::nullopt;
  take(extension, notice.code, notice.epoch, notice.incarnation, notice.worker_nonce);
  if (notice.code < NoticeCode::kUnknownIncarnation || notice.code > NoticeCode::kLost) return std::nullopt;
  return notice;
}

Nonce put_lost(const LostSequences& lost) {
  Nonce nonce;
  RoomWriter(nonce).put(lost.first, lost.others);
  return nonce;
}

LostSequences lost_of(const Notice& notice) {
  LostSequences lost;
  take(notice.worker_nonce, lost.first, lost.others);
  return lost;
}

size_t put_challenge_request(const ChallengeRequest& request, std::span<uint8_t> room) {
  return RoomWriter(room).put(request.worker_nonce, Nonce{});
}

size_t put_challenge(const Challenge& challenge, std::span<uint8_t> room) {
  return RoomWriter(room).put(challenge.worker_nonce, challenge.aggregator_nonce);
}

size_t put_hello(const HelloTerms& hello, std::span<uint8_t> room) {
  MILLRACE_CHECK(hello.slots <= kSlotsMax, hello.slots);
  RoomWriter writer(room);
  writer.put(hello.membership_hash, hello.live, hello.worker_nonce);
  return writer.put_words(std::span(hello.positions).first(hello.slots));
}

size_t put_welcome(const WelcomeTerms& welcome, std::span<uint8_t> room) {
  MILLRACE_CHECK(welcome.slots <= kSlotsMax, welcome.slots);
  RoomWriter writer(room);
  writer.put(welcome.slots, welcome.window_indices);
  return writer.put_words(std::span(welcome.turns).first(welcome.slots));
}

size_t put_result_terms(const ResultTerms& terms, std::span<uint8_t> room) {
  return RoomWriter(room).put(terms.contributors, terms.selected, terms.decided_epoch, uint32_t{0});
}

size_t put_partial_terms(const PartialTerms& terms, std::span<uint8_t> room) {
  return RoomWriter(room).put(terms.have, terms.last, terms.hash);
}

size_t put_notice(const Notice& notice, std::span<uint8_t> room) {
  return RoomWriter(room).put(notice.code, notice.epoch, notice.incarnation, notice.worker_nonce);
}

}  // namespace millrace::protocol
