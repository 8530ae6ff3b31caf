#pragma once

#include "worker/cli/status/picture.h"

namespace millrace::cli {

/// Fills in the job's state, since_s and verdict: why it does not start or does not move.
void judge(const ClusterPicture& picture, double still_after_s, JobPicture& job);

}  // namespace millrace::cli
