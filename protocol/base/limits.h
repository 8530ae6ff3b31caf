#pragma once

#include <cstdint>

/// Every limit of the wire beside those of the job specification (job_spec.h) and the frame sizes (frame.h). A message
/// over a limit is refused with limit_exceeded before any memory is taken for it. protocol/wire/errors_and_limits.md
/// has the table.
namespace millrace::protocol {

inline constexpr uint32_t kShardsMax = 1'024;
inline constexpr uint32_t kJobSpecBytesMax = 3u << 20;  ///< leaves room in an envelope of 4 MiB
inline constexpr uint32_t kAddressBytesMax = 255;
inline constexpr uint32_t kSoftwareBytesMax = 255;
inline constexpr uint32_t kSentenceBytesMax = 1'024;  ///< longer sentences are cut by the sender
inline constexpr uint32_t kAuthBytesMax = 4'096;
inline constexpr uint32_t kAckEntriesMax = 65'536;     ///< a worker with more parts sends several acks
inline constexpr uint32_t kHeartbeatPartsMax = 1'024;  ///< the others come with a later heartbeat
inline constexpr uint32_t kMergedStepsMax = 4'096;     ///< in one update
inline constexpr uint32_t kSummaryEpochsMax = 65'536;
inline constexpr uint32_t kEarlierIncarnationsMax = 64;  ///< as many steps as a summary's mask has
inline constexpr uint32_t kActivationsMax = 65'536;
inline constexpr uint32_t kStatePartsMax =
    65'536;  ///< in State and SnapshotRequest: jobs with more cannot continue after a restart
inline constexpr uint32_t kSnapshotRunBytes = 4u << 20;  ///< of weights in one Snapshot
/// ... that a worker sends. A run crosses a slow link soon, and the others' messages behind it.
inline constexpr uint32_t kGivenRunBytes = 256u << 10;
inline constexpr uint32_t kPullValuesMax = 1u << 20;  ///< in one Pull: 4 MiB of weights, or of indices
inline constexpr double kContributionWeightMax =
    0x1p128;  ///< above every f32; as many as there are workers have a finite sum

}  // namespace millrace::protocol
