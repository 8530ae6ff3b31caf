#pragma once

#include "kernels/stream/stream.h"

namespace millrace {

/// Takes the entries out whose value is 0, of either sign: in a sparse stream an absent entry says the same. A dense
/// stream stays as it is. NaN stays.
///
/// stream  well-formed; so it is afterwards.
/// Cost    one pass without branches, in place; no allocation.
/// Threads reentrant.
void drop_zeros(Stream& stream);

}  // namespace millrace
