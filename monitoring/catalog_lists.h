#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "monitoring/catalog.h"

/// The elements of the catalog's lists: labels, their values that are known beforehand, and buckets.
namespace millrace::monitoring {

namespace values {
using std::string_view_literals::operator""sv;

inline constexpr std::array kDirections = {"in"sv, "out"sv};
inline constexpr std::array kPeers = {"worker"sv, "shard"sv};
inline constexpr std::array kHandshakes = {"accepted"sv, "refused"sv};
inline constexpr std::array kAnswers = {"update"sv, "counted"sv, "not_counted"sv, "acknowledged"sv, "crossed"sv};
inline constexpr std::array kFusedThresholdResults = {"as_it_was"sv, "trimmed"sv, "summed_again"sv};
inline constexpr std::array kPulls = {"answered"sv, "refused"sv};
inline constexpr std::array kSaves = {"written"sv, "failed"sv};
inline constexpr std::array kDigests = {"agree"sv, "differ"sv, "too_old"sv};
inline constexpr std::array kRemovals = {"silent"sv, "failed"sv, "wrong"sv, "behind"sv};
inline constexpr std::array kRecoveries = {"begun"sv, "activated"sv, "cut"sv};
inline constexpr std::array kWeights = {"own"sv, "snapshot"sv, "none"sv};
inline constexpr std::array kPaths = {"server"sv, "switch"sv};
inline constexpr std::array kEndings = {
    "finished"sv, "ended"sv,          "superseded"sv,   "too_few_workers"sv, "abandoned"sv,
    "removed"sv,  "limit_exceeded"sv, "malformed"sv,    "shutdown"sv,        "non_finite"sv,
    "io"sv,       "unsupported"sv,    "job_mismatch"sv, "internal"sv};
inline constexpr std::array kHttpRefusals = {"token"sv, "handshake"sv, "busy"sv, "surplus"sv};
// Files of certificates, by their flags.
inline constexpr std::array kPortCertificates = {"http-tls"sv};
inline constexpr std::array kShardCertificates = {"http-ca"sv, "table-ca"sv, "table-cert"sv};
inline constexpr std::array kWorkerDrops = {"stale"sv, "malformed"sv, "unexpected"sv};
}  // namespace values

// Labels of a metric. Those without values take names that their program keeps: events, reasons, error codes.
inline constexpr LabelInfo kJobLabel = {"job", {}};
inline constexpr LabelInfo kLaneLabel = {"lcore", {}};
inline constexpr LabelInfo kEventLabel = {"event", {}};
inline constexpr LabelInfo kReasonLabel = {"reason", {}};
inline constexpr LabelInfo kDirectionLabel = {"direction", values::kDirections};

inline constexpr std::array<LabelInfo, 1> kJob = {kJobLabel};
inline constexpr std::array<LabelInfo, 1> kReason = {kReasonLabel};
inline constexpr std::array<LabelInfo, 1> kHttpRefusal = {{{"reason", values::kHttpRefusals}}};
inline constexpr std::array<LabelInfo, 1> kPortCertificate = {{{"certificate", values::kPortCertificates}}};
inline constexpr std::array<LabelInfo, 1> kShardCertificate = {{{"certificate", values::kShardCertificates}}};
inline constexpr std::array<LabelInfo, 1> kWorkerDrop = {{{"reason", values::kWorkerDrops}}};
inline constexpr std::array<LabelInfo, 1> kEnding = {{{"reason", values::kEndings}}};
inline constexpr std::array<LabelInfo, 1> kCode = {{{"code", {}}}};
inline constexpr std::array<LabelInfo, 1> kMessage = {{{"message", {}}}};
inline constexpr std::array<LabelInfo, 1> kDirection = {kDirectionLabel};
inline constexpr std::array<LabelInfo, 2> kPeerOutcome = {{{"peer", values::kPeers}, {"outcome", values::kHandshakes}}};
inline constexpr std::array<LabelInfo, 2> kJobAnswer = {{kJobLabel, {"answer", values::kAnswers}}};
inline constexpr std::array<LabelInfo, 2> kJobFusedThreshold = {
    {kJobLabel, {"result", values::kFusedThresholdResults}}};
inline constexpr std::array<LabelInfo, 2> kJobPull = {{kJobLabel, {"result", values::kPulls}}};
inline constexpr std::array<LabelInfo, 2> kJobSave = {{kJobLabel, {"result", values::kSaves}}};
inline constexpr std::array<LabelInfo, 2> kJobDigest = {{kJobLabel, {"result", values::kDigests}}};
inline constexpr std::array<LabelInfo, 2> kJobRemoval = {{kJobLabel, {"reason", values::kRemovals}}};
inline constexpr std::array<LabelInfo, 2> kJobRecovery = {{kJobLabel, {"outcome", values::kRecoveries}}};
inline constexpr std::array<LabelInfo, 2> kJobWeights = {{kJobLabel, {"weights", values::kWeights}}};
inline constexpr std::array<LabelInfo, 2> kJobPath = {{kJobLabel, {"path", values::kPaths}}};
inline constexpr std::array<LabelInfo, 2> kJobTerm = {{kJobLabel, {"term", {}}}};
inline constexpr std::array<LabelInfo, 2> kJobEvent = {kJobLabel, kEventLabel};
inline constexpr std::array<LabelInfo, 2> kJobDirection = {kJobLabel, kDirectionLabel};
inline constexpr std::array<LabelInfo, 1> kLaneOnly = {kLaneLabel};
inline constexpr std::array<LabelInfo, 2> kLaneDirection = {kLaneLabel, kDirectionLabel};
inline constexpr std::array<LabelInfo, 2> kLaneReason = {kLaneLabel, kReasonLabel};
inline constexpr std::array<LabelInfo, 2> kLaneEvent = {kLaneLabel, kEventLabel};

// 50 us to 26 s: a round within a rack, and one that waits for a worker that is being restarted.
inline constexpr std::array<double, 20> kSeconds = {5e-5,   1e-4,   2e-4,   4e-4,   8e-4,    1.6e-3, 3.2e-3,
                                                    6.4e-3, 0.0128, 0.0256, 0.0512, 0.1024,  0.2048, 0.4096,
                                                    0.8192, 1.6384, 3.2768, 6.5536, 13.1072, 26.2144};

// 1: all contributions have the same entries; the number of workers: none has another's.
inline constexpr std::array<double, 12> kRatios = {1, 1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128};

/// Returns the place of a name in a list, when the program is compiled: a misspelled one does not build.
template <size_t kSize>
consteval size_t index_of(const std::array<MetricInfo, kSize>& infos, std::string_view name) {
  for (size_t i = 0; i < kSize; ++i) {
    if (infos[i].name == name) return i;
  }
  return infos.at(kSize).name.size();
}

}  // namespace millrace::monitoring
