#include "protocol/datagram/window/window_code.h"

#include <array>
#include <optional>

#include "kernels/base/check.h"
#include "protocol/datagram/window/window_index_codecs.h"
#include "protocol/datagram/window/window_value_codecs.h"

namespace millrace::protocol {
namespace {

constexpr size_t kPayloadBytesMin = 64;

IndexFault read_indices(WindowIndexCodec codec, ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out) {
  switch (codec) {
    case WindowIndexCodec::kRaw: return read_raw(bytes, window_indices, out);
    case WindowIndexCodec::kGap: return read_gap(bytes, window_indices, out);
    case WindowIndexCodec::kBitmap: return read_bitmap(bytes, window_indices, out);
    case WindowIndexCodec::kBloom: return read_bloom(bytes, window_indices, out);
    case WindowIndexCodec::kDense: return read_dense(bytes, window_indices, out);
  }
  return std::unexpected(WindowFault::kUnknownCodec);
}

/// The entries that a fragment takes under a codec.
struct Trim {
  uint32_t taken = 0;
  size_t bytes = 0;    // of the payload
  uint32_t shift = 0;  // kGap
};

/// Cuts for kRaw, kGap and kBitmap: the entries sent are those taken.
Trim trim_plain(const WindowEntries& entries, const WindowCodecs& codecs, size_t capacity) {
  const IndexSpan16 all = entries.indices;
  const auto trim = [&](uint32_t taken, size_t index_bytes) {
    return Trim{.taken = taken, .bytes = *window_value_bytes(codecs.value, taken) + index_bytes};
  };
  if (codecs.index == WindowIndexCodec::kGap) {
    const GapFit fit = fit_gap(all, codecs.value, capacity);
    Trim gap = trim(fit.taken, fit.bytes);
    gap.shift = fit.shift;
    return gap;
  }
  if (codecs.index == WindowIndexCodec::kRaw) {
    const uint32_t taken = fit_raw(all, codecs.value, capacity);
    return trim(taken, raw_bytes(all.first(taken)));
  }
  if (codecs.index != WindowIndexCodec::kBitmap) return {};
  const uint32_t taken = fit_bitmap(all, codecs.value, capacity);
  return trim(taken, bitmap_bytes(all.first(taken)));
}

Trim trim_dense(const WindowEntries& entries, const WindowCodecs& codecs, size_t capacity) {
  const uint32_t taken = fit_dense(entries.indices, codecs.value, capacity);
  return {.taken = taken,
          .bytes = *window_value_bytes(codecs.value, dense_run(entries.indices.first(taken))) + kDenseBytes};
}

void set_header(DatagramHeader& header, const WindowCodecs& codecs, WindowIndexCodec index, uint32_t sent,
                size_t bytes) {
  const bool dense = index == WindowIndexCodec::kDense;
  header.entries = static_cast<uint16_t>(sent);
  header.payload_bytes = static_cast<uint16_t>(bytes);
  header.index_codec = static_cast<uint8_t>(index);
  header.value_codec = static_cast<uint8_t>(codecs.value);
  header.flags = static_cast<uint8_t>((header.flags & ~datagram_flag::kDense) | (dense ? datagram_flag::kDense : 0));
}

/// The inputs and the destination of a payload.
struct Encoding {
  const WindowEntries& entries;
  const WindowCodecs& codecs;
  DatagramHeader& header;
  std::span<uint8_t> payload;
  std::span<int32_t> decoded;
};

uint32_t put_plain(const Encoding& to, const Trim& trim) {
  const auto indices = to.entries.indices.first(trim.taken);
  const size_t value_bytes = *window_value_bytes(to.codecs.value, trim.taken);
  const auto index_room = to.payload.subspan(value_bytes, trim.bytes - value_bytes);
  put_window_values(to.codecs, to.entries.values.first(trim.taken), indices[0], to.payload.first(value_bytes),
                    to.decoded);
  switch (to.codecs.index) {
    case WindowIndexCodec::kRaw: put_raw(indices, index_room); break;
    case WindowIndexCodec::kGap: put_gap(indices, trim.shift, index_room); break;
    default: put_bitmap(indices, index_room); break;
  }
  set_header(to.header, to.codecs, to.codecs.index, trim.taken, trim.bytes);
  return trim.taken;
}

/// Sends values at `sent` indices: those of the taken entries, and others, which are marked as holes. An index that
/// comes with a result counts as applied, even where its value is 0.
void put_spread(const Encoding& to, uint32_t taken, IndexSpan16 sent) {
  std::array<int32_t, kFragmentEntriesMax> spread;
  const auto values = std::span(spread).first(sent.size());
  for (size_t i = 0, j = 0; i < sent.size(); ++i) {
    const bool meant = j < taken && to.entries.indices[j] == sent[i];
    values[i] = meant ? to.entries.values[j] : 0;
    j += meant ? 1 : 0;
  }
  const auto bytes = to.payload.first(*window_value_bytes(to.codecs.value, sent.size()));
  put_window_values(to.codecs, values, sent[0], bytes, values);
  size_t meant = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (meant < taken && to.entries.indices[meant] == sent[i]) {
      to.decoded[meant++] = values[i];
    } else {
      put_hole(to.codecs.value, sent.size(), i, bytes);
    }
  }
}

uint32_t put_run(const Encoding& to, const Trim& trim) {
  const auto indices = to.entries.indices.first(trim.taken);
  std::array<uint16_t, kFragmentEntriesMax> sent;
  const uint32_t run = dense_run(indices);
  for (uint32_t i = 0; i < run; ++i) sent[i] = static_cast<uint16_t>(indices[0] + i);
  put_spread(to, trim.taken, IndexSpan16(sent).first(run));
  put_dense(indices, to.payload.subspan(trim.bytes - kDenseBytes, kDenseBytes));
  set_header(to.header, to.codecs, WindowIndexCodec::kDense, run, trim.bytes);
  return trim.taken;
}

/// Returns whether the run is the better of two: it carries more, or as much in fewer bytes.
bool is_better(const Trim& run, const Trim& other) {
  return run.taken > other.taken || (run.taken == other.taken && run.bytes < other.bytes);
}

/// The number of these entries that a fragment takes: by the codec, or as a run (the dense form).
struct Choice {
  Trim trim;
  bool is_run = false;
};

/// Chooses between the codec (kRaw, kGap, kBitmap) and a run.
Choice choose_trim(const WindowEntries& entries, const WindowCodecs& codecs, size_t capacity) {
  const Trim trim = trim_plain(entries, codecs, capacity);
  MILLRACE_CHECK(trim.taken > 0, static_cast<int>(codecs.index));
  // The length of a run is computed only where the run takes as many.
  if (!fits_dense(entries.indices.first(trim.taken), codecs.value, capacity)) return {trim};
  const Trim run = trim_dense(entries, codecs, capacity);
  if (is_better(run, trim)) return {run, true};
  return {trim};
}

uint32_t put_filter(const Encoding& to, const Trim& run) {
  std::array<uint16_t, kFragmentEntriesMax> known;
  std::array<uint8_t, kDatagramBytesMax> code;
  const BloomTrim trim = trim_bloom(to.entries.indices, to.codecs.value, to.payload.size(), known, code);
  const size_t value_bytes = *window_value_bytes(to.codecs.value, trim.positives);
  if (is_better(run, {.taken = trim.taken, .bytes = value_bytes + trim.bytes})) return put_run(to, run);
  put_spread(to, trim.taken, IndexSpan16(known).first(trim.positives));
  std::copy_n(code.begin(), trim.bytes, to.payload.begin() + static_cast<std::ptrdiff_t>(value_bytes));
  set_header(to.header, to.codecs, WindowIndexCodec::kBloom, trim.positives, value_bytes + trim.bytes);
  return trim.taken;
}

}  // namespace

