#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "protocol/datagram/window/window_code.h"

/// Common parts of the tests of the window code.
namespace millrace::protocol {

inline constexpr std::array kIndexCodecs = {WindowIndexCodec::kRaw, WindowIndexCodec::kGap, WindowIndexCodec::kBitmap,
                                            WindowIndexCodec::kBloom, WindowIndexCodec::kDense};
inline constexpr std::array kValueCodecs = {WindowValueCodec::kFixed16, WindowValueCodec::kFixed32,
                                            WindowValueCodec::kQsgd8, WindowValueCodec::kQsgd4,
                                            WindowValueCodec::kNone};

/// The one pair that encode_window() does not take.
inline bool is_refused(const WindowCodecs& codecs) {
  return codecs.index == WindowIndexCodec::kBloom && codecs.value == WindowValueCodec::kNone;
}

struct Entries {
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;

  WindowEntries view(size_t from = 0) const {
    return {std::span(indices).subspan(from), std::span(values).subspan(from)};
  }
  bool operator==(const Entries&) const = default;
};

/// `count` different indices below `window`, with values below `magnitude`, now and then the ends of i32.
inline Entries some_entries(size_t count, uint32_t window, uint32_t magnitude, RandomSequence& random) {
  Entries entries;
  std::vector<uint16_t> all(window);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + random.next_below(window - i)]);
  entries.indices.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(entries.indices.begin(), entries.indices.end());
  for (size_t i = 0; i < count; ++i) {
    const auto size = static_cast<int32_t>(random.next_below(magnitude));
    entries.values.push_back(random.next_below(2) == 0 ? size : -size);
    if (random.next_below(200) == 0) entries.values.back() = random.next_below(2) == 0 ? INT32_MIN : INT32_MAX;
  }
  return entries;
}

/// A payload and the header that goes with it.
struct Fragment {
  DatagramHeader header;
  ByteBuffer payload;
  std::vector<int32_t> decoded;  ///< of the entries taken
};

inline Fragment encode(const WindowEntries& entries, const WindowCodecs& codecs, uint32_t window, size_t capacity) {
  Fragment fragment;
  fragment.payload.resize(capacity);
  fragment.decoded.resize(entries.indices.size());
  const uint32_t taken = encode_window(entries, codecs, window, fragment.header, fragment.payload, fragment.decoded);
  fragment.decoded.resize(taken);
  fragment.payload.resize(fragment.header.payload_bytes);
  fragment.payload.shrink_to_fit();
  return fragment;
}

/// Decodes into memory that is filled with a marker, and returns the result.
class Decoder {
 public:
  std::expected<Entries, WindowFault> decode(const DatagramHeader& header, ByteSpan payload, uint32_t window) {
    const ByteBuffer exact(payload.begin(), payload.end());  // the sanitizer sees a read behind the end
    const auto count = decode_window(header, exact, window, {indices_, values_});
    if (!count) return std::unexpected(count.error());
    Entries entries;
    entries.indices.assign(indices_.begin(), indices_.begin() + *count);
    entries.values.assign(values_.begin(), values_.begin() + *count);
    return entries;
  }

 private:
  std::vector<uint16_t> indices_ = std::vector<uint16_t>(kFragmentEntriesMax);
  std::vector<int32_t> values_ = std::vector<int32_t>(kFragmentEntriesMax);
};

inline std::string text(const WindowCodecs& codecs) {
  return "index codec " + std::to_string(static_cast<int>(codecs.index)) + ", value codec " +
         std::to_string(static_cast<int>(codecs.value));
}

}  // namespace millrace::protocol
