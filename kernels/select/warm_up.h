#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/select/registry.h"

namespace millrace {

/// Returns the density of a step under the specification's warm-up. None where the step is past it, or where the
/// specification's density is as high.
///
/// dense         1 in every step of the warm-up.
/// exponential   1/4, 1/16, 1/64, ... in stages of warm_up_steps / stages steps, as long as that is above the density.
/// Source        [RedSync19, appendix C], which cites [DGC18, 3.3].
std::optional<double> warm_up_density(const SelectionSpec& spec, uint64_t dimension, uint64_t step);

/// Makes the selection with its warm-up (spec.warm_up is not none): it selects by warm_up_density() before it selects
/// by the specification. Of a selection that draws, draw() too.
///
/// Signs   a dense step sends both signs ([RedSync19, appendix C]: "original SGD optimizer"). The steps of an
///         exponential warm-up alternate them.
/// State   that of the selection, from the step on from which its density holds.
std::unique_ptr<Selector> warm_up(const SelectionEntry& entry, const SelectionSpec& spec, uint64_t dimension);

/// Refuses warm-ups that cannot be.
Status validate_warm_up(const SelectionInfo& info, const SelectionSpec& spec);

}  // namespace millrace
