#pragma once

// The sizes of the model, fixed when it is compiled: a state is one flat array of bytes, and its size is the model's
// speed. Each shape is a binary of its own (CMakeLists.txt).

namespace millrace::model {

inline constexpr int kWorkers = MILLRACE_MODEL_WORKERS;
inline constexpr int kSteps = MILLRACE_MODEL_STEPS;  ///< steps, or entries of the log when asynchronous
inline constexpr int kParts = MILLRACE_MODEL_PARTS;
inline constexpr int kLives = MILLRACE_MODEL_LIVES;  ///< lives of a worker, numbered from 1
inline constexpr int kShardLives = 3;                ///< lives of a part's shard, numbered from 1
inline constexpr int kEpochs = MILLRACE_MODEL_EPOCHS;
inline constexpr int kLineages = 14;

static_assert(kWorkers <= 3 && kSteps <= 4 && kParts <= 2 && kLives <= 3 && kEpochs <= 31);
static_assert(kWorkers * kLives * kSteps <= 27, "a gradient is one bit of Mass");

}  // namespace millrace::model
