#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

/// Elements of arrays as Python has them, and their conversion to the f32 of the library.
namespace millrace::python {

enum class ElementType : uint8_t { kF32, kF64, kF16, kBf16, kU32, kI32, kU64, kI64 };

size_t element_bytes(ElementType type);
bool is_real(ElementType type);
/// Returns the word of messages: "f32".
std::string_view element_name(ElementType type);

/// Converts elements of a real type to f32, rounded to the nearest. An f64 beyond f32 becomes an infinity.
///
/// from   [out.size()] elements of `type`, which is not f32.
void to_f32(const void* from, ElementType type, std::span<float> out);
/// Converts f32 to a real type other than f32, rounded to the nearest.
///
/// to     [values.size()] elements of `type`.
void from_f32(std::span<const float> values, ElementType type, void* to);

/// Converts integers to indices.
///
/// from    [out.size()] elements of an integer type.
/// Returns false where one is negative or 2^32 or more; `out` has no meaning then.
[[nodiscard]] bool to_indices(const void* from, ElementType type, std::span<uint32_t> out);

/// Owns f32 values or indices that nothing has written yet.
template <typename T>
struct Uninitialized {
  explicit Uninitialized(size_t count) : values(std::make_unique_for_overwrite<T[]>(count)), size(count) {}
  std::span<T> span() { return {values.get(), size}; }

  std::unique_ptr<T[]> values;
  size_t size;
};

/// Counts the bytes that the binding wrote to memory of its own. A contiguous f32 gradient needs none, but over
/// peers where it is clipped or sent as it is.
struct CopyCounters {
  std::atomic<uint64_t> bytes_in = 0;   ///< copied or converted on the way to the library
  std::atomic<uint64_t> bytes_out = 0;  ///< on the way out, before the conversion to the caller's type
};
/// Returns the counters of this process.
CopyCounters& copy_counters();
/// Counts elements that were written to memory of the binding on their way in.
template <typename T>
void count_copied_in(std::span<T> copied) {
  copy_counters().bytes_in += copied.size_bytes();
}

}  // namespace millrace::python
