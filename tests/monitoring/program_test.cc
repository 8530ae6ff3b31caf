#include "monitoring/program.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace millrace::monitoring {
namespace {

constexpr ServerProgram kProgramUnderTest{"millrace-some", ErrorPlace::kShard};

TEST(ServerProgram, AWrongCommandLineIsOneLineThatSaysWhereToReadOn) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(kProgramUnderTest.report_usage("--a: bad value"), static_cast<int>(ExitCode::kUsage));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "millrace-some: --a: bad value; see millrace-some --help\n");
}

TEST(ServerProgram, AnErrorIsOneLineAndTheExitCodeOfItsPlace) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(kProgramUnderTest.report_error({ErrorCode::kIo, "the disk is full"}), static_cast<int>(ExitCode::kIo));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "millrace-some: the disk is full\n");
}

TEST(ServerProgram, AFailedStartIsOneLineOfJsonOnStdout) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(kProgramUnderTest.report_failed_start_as_json({ErrorCode::kIo, "\"a\"\n\xff"}),
            static_cast<int>(ExitCode::kIo));
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "{\"code\":\"io\",\"error\":\"\\\"a\\\"\\n\xEF\xBF\xBD\",\"event\":\"failed\"}\n");
}

volatile std::sig_atomic_t last_signal = 0;
void note_signal(int signal) { last_signal = signal; }
void note_other(int signal) { last_signal = -signal; }

TEST(ServerProgram, SignalsGoToTheirHandlers) {
  take_server_signals(note_signal, SIGUSR2, note_other);
  for (const int signal : {SIGTERM, SIGINT}) {
    ::raise(signal);
    EXPECT_EQ(last_signal, signal);
  }
  ::raise(SIGUSR2);
  EXPECT_EQ(last_signal, -SIGUSR2);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR2}) std::signal(signal, SIG_DFL);
}

}  // namespace
}  // namespace millrace::monitoring
