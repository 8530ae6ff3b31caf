#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"

namespace millrace::peer {

/// Holds the times of adding on this machine, for the planner (MachineSpeeds).
struct KernelSpeeds {
  double add_entry_s = 0;  ///< for each entry of the sparse streams that are summed
  double add_value_s = 0;  ///< for each value of the dense ones
};

/// Returns the speeds of summing two sparse streams whose indices alternate, and two dense ones. Repeats each and takes
/// the fastest: a rank that was interrupted once does not look slow.
///
/// clock  called before and after each sum. A clock that stops (simulated time) leaves 0, and costs one sum.
/// Cost   3 ms, about; memory of 6 MiB.
KernelSpeeds measure_kernel_speeds(const std::function<TimeNs()>& clock);

/// Says how entries of a sparse stream travel: as pairs, which take no time to code, or by a codec.
struct EntryCoding {
  double bytes = sizeof(float) + sizeof(uint32_t);  ///< an entry
  double encode_s = 0;                              ///< an entry
  double decode_s = 0;
};

/// Encodes and decodes the first entries of a stream, 2^16 at most, some times, and takes the fastest of each.
///
/// codec   nothing: pairs.
/// stream  well-formed, sparse; without entries the result is that of pairs.
/// clock   called before and after. A clock that stops leaves 0, and the bytes are measured.
/// Errors  the codec's.
Result<EntryCoding> measure_coding(const std::optional<CodecSpec>& codec, const StreamView& stream,
                                   const std::function<TimeNs()>& clock);

/// Holds the time of a selection, for each value of a dense gradient.
struct SelectionSpeed {
  double first_s = 0;  ///< of a step that finds its threshold
  double reuse_s = 0;  ///< of one that has a threshold; equal to first_s where a selection finds it in every step

  /// Returns the mean of a step, over a period.
  double mean_s(uint32_t period) const { return (first_s + (period - 1.0) * reuse_s) / period; }
};

/// Selects from a normal gradient of `dimension` values, and takes the fastest of some first and of some other steps.
/// At most 2^21 values are used, with the same share selected.
///
/// Errors  the selection's: parameters that cannot be.
/// Cost    tens of milliseconds, 8 MiB.
Result<SelectionSpeed> measure_selection(SelectionSpec spec, uint64_t dimension, const std::function<TimeNs()>& clock);

}  // namespace millrace::peer
