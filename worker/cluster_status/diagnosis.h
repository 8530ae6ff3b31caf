#pragma once

#include "worker/cluster_status/cluster_snapshot.h"

namespace millrace::cluster_status {

/// Fills in the job's state, since_s and verdict: why it does not start or does not move.
void diagnose(const ClusterSnapshot& picture, double still_after_s, JobPicture& job);

}  // namespace millrace::cluster_status
