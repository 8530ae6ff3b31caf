#include "monitoring/exit_code.h"

#include <array>
#include <utility>

namespace millrace::monitoring {
namespace {

using enum ExitCode;

struct ExitRow {
  ErrorCode code;
  std::array<ExitCode, kErrorPlaces> at;
};

/// One row for each ErrorCode. Columns as ErrorPlace: own, joining, running, ranks, shard, switch.
constexpr ExitRow kExitTable[] = {
    {ErrorCode::kInvalidArgument, {kUsage, kUsage, kUsage, kUsage, kUsage, kUsage}},
    {ErrorCode::kMalformed, {kBadData, kUnreachable, kJobEnded, kJobEnded, kBadData, kBadData}},
    {ErrorCode::kUnsupported, {kBadData, kRefused, kRefused, kJobEnded, kRefused, kRefused}},
    {ErrorCode::kLimitExceeded, {kBadData, kRefused, kRefused, kJobEnded, kIo, kUsage}},
    {ErrorCode::kNonFinite, {kBadData, kBadData, kBadData, kBadData, kInternal, kInternal}},
    {ErrorCode::kVersionMismatch, {kRefused, kRefused, kRefused, kRefused, kRefused, kRefused}},
    {ErrorCode::kJobMismatch, {kRefused, kRefused, kRefused, kRefused, kRefused, kRefused}},
    {ErrorCode::kIdentityInUse, {kRefused, kRefused, kRefused, kRefused, kRefused, kRefused}},
    {ErrorCode::kNotAMember, {kRefused, kRefused, kRefused, kRefused, kRefused, kRefused}},
    {ErrorCode::kStale, {kJobEnded, kJobEnded, kJobEnded, kJobEnded, kInternal, kInternal}},
    {ErrorCode::kConflict, {kJobEnded, kJobEnded, kJobEnded, kJobEnded, kRefused, kRefused}},
    {ErrorCode::kShardMapMismatch, {kRefused, kRefused, kRefused, kRefused, kRefused, kRefused}},
    {ErrorCode::kShardLost, {kJobEnded, kJobEnded, kJobEnded, kJobEnded, kInternal, kInternal}},
    {ErrorCode::kUnavailable, {kUnreachable, kUnreachable, kJobEnded, kJobEnded, kInternal, kIo}},
    {ErrorCode::kTimeout, {kUnreachable, kJobEnded, kJobEnded, kJobEnded, kIo, kIo}},
    {ErrorCode::kIo, {kIo, kIo, kIo, kIo, kIo, kIo}},
    {ErrorCode::kUnauthenticated, {kRefused, kRefused, kRefused, kRefused, kRefused, kRefused}},
    {ErrorCode::kInternal, {kInternal, kInternal, kInternal, kInternal, kInternal, kInternal}},
};

}  // namespace

ExitCode exit_code_of(ErrorCode code, ErrorPlace place) {
  for (const ExitRow& row : kExitTable) {
    if (row.code == code) return row.at[std::to_underlying(place)];
  }
  return kInternal;
}

}  // namespace millrace::monitoring
