#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/base/bytes.h"
#include "protocol/base/text.h"

namespace millrace::protocol {

/// Reads the fields of a record of a table or a file; the record may be damaged or hostile. After the first field that
/// is missing or invalid, every field is zero or empty, and good() stays false. So a reader checks once, at the end of
/// a group of fields.
class FieldReader {
 public:
  explicit FieldReader(ByteSpan bytes) : reader_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T get() {
    const std::optional<T> value = good_ ? reader_.get<T>() : std::nullopt;
    good_ = value.has_value();
    return value.value_or(T{});
  }
  template <typename T>
    requires std::is_arithmetic_v<T>
  FieldReader& operator>>(T& value) {
    value = get<T>();
    return *this;
  }
  bool flag() {
    const auto value = get<uint8_t>();
    expect(value <= 1);
    return value == 1;
  }
  double finite() {
    const auto value = get<double>();
    expect(std::isfinite(value));
    return value;
  }
  /// Reads a u32 number of elements, at most `count_max`, each of at least the given size. No memory is taken for
  /// elements that cannot be there.
  uint32_t count(size_t element_bytes_min, uint32_t count_max) {
    const auto value = get<uint32_t>();
    expect(value <= count_max && holds(value, element_bytes_min));
    return good_ ? value : 0;
  }
  /// Reads a u16 length and plain text.
  std::string text(size_t bytes_max = UINT16_MAX) {
    std::optional<std::string> value = good_ ? get_text(reader_, bytes_max) : std::nullopt;
    good_ = value.has_value();
    return std::move(value).value_or(std::string());
  }
  ByteSpan bytes(uint64_t count) {
    const std::optional<ByteSpan> found = good_ ? reader_.get_bytes(count) : std::nullopt;
    good_ = found.has_value();
    return found.value_or(ByteSpan());
  }
  void expect(bool condition) { good_ = good_ && condition; }

  /// Returns whether `count` elements of at least that size can still be there.
  bool holds(uint64_t count, size_t element_bytes_min) const {
    return good_ && count <= reader_.remaining() / element_bytes_min;
  }
  size_t remaining() const { return reader_.remaining(); }
  bool good() const { return good_; }
  bool at_end() const { return good_ && reader_.remaining() == 0; }

 private:
  ByteReader reader_;
  bool good_ = true;
};

}  // namespace millrace::protocol
