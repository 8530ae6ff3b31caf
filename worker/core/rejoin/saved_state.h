#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/messages/messages.h"

namespace millrace::worker {

/// Holds a part's position in its log at the time of the save.
struct SavedPart {
  uint32_t part = 0;
  uint64_t n = 0;           ///< next step to apply
  uint64_t decided_in = 0;  ///< epoch in which step n - 1 was decided (the log position's second half); 0 with n = 0.
  /// Of the steps below n (protocol/messages/log_digest.h): a worker that continues from here sends it.
  uint64_t log_digest = 0;
  uint64_t branch = 0;  ///< log branch of the part's shard.
  /// As of n: a shard may have to begin with it, if the job continues from this state.
  protocol::Summary summary = {};
};

struct SavedTensor {
  std::string name;
  uint64_t steps_pushed = 0;
  Stream residual;                                ///< R + sum of O, as if everything in flight had returned
  std::optional<Stream> momentum = std::nullopt;  ///< the velocity, of jobs with momentum.
  /// [dimension], of every part after its n steps. Empty: they are the caller's to save.
  Buffer<float> weights;
};

/// Holds one worker's state in one consistent copy of all parts (R12).
struct SavedState {
  uint64_t job = 0;
  std::string job_name;
  uint64_t spec_hash = 0;
  uint64_t layout_hash = 0;
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t epoch = 0;
  uint64_t branch = 0;
  std::vector<SavedPart> parts;
  std::vector<SavedTensor> tensors;
};

/// Says whether a job of that specification can begin, or continue, with the state: the same worker and tensors of the
/// same names and dimensions. Number of workers, shards and codecs may differ. The state is then of another job, and
/// only its residual is taken over.
/// Errors  job_mismatch, naming the first difference.
Status fits(const SavedState& state, uint32_t worker, const protocol::JobSpec& spec);

/// Returns the file: "MLRSAVE" and a digit, its version; u64 body bytes, body, u64 XXH3 of all before it.
/// Little-endian; protocol/wire/files.md has the grammar.
ByteBuffer encode_saved_state(const SavedState& state);

/// Errors  malformed: not such a file, cut off, or altered (the checksum); unsupported: another version (1 had no
///         momentum, and nothing read it).
Result<SavedState> decode_saved_state(ByteSpan bytes);

}  // namespace millrace::worker
