#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "kernels/base/buffer.h"

namespace millrace {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian; this build assumes the machine is too");

/// Appends little-endian fields to a byte buffer.
class ByteWriter {
 public:
  explicit ByteWriter(ByteBuffer& out) : out_(out) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(T value) {
    const size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }
  void put_bytes(ByteSpan bytes) {
    const size_t at = out_.size();
    out_.resize(at + bytes.size());
    if (!bytes.empty()) std::memcpy(out_.data() + at, bytes.data(), bytes.size());
  }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void put_array(std::span<const T> values) {
    const size_t at = out_.size();
    out_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(out_.data() + at, values.data(), values.size_bytes());
  }
  size_t size() const { return out_.size(); }

 private:
  ByteBuffer& out_;
};

/// Reads little-endian fields off hostile bytes: every read is bounds-checked and empty once the bytes run out.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  std::optional<T> get() {
    if (rest_.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  std::optional<ByteSpan> get_bytes(uint64_t count) {
    if (rest_.size() < count) return std::nullopt;
    const ByteSpan bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  size_t remaining() const { return rest_.size(); }

 private:
  ByteSpan rest_;
};

}  // namespace millrace
