#pragma once

#include "kernels/stream/stream.h"

namespace millrace::peer {

/// Returns the positions in `one` of the indices that `other` has, too.
///
/// one, other   strictly increasing.
/// Returns      positions in `one`, strictly increasing.
/// Cost         a pass over both, without branches that depend on the indices: a processor cannot predict which indices
///              two selections share.
IndexBuffer positions_in_both(IndexSpan one, IndexSpan other);

}  // namespace millrace::peer
