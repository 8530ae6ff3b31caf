#pragma once

#include <cstdint>
#include <expected>
#include <span>

#include "kernels/base/buffer.h"
#include "protocol/datagram/header.h"

/// The payload of a datagram: some entries of one window of a tensor's index space, as integers on the slot's grid: a value
/// is q * 2^exponent, exponent in the header. Every fragment decodes alone. What the receiver decodes is computed by the same
/// integers at the sender, whose residual is taken against it ("sent means decoded").
namespace millrace::protocol {

/// A window holds indices [window * indices, (window + 1) * indices) of its tensor.
inline constexpr uint32_t kWindowIndicesMax = 65'536;  ///< a multiple of 64

enum class WindowIndexCodec : uint8_t {
  kRaw = 1,    ///< u16 each
  kGap = 2,    ///< differences, bit-packed
  kBitmap = 3, ///< of the fragment's range
  kBloom = 4,  ///< a Bloom filter, policy P0: all positives are sent with their values (deepreduce.txt, section 5.1)
  kDense = 5,  ///< a run of indices, no bytes but its first (flag DENSE)
};

enum class WindowValueCodec : uint8_t {
  kFixed16 = 1,
  kFixed32 = 2,
  kQsgd8 = 3,  ///< levels of 8 bits and a scale in units of the grid, decoded by integers alone
  kQsgd4 = 4,
};

enum class WindowFault : uint8_t { kUnknownCodec, kTruncated, kTrailingBytes, kIndexOutOfWindow, kNotIncreasing, kTooManyEntries };

/// Entries of a window: indices relative to its start, strictly increasing; values on the grid.
struct WindowEntries {
  std::span<const uint16_t> indices;
  std::span<const int32_t> values;
};

/// Room for what one fragment decodes to; kept by the caller, never grown.
struct WindowRoom {
  std::span<uint16_t> indices;  ///< [kFragmentEntriesMax]
  std::span<int32_t> values;
};
/// The most entries that one fragment of a 9000-byte path holds (a bit each in a bitmap is less than 4 bits a value).
inline constexpr uint32_t kFragmentEntriesMax = 18'000;

/// Decodes and validates the whole payload before anything of it may be used.
///
/// window_indices  of the job.
/// Returns         how many entries are in `room`.
/// Cost            one pass; no allocation.
/// Threads         reentrant.
std::expected<uint32_t, WindowFault> decode_window(const DatagramHeader& header, ByteSpan payload, uint32_t window_indices,
                                                   const WindowRoom& room);

struct WindowCodecs {
  WindowIndexCodec index = WindowIndexCodec::kGap;
  WindowValueCodec value = WindowValueCodec::kFixed16;
};

/// One fragment's worth of entries off the front of `entries` into `payload`; sets header.entries, payload_bytes, index_codec,
/// value_codec and the flag DENSE. Returns how many entries it took: the caller goes on with the rest.
/// The dense form is taken by itself where it is smaller.
///
/// decoded   [entries taken] what the receiver will decode of each (kBloom: and of entries that nobody meant, see .cc).
/// REQUIRES: payload.size() >= 64.
uint32_t encode_window(const WindowEntries& entries, const WindowCodecs& codecs, uint32_t window_indices, DatagramHeader& header,
                       std::span<uint8_t> payload, std::span<int32_t> decoded);

}  // namespace millrace::protocol
