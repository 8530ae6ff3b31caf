#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/buffer.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/replay_window.h"

/// The extensions of datagrams, between header and payload (protocol/wire/datagrams.md). Every reader takes hostile
/// bytes, and returns nothing if their length is wrong. Every writer writes into `room` and returns the number of
/// written bytes, a multiple of 8, for header.extension_words.
///
/// REQUIRES of writers: room.size() >= kExtensionBytesMax, or the size of the extension.
/// Threads  reentrant.
namespace millrace::protocol {

inline constexpr size_t kExtensionBytesMax = 255 * 8;

/// CHALREQ: the worker's fresh nonce. It is as long as the answer, so that an answer to a forged sender amplifies
/// nothing.
struct ChallengeRequest {
  Nonce worker_nonce{};
  bool operator==(const ChallengeRequest&) const = default;
};

/// CHALLENGE: the nonce that it answers, and the aggregator's (challenge_nonce() in key.h). The header has the
/// incarnation.
struct Challenge {
  Nonce worker_nonce{};
  Nonce aggregator_nonce{};
  bool operator==(const Challenge&) const = default;
};

/// HELLO: the worker's job membership, and its turn in every slot. worker_nonce identifies the key that signs it.
struct HelloTerms {
  uint64_t membership_hash = 0;  ///< hash of (live, path, incarnations)
  uint64_t live = 0;             ///< the epoch's live workers, a bit each
  Nonce worker_nonce{};
  uint32_t slots = 0;  ///< <= kSlotsMax
  std::array<uint64_t, kSlotsMax> positions{};
  bool operator==(const HelloTerms&) const = default;
};

/// WELCOME: the closed turn of every slot from which workers continue.
struct WelcomeTerms {
  uint32_t slots = 0;           ///< <= kSlotsMax
  uint32_t window_indices = 0;  ///< as the aggregator knows the job; a worker with another value must stop
  std::array<uint64_t, kSlotsMax> turns{};
  bool operator==(const WelcomeTerms&) const = default;
};

/// RESULT and KEPT. RetainedMarks follow it where `selected` is not 0.
struct ResultTerms {
  uint64_t contributors = 0;
  uint64_t selected = 0;  ///< those of them whose rack cut its sum
  uint32_t decided_epoch = 0;
  bool operator==(const ResultTerms&) const = default;
};
inline constexpr size_t kResultTermsBytes = 24;

/// The entries of a RESULT fragment that the racks which cut their sums retained: for each rack its workers, and a bit
/// an entry.
class RetainedMarks {
 public:
  /// Reads the records behind the terms. Returns nothing if their length does not fit `entries`, or if they are not of
  /// exactly the terms' workers.
  /// entries  of the fragment, as decoded.
  static std::optional<RetainedMarks> read(ByteSpan extension, uint32_t entries);
  static constexpr size_t record_bytes(uint32_t entries) { return 8 + (size_t{entries} + 63) / 64 * 8; }

  size_t racks() const { return records_.size() / record_bytes(entries_); }
  uint64_t workers(size_t rack) const { return word(rack, 0); }
  bool is_retained(size_t rack, uint32_t entry) const { return (word(rack, 1 + entry / 64) >> (entry % 64) & 1) != 0; }

 private:
  uint64_t word(size_t rack, size_t at) const;

  ByteSpan records_;
  uint32_t entries_ = 0;
};

/// Size of a PARTIAL's extension; workers of a rack leave as much room.
inline constexpr size_t kPartialTermsBytes = 24;

/// PARTIAL: a unit or a rack's sum that a rack hands on.
struct PartialTerms {
  uint64_t have = 0;  ///< a unit: its worker, one bit; a group: the rack's live workers
  uint64_t last = 0;  ///< a unit: `have` with LAST, else 0; a group: those of them that have sent their units again
  uint64_t hash = 0;  ///< a unit: 0; a group: of that group and no other
  bool operator==(const PartialTerms&) const = default;
};

enum class NoticeCode : uint32_t {
  kUnknownIncarnation = 1,    ///< another incarnation than the aggregator's; a hint: the worker sends CHALREQ
  kOldEpoch = 2,              ///< the aggregator is in `epoch`: ask the table
  kSayHello = 3,              ///< the packet's epoch is newer, or slots are not open: only a HELLO moves that
  kNoSlots = 4,               ///< the job has no slots here: take the other path
  kPositionsTooFarApart = 5,  ///< workers' turns in a slot differ by more than 1: a bug, nothing is opened
  kOtherMembership = 6,       ///< the HELLO's hash or live differ from another worker's of the same epoch
  kLost = 7,                  ///< packets of the session have not come: the worker may send their entries again
};

struct Notice {
  NoticeCode code = NoticeCode::kUnknownIncarnation;
  uint32_t epoch = 0;
  uint64_t incarnation = 0;
  Nonce worker_nonce{};  ///< kNoSlots: of the CHALREQ that it answers; kLost: see put_lost(); else 0
  bool operator==(const Notice&) const = default;
};

/// Returns the field of a kLost notice, in which other notices have a nonce.
Nonce put_lost(const LostSequences& lost);
LostSequences lost_of(const Notice& notice);

std::optional<ChallengeRequest> read_challenge_request(ByteSpan extension);
std::optional<Challenge> read_challenge(ByteSpan extension);
std::optional<HelloTerms> read_hello(ByteSpan extension);
std::optional<WelcomeTerms> read_welcome(ByteSpan extension);
std::optional<ResultTerms> read_result_terms(ByteSpan extension);
std::optional<PartialTerms> read_partial_terms(ByteSpan extension);
std::optional<Notice> read_notice(ByteSpan extension);

size_t put_challenge_request(const ChallengeRequest& request, std::span<uint8_t> room);
size_t put_challenge(const Challenge& challenge, std::span<uint8_t> room);
size_t put_hello(const HelloTerms& hello, std::span<uint8_t> room);
size_t put_welcome(const WelcomeTerms& welcome, std::span<uint8_t> room);
size_t put_result_terms(const ResultTerms& terms, std::span<uint8_t> room);
size_t put_partial_terms(const PartialTerms& terms, std::span<uint8_t> room);
size_t put_notice(const Notice& notice, std::span<uint8_t> room);

}  // namespace millrace::protocol
