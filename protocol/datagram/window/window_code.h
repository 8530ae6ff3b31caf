#pragma once

#include <cstdint>
#include <expected>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "protocol/datagram/header.h"

/// The payload of a datagram: entries of one window of a tensor's index space, as integers on the slot's grid. A value
/// is q * 2^exponent, exponent in the header. Every fragment decodes alone. The sender computes the receiver's decoded
/// values by the same integers, and takes its residual against them ("sent means decoded").
namespace millrace::protocol {

/// A window holds indices [window * indices, (window + 1) * indices) of its tensor.
inline constexpr uint32_t kWindowIndicesMax = 65'536;  ///< a multiple of 64

enum class WindowIndexCodec : uint8_t {
  kRaw = 1,     ///< u16 each
  kGap = 2,     ///< differences, Rice code of one parameter a fragment
  kBitmap = 3,  ///< of the fragment's range
  kBloom = 4,   ///< a Bloom filter, policy P0: all positives are sent with their values [DeepReduce21, 4]
  kDense = 5,   ///< a run of indices, no bytes but its first (flag DENSE); values mark holes
};

enum class WindowValueCodec : uint8_t {
  kFixed16 = 1,
  kFixed32 = 2,
  kQsgd8 = 3,  ///< levels of 8 bits and a unit in steps of the grid for every 64 values, decoded by integers alone
  kQsgd4 = 4,
  kNone = 5,  ///< indices alone; decodes to 0
};

enum class WindowFault : uint8_t {
  kUnknownCodec,      ///< or the flag DENSE contradicts it
  kTruncated,         ///< shorter than its header requires
  kTrailingBytes,     ///< longer, or bits set that fill up a byte
  kIndexOutOfWindow,  ///< an index at or behind window_indices
  kNotIncreasing,
  kTooManyEntries,    ///< over kFragmentEntriesMax - kWindowSlack
  kWrongCount,        ///< the index code has another number of entries than the header
  kValueOutOfBounds,  ///< a unit with which levels may leave i32
  kBadParameter,      ///< of an index code
};

/// Entries of a window: indices relative to its start, strictly increasing; values on the grid.
struct WindowEntries {
  std::span<const uint16_t> indices;
  std::span<const int32_t> values;
};

/// Room for the entries of any fragment, with a reserve: kWindowSlack entries behind the returned count may be
/// overwritten as well. The longest datagram holds 15,804 values of 4 bits in a DENSE run.
inline constexpr uint32_t kFragmentEntriesMax = 18'000;
inline constexpr uint32_t kWindowSlack = 64;

/// Room for the decoded entries of one fragment; kept by the caller, never grown.
struct WindowRoom {
  std::span<uint16_t> indices;  ///< [kFragmentEntriesMax]
  std::span<int32_t> values;    ///< [kFragmentEntriesMax]
};

/// Decodes and validates the whole payload before anything of it may be used.
///
/// window_indices  of the job.
/// Returns         how many entries are in `room`: header.entries, without the holes of a run and the false positives
///                 that a filter identifies. They are exactly the encoded entries, with every codec. header.entries 0:
///                 the payload must be empty, and codecs are not looked at.
/// Cost            one pass; no allocation; up to 100 KiB of stack. kBloom asks its filter for every index of the
///                 fragment's range: some 10 to 100 us.
/// Threads         reentrant.
std::expected<uint32_t, WindowFault> decode_window(const DatagramHeader& header, ByteSpan payload,
                                                   uint32_t window_indices, const WindowRoom& room);

/// How levels are rounded.
enum class WindowRounding : uint8_t {
  kNearest = 1,  ///< a contraction: for senders with a residual
  kRandom = 2,   ///< unbiased: for senders without
};

struct WindowCodecs {
  WindowIndexCodec index = WindowIndexCodec::kGap;
  WindowValueCodec value = WindowValueCodec::kFixed16;
  WindowRounding rounding = WindowRounding::kNearest;  ///< of QSGD; others do not round.
  /// kRandom: one key for each (sender, tensor, step, window). Each fragment of a window draws its own words of it.
  RandomKey random{};
};

/// Encodes one fragment's worth of entries from the front of `entries` into `payload`.
///
/// Sets header.entries, payload_bytes, index_codec, value_codec and the flag DENSE. Returns how many entries it took,
/// one at least where there is one: the caller continues with the remaining ones. It chooses the dense form by itself
/// where that carries more, or as much in fewer bytes.
///
/// decoded   [entries taken] the receiver's decoded value of each; may be entries.values. A value that does not fit is
///           clamped, and the residual takes the difference. Limits: fixed16 to +-(2^15 - 1), fixed32 to +-(2^31 - 1),
///           qsgd8 to +-127 (2^24 - 1), qsgd4 to +-7 (2^28 - 1).
/// payload   written up to header.payload_bytes, of its first kDatagramBytesMax bytes.
/// REQUIRES: payload.size() >= 64; decoded.size() >= the entries that may be taken; indices increasing, below
/// window_indices. Not kBloom with kNone (without values a false positive cannot be identified).
/// Threads   reentrant.
uint32_t encode_window(const WindowEntries& entries, const WindowCodecs& codecs, uint32_t window_indices,
                       DatagramHeader& header, std::span<uint8_t> payload, std::span<int32_t> decoded);

/// Returns how many entries to offer encode_window for each of a window's fragments, so that they have about as many
/// each. Datagrams of equal length leave together (UDP_SEGMENT); a full one and a window's short last one do not.
///
/// Returns all entries where they fit one fragment, and where every possible fragment is needed. Also for kDense and
/// kBloom, whose fragments differ anyway.
///
/// indices        of the whole window
/// payload_bytes  a fragment's room
/// REQUIRES       payload_bytes >= 64.
/// Cost           nothing where values alone show that all fit; else the search of one fragment's cut.
uint32_t even_share(std::span<const uint16_t> indices, const WindowCodecs& codecs, size_t payload_bytes);

}  // namespace millrace::protocol
