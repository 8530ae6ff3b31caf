#include "worker/python/src/elements.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/quantize/half_kernels.h"

namespace millrace::python {
namespace {

struct ElementInfo {
  std::string_view name;
  size_t bytes;
  bool real;
};
constexpr std::array<ElementInfo, 8> kElements = {{{"f32", 4, true},
                                                   {"f64", 8, true},
                                                   {"f16", 2, true},
                                                   {"bf16", 2, true},
                                                   {"u32", 4, false},
                                                   {"i32", 4, false},
                                                   {"u64", 8, false},
                                                   {"i64", 8, false}}};

const ElementInfo& info_of(ElementType type) { return kElements[static_cast<size_t>(type)]; }

template <typename T>
bool indices_of(const T* from, std::span<uint32_t> out) {
  uint64_t over = 0;
  for (size_t at = 0; at < out.size(); ++at) {
    const auto index = static_cast<uint64_t>(static_cast<int64_t>(from[at]));
    over |= index >> 32;
    out[at] = static_cast<uint32_t>(index);
  }
  return over == 0;
}

}  // namespace

size_t element_bytes(ElementType type) { return info_of(type).bytes; }
bool is_real(ElementType type) { return info_of(type).real; }
std::string_view element_name(ElementType type) { return info_of(type).name; }

void to_f32(const void* from, ElementType type, std::span<float> out) {
  const auto* halves = static_cast<const uint16_t*>(from);
  switch (type) {
    case ElementType::kF64: {
      const auto* doubles = static_cast<const double*>(from);
      for (size_t at = 0; at < out.size(); ++at) out[at] = static_cast<float>(doubles[at]);
      return;
    }
    case ElementType::kF16: f16_any_values(halves, out.size(), out.data()); return;
    case ElementType::kBf16: bf16_values(halves, out.size(), out.data()); return;
    default: MILLRACE_CHECK(false, static_cast<int>(type));
  }
}

void from_f32(std::span<const float> values, ElementType type, void* to) {
  switch (type) {
    case ElementType::kF64: std::ranges::copy(values, static_cast<double*>(to)); return;
    case ElementType::kF16: f16_nearest(values.data(), values.size(), static_cast<uint16_t*>(to)); return;
    case ElementType::kBf16: bf16_nearest(values.data(), values.size(), static_cast<uint16_t*>(to)); return;
    default: MILLRACE_CHECK(false, static_cast<int>(type));
  }
}

bool to_indices(const void* from, ElementType type, std::span<uint32_t> out) {
  switch (type) {
    case ElementType::kU32:
      std::ranges::copy_n(static_cast<const uint32_t*>(from), out.size(), out.data());
      return true;
    case ElementType::kI32: return indices_of(static_cast<const int32_t*>(from), out);
    case ElementType::kU64: return indices_of(static_cast<const uint64_t*>(from), out);
    case ElementType::kI64: return indices_of(static_cast<const int64_t*>(from), out);
    default: return false;
  }
}

CopyCounters& copy_counters() {
  static CopyCounters counters;
  return counters;
}

}  // namespace millrace::python
