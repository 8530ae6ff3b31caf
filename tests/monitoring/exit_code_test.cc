#include "monitoring/exit_code.h"

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

namespace millrace::monitoring {
namespace {

/// The exit codes that the documents promise, as numbers: own, joining, running, ranks, shard, switch.
struct Expected {
  ErrorCode code;
  std::array<int, kErrorPlaces> exits;
};

constexpr Expected kExpected[] = {
    {ErrorCode::kInvalidArgument, {2, 2, 2, 2, 2, 2}},
    {ErrorCode::kMalformed, {3, 4, 8, 8, 3, 3}},  // a damaged file is bad data; a server's bytes are not
    {ErrorCode::kUnsupported, {3, 5, 5, 8, 5, 5}},
    {ErrorCode::kLimitExceeded, {3, 5, 5, 8, 6, 2}},  // of a shard: too few files may be open
    {ErrorCode::kNonFinite, {3, 3, 3, 3, 1, 1}},
    {ErrorCode::kVersionMismatch, {5, 5, 5, 5, 5, 5}},
    {ErrorCode::kJobMismatch, {5, 5, 5, 5, 5, 5}},
    {ErrorCode::kIdentityInUse, {5, 5, 5, 5, 5, 5}},
    {ErrorCode::kNotAMember, {5, 5, 5, 5, 5, 5}},
    {ErrorCode::kStale, {8, 8, 8, 8, 1, 1}},
    {ErrorCode::kConflict, {8, 8, 8, 8, 5, 5}},
    {ErrorCode::kShardMapMismatch, {5, 5, 5, 5, 5, 5}},
    {ErrorCode::kShardLost, {8, 8, 8, 8, 1, 1}},
    {ErrorCode::kUnavailable, {4, 4, 8, 8, 1, 6}},
    {ErrorCode::kTimeout, {4, 8, 8, 8, 6, 6}},
    {ErrorCode::kIo, {6, 6, 6, 6, 6, 6}},
    {ErrorCode::kUnauthenticated, {5, 5, 5, 5, 5, 5}},
    {ErrorCode::kInternal, {1, 1, 1, 1, 1, 1}},
};

TEST(ExitCode, EveryErrorAtEveryPlaceEndsAProgramAsDocumented) {
  for (const Expected& row : kExpected) {
    for (uint8_t place = 0; place < kErrorPlaces; ++place) {
      EXPECT_EQ(std::to_underlying(exit_code_of(row.code, ErrorPlace{place})), row.exits.at(place))
          << error_code_name(row.code) << " at place " << int{place};
    }
  }
}

TEST(ExitCode, TheTableHasEveryErrorOnce) {
  std::set<ErrorCode> listed;
  for (const Expected& row : kExpected) EXPECT_TRUE(listed.insert(row.code).second) << error_code_name(row.code);
  uint16_t named = 0;
  for (uint16_t code = 1; error_code_name(ErrorCode{code}) != "unknown"; ++code, ++named) {
    EXPECT_TRUE(listed.contains(ErrorCode{code})) << "no row for " << error_code_name(ErrorCode{code});
  }
  EXPECT_EQ(listed.size(), named);
}

TEST(ExitCode, ANumberThatIsNoErrorIsAFaultOfOurs) {
  for (const uint16_t code : std::initializer_list<uint16_t>{0, 19, 999, 65535}) {
    EXPECT_EQ(exit_code_of(ErrorCode{code}, ErrorPlace::kOwn), ExitCode::kInternal) << code;
  }
}

}  // namespace
}  // namespace millrace::monitoring