std::expected<uint32_t, WindowFault> decode_window(const DatagramHeader& header, ByteSpan payload,
                                                   uint32_t window_indices, const WindowRoom& room) {
  MILLRACE_CHECK(window_indices <= kWindowIndicesMax, window_indices);
  MILLRACE_CHECK(room.indices.size() >= kFragmentEntriesMax && room.values.size() >= kFragmentEntriesMax,
                 room.indices.size(), room.values.size());
  if (header.entries == 0) {
    if (!payload.empty()) return std::unexpected(WindowFault::kTrailingBytes);
    return 0;
  }
  if (header.entries > kFragmentEntriesTaken) return std::unexpected(WindowFault::kTooManyEntries);
  const auto index_codec = static_cast<WindowIndexCodec>(header.index_codec);
  const auto value_codec = static_cast<WindowValueCodec>(header.value_codec);
  const bool dense = index_codec == WindowIndexCodec::kDense;
  const auto value_bytes = window_value_bytes(value_codec, header.entries);
  if (!value_bytes || dense != ((header.flags & datagram_flag::kDense) != 0)) {
    return std::unexpected(WindowFault::kUnknownCodec);
  }
  if (payload.size() < *value_bytes) return std::unexpected(WindowFault::kTruncated);
  const auto indices = room.indices.first(header.entries);
  if (auto read = read_indices(index_codec, payload.subspan(*value_bytes), window_indices, indices); !read) {
    return std::unexpected(read.error());
  }
  const auto values = room.values.first(header.entries);
  if (!read_window_values(value_codec, payload.first(*value_bytes), values)) {
    return std::unexpected(WindowFault::kValueOutOfBounds);
  }
  const bool has_holes = dense || index_codec == WindowIndexCodec::kBloom;
  if (!has_holes) [[likely]]
    return header.entries;
  return static_cast<uint32_t>(drop_holes(value_codec, payload.first(*value_bytes), indices, values));
}

