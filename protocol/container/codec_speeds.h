#pragma once

#include <thread>

#include "kernels/codec/automatic/codec_choice.h"

namespace millrace {

/// One run of a stream through a container, as a worker codes it and a shard reads it.
struct CodingTimes {
  double encode_ns = 0;
  double decode_ns = 0;
  uint64_t bytes = 0;
};

/// Measures the coding of one stream by one candidate.
///
/// stream     sparse, well-formed, finite.
/// candidate  how it is coded; a value codec has the parameters of `spec`.
/// Errors     the codecs'.
Result<CodingTimes> time_coding(const StreamView& stream, const CodecCandidate& candidate, const CodecSpec& spec);

/// Writes over the nearest cache, on this thread. A measurement then finds the cache as a step does: a step codes a
/// stream once and does much other work before the next one.
void disturb_caches();

/// Measures the times of coding on this machine. Whole containers of uniform indices and normal values are encoded and
/// decoded on one thread; the best time of a few counts. For the shells: state machines get the results.
///
/// Cost     about a tenth of a second, 15 MiB for as long.
CodecSpeeds measure_speeds();

/// Returns the result of measure_speeds(), which runs once in the process, at the first call.
///
/// Threads  any; the first call blocks the others, for a second and more on a busy machine. Not for a thread from which
///          others expect messages.
const CodecSpeeds& measured_speeds();

/// Returns the result of measured_speeds(), or fallback_speeds() until there is one. Never blocks. A SpeedSource, for
/// loops.
const CodecSpeeds& speeds_so_far();

/// Starts a thread that calls measured_speeds() as soon as speeds_so_far() had only the fallback to give. For a process
/// that learns late whether it needs speeds.
///
/// Threads  constructor and destructor: one. The destructor waits for a measurement that is under way.
class SpeedMeasurer {
 public:
  SpeedMeasurer();
  SpeedMeasurer(const SpeedMeasurer&) = delete;
  SpeedMeasurer& operator=(const SpeedMeasurer&) = delete;
  ~SpeedMeasurer();

 private:
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace millrace
