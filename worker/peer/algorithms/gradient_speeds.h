#pragma once

#include <functional>
#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "worker/peer/algorithms/planner.h"

/// Measures the time of selecting and coding on this machine, for gradients of a shape: the planner's speeds that
/// depend on it. (summing_speeds.h measures one at a time.)
namespace millrace::peer {

/// Measures the time of the selections that the planner knows, for each value of a dense gradient of the shape. Uses a
/// normal gradient (measure_selection()).
///
/// callers  selects shape.k entries before an exact sum; kNone: contributions come selected, and all speeds are 0.
/// Cost     tens of milliseconds, 8 MiB.
/// Errors   the selections'.
Result<SelectionSpeeds> measure_selections(SelectionId callers, const SumShape& shape,
                                           const std::function<TimeNs()>& clock);

struct CodingSpeeds {
  EntryCoding contribution;
  EntryCoding sums;
};

/// Measures how `codec` codes a rank's contribution, and its lossless form (lossless_of()) the sum of all ranks. Uses
/// drawn entries of uniform indices at their densities (measure_coding()).
///
/// codec   nothing: pairs, and nothing is measured.
/// Cost    some ms.
/// Errors  the codec's.
Result<CodingSpeeds> measure_codings(const std::optional<CodecSpec>& codec, const SumShape& shape,
                                     const std::function<TimeNs()>& clock);

}  // namespace millrace::peer
