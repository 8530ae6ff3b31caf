#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "worker/training/model/linear_model.h"

namespace millrace::training {

/// Encodes a model file, little-endian:
///
///   - bytes 0..7    "MRLINEAR"
///   - u32           version, 2; 1 is read, too: the form of its rows is 0
///   - u32           loss: 1 logistic, 2 hinge, 3 squared hinge
///   - u64           dimension d
///   - u32           form: 0 dense, 1 sparse (the smaller)
///   - u32           form of the rows that it was trained on: 0 not known. Else 1 (labels 0 and 1), 2 (-1 and +1) or
///                   3 (1 and 2), plus 256 where features count from 0
///   - u64           count of values (dense: d + 1)
///   - sparse only   count * u32, strictly increasing indices; d is the intercept's
///   - count * f32   weights, the scale multiplied in
///   - u64           XXH3 of all bytes before it
ByteBuffer encode_model(const LinearModel& model);

/// Errors  malformed: not a model, truncated, damaged (checksum), not finite. unsupported: a later version.
///         limit_exceeded: its weights take more memory than is free.
Result<LinearModel> decode_model(ByteSpan bytes);

/// Writes atomically. On any failure, a full disk among them, the old file stays, and the error's sentence names the
/// file that has the model instead.
/// Errors  io. non_finite: a weight is NaN or infinite.
Status write_model(const std::string& path, const LinearModel& model);

/// Errors  io: it cannot be read. Else as decode_model, with the path in front.
Result<LinearModel> read_model(const std::string& path);

}  // namespace millrace::training
