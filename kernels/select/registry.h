#pragma once

#include <memory>

#include "kernels/select/select.h"

namespace millrace {

/// What a selection's file gives to the registry. Adding a selection: its enum value, its file with a function
/// `SelectionEntry NAME_selection()`, and its line in registry.cc.
struct SelectionEntry {
  SelectionInfo info;
  /// Refuses parameters of this selection that cannot be.
  Status (*validate)(const SelectionSpec& spec);
  /// The spec is valid and the dimension is in [1, kDimensionMax].
  std::unique_ptr<Selector<float>> (*make_f32)(const SelectionSpec& spec, uint64_t dimension);
  std::unique_ptr<Selector<double>> (*make_f64)(const SelectionSpec& spec, uint64_t dimension);
};

/// The entry's selector, without warm-up or alternating signs.
template <typename T>
std::unique_ptr<Selector<T>> make_plain(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension) {
  if constexpr (sizeof(T) == 4) {
    return entry.make_f32(spec, dimension);
  } else {
    return entry.make_f64(spec, dimension);
  }
}

/// For selections by density or k: one of them must be there, density in (0, 1].
Status validate_density_or_k(const SelectionSpec& spec);

}  // namespace millrace
