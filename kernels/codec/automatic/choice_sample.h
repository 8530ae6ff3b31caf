#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/stream/stream.h"

namespace millrace {

/// Number of entries of a sample: enough that the time of coding them, scaled up, is within a few percent of the time
/// for all.
inline constexpr size_t kSampleEntries = 4'096;

/// Holds a stream's entries, or, of a longer one, eight runs of them at equal distances, put behind each other with
/// their gaps. Zeros of a dense stream are no entries.
struct StreamSample {
  uint64_t count = 0;      ///< of the stream, not of the sample; 1 where there is nothing
  uint64_t dimension = 0;  ///< of the sample
  IndexBuffer indices;     ///< strictly increasing
  Buffer<float> values;

  /// Returns the sample in dense form, or runs from all over it: at most 4 kSampleEntries values.
  Buffer<float> dense_values() const;
  /// Returns CodecChoice::gap_spread.
  double gap_spread() const;
};

/// REQUIRES: stream.count() > 0.
StreamSample sample_stream(const StreamView& stream);

}  // namespace millrace