uint32_t encode_window(const WindowEntries& entries, const WindowCodecs& codecs, uint32_t window_indices,
                       DatagramHeader& header, std::span<uint8_t> payload, std::span<int32_t> decoded) {
  MILLRACE_CHECK(payload.size() >= kPayloadBytesMin, payload.size());
  MILLRACE_CHECK(entries.indices.size() == entries.values.size(), entries.indices.size(), entries.values.size());
  if (entries.indices.empty()) {
    set_header(header, codecs, codecs.index, 0, 0);
    header.flags = static_cast<uint8_t>(header.flags & ~datagram_flag::kDense);
    return 0;
  }
  MILLRACE_CHECK(codecs.index != WindowIndexCodec::kBloom || codecs.value != WindowValueCodec::kNone);
  MILLRACE_CHECK(entries.indices.back() < window_indices, entries.indices.back(), window_indices);
  const size_t capacity = std::min(payload.size(), kDatagramBytesMax);
  const Encoding to{entries, codecs, header, payload.first(capacity), decoded};
  if (codecs.index == WindowIndexCodec::kDense) return put_run(to, trim_dense(entries, codecs, capacity));
  if (codecs.index == WindowIndexCodec::kBloom) return put_filter(to, trim_dense(entries, codecs, capacity));
  const Choice choice = choose_trim(entries, codecs, capacity);
  return choice.is_run ? put_run(to, choice.trim) : put_plain(to, choice.trim);
}

uint32_t even_share(IndexSpan16 indices, const WindowCodecs& codecs, size_t payload_bytes) {
  const auto all = static_cast<uint32_t>(indices.size());
  if (codecs.index == WindowIndexCodec::kDense || codecs.index == WindowIndexCodec::kBloom) return all;
  const size_t capacity = std::min(payload_bytes, kDatagramBytesMax);
  // Mostly all fit, and that is not to cost a search: an index rarely takes more than two bytes.
  const auto value_bytes = window_value_bytes(codecs.value, all);
  if (value_bytes && *value_bytes + sizeof(uint16_t) * all <= capacity) return all;
  const uint32_t first = choose_trim({indices, {}}, codecs, capacity).trim.taken;
  const uint32_t fragments = (all + first - 1) / first;
  return fragments >= kFragmentsMax ? all : (all + fragments - 1) / fragments;
}

}  // namespace millrace::protocol
