#pragma once

#include <cstdint>

#include "kernels/select/select.h"

namespace millrace {

/// Returns the selection that RedSync uses for a tensor of `dimension`, where `spec` is by_size; else `spec`.
///
/// up to 4,096 entries   none, without signs and warm-up: biases and batch norm layers, "we do not compress residuals".
/// up to 32,768          radix.
/// up to 2^22            trimmed.
/// above                 sampled; with alternating signs binary_search.
///
/// The last three take the amount, the signs and the warm-up from `spec`.
/// Source   [RedSync19, 2.1, 3.3]; DESIGN.md has the sentences.
SelectionSpec resolved_by_size(const SelectionSpec& spec, uint64_t dimension);

}  // namespace millrace
