#pragma once

#include "kernels/stream/stream.h"

namespace millrace::peer {

/// Where in `one` the indices are that `other` has, too.
///
/// one, other   strictly increasing.
/// Returns      positions in `one`, strictly increasing.
/// Cost         a pass over both, without branches that depend on the indices: of two selections nobody can foresee
///              which ones meet.
IndexBuffer positions_in_both(IndexSpan one, IndexSpan other);

}  // namespace millrace::peer
