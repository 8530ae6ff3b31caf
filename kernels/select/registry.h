#pragma once

#include <memory>

#include "kernels/select/select.h"

namespace millrace {

/// Describes a selection for the registry; the selection's file returns it. Adding a selection: its enum value, its
/// file with a function `SelectionEntry NAME_selection()`, and its line in registry.cc.
struct SelectionEntry {
  SelectionInfo info;
  /// Refuses parameters of this selection that cannot be.
  Status (*validate)(const SelectionSpec& spec);
  /// Makes the selector, without warm-up or alternating signs; null: resolved_by_size() names another selection.
  /// REQUIRES: a valid spec, a dimension in [1, kDimensionMax].
  std::unique_ptr<Selector> (*make)(const SelectionSpec& spec, uint64_t dimension);
};

/// Makes the entry's selector, with alternating signs where the specification has them, without warm-up.
std::unique_ptr<Selector> make_signed(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension);

/// Checks selections by density or k: one of them must be there, density in (0, 1].
Status validate_density_or_k(const SelectionSpec& spec);

}  // namespace millrace
