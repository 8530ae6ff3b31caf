#include "server/process/process_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace millrace::server {
namespace {

TEST(ProcessLog, WarningsThatPeersCauseDisplaceNoError) {
  ProcessLog log(0, Severity::kInfo);
  ::testing::internal::CaptureStderr();
  for (uint32_t at = 0; at < 10 * ProcessLog::kLinesPerSecond; ++at) log.write(Severity::kWarning, "a flood", kNsPerS);
  log.write(Severity::kError, "the disk is full", kNsPerS);
  log.write(Severity::kInfo, "later", 2 * kNsPerS);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, ::testing::HasSubstr("the disk is full"));
  EXPECT_THAT(said, ::testing::HasSubstr("900 lines were left out"));
}

}  // namespace
}  // namespace millrace::server
