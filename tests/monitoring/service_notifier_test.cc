#include "monitoring/service_notifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>

#include "tests/monitoring/notify_socket.h"

namespace millrace::monitoring {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kOwnPid = 42;
constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

/// An abstract name that no other test process has.
std::string socket_name(const std::string& test) { return "@millrace-test-" + std::to_string(::getpid()) + "-" + test; }

ServiceNotifier manager_of(const ServiceNotifier::Environment& environment) {
  Result<ServiceNotifier> manager = ServiceNotifier::from(environment, kOwnPid);
  EXPECT_TRUE(manager.has_value()) << manager.error().message;
  return manager ? std::move(*manager) : ServiceNotifier();
}

TEST(ServiceNotifierTest, SendsOneDatagramACall) {
  const std::string name = socket_name("calls");
  NotifySocket socket(name);
  ServiceNotifier manager = manager_of({.notify_socket = name.c_str()});
  EXPECT_TRUE(manager.is_present());
  EXPECT_TRUE(manager.ready("serving").has_value());
  EXPECT_EQ(socket.now(), "READY=1\nSTATUS=serving");
  manager.report("job 'a' is in recovery");
  EXPECT_EQ(socket.now(), "STATUS=job 'a' is in recovery");
  manager.reloading(1'234'567'890);
  EXPECT_EQ(socket.now(), "RELOADING=1\nMONOTONIC_USEC=1234567");
  manager.stopping("shutting down");
  EXPECT_EQ(socket.now(), "STOPPING=1\nSTATUS=shutting down");
  EXPECT_EQ(socket.now(), "nothing");
}

TEST(ServiceNotifierTest, FindsASocketByItsPath) {
  std::string folder = (std::filesystem::temp_directory_path() / "millrace-notify-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/notify";
  {
    NotifySocket socket(path);
    EXPECT_TRUE(manager_of({.notify_socket = path.c_str()}).ready("").has_value());
    EXPECT_EQ(socket.now(), "READY=1\nSTATUS=");
  }
  std::filesystem::remove_all(folder);
}

TEST(ServiceNotifierTest, ATextCannotAddALineNorGrowWithoutBound) {
  const std::string name = socket_name("text");
  NotifySocket socket(name);
  ServiceNotifier manager = manager_of({.notify_socket = name.c_str()});
  manager.report("job 'a\nREADY=1\x7f'");
  EXPECT_EQ(socket.now(), "STATUS=job 'a?READY=1?'");
  manager.report(std::string(1'000'000, 'x'));
  EXPECT_EQ(socket.now(), "STATUS=" + std::string(200, 'x'));
}

TEST(ServiceNotifierTest, WithoutASocketThereIsNoManager) {
  ServiceNotifier manager = manager_of({.watchdog_usec = "1000000"});
  EXPECT_FALSE(manager.is_present());
  EXPECT_TRUE(manager.ready("serving").has_value());
  manager.keep_alive(0);
  EXPECT_EQ(manager.next_keep_alive(), kNever);
}

TEST(ServiceNotifierTest, ASignOfLifeEveryHalfInterval) {
  const std::string name = socket_name("watchdog");
  NotifySocket socket(name);
  ServiceNotifier manager = manager_of({name.c_str(), "2000000", "42"});
  const TimeNs start = 100 * kNsPerS;
  EXPECT_LE(manager.next_keep_alive(), start);
  manager.keep_alive(start);
  EXPECT_EQ(socket.now(), "WATCHDOG=1");
  EXPECT_EQ(manager.next_keep_alive(), start + kNsPerS);
  manager.keep_alive(start + kNsPerS - 1);
  EXPECT_EQ(socket.now(), "nothing");
  manager.keep_alive(start + kNsPerS);
  EXPECT_EQ(socket.now(), "WATCHDOG=1");
}

TEST(ServiceNotifierTest, NoSignOfLifeIfNoneOrAnotherProcessIsWatched) {
  const std::string name = socket_name("unwatched");
  NotifySocket socket(name);
  using Environment = ServiceNotifier::Environment;
  for (const Environment& environment :
       {Environment{name.c_str(), nullptr, nullptr}, Environment{name.c_str(), "2000000", "43"},
        Environment{name.c_str(), "0", nullptr}, Environment{name.c_str(), "18446744073709551615", nullptr}}) {
    ServiceNotifier manager = manager_of(environment);
    EXPECT_EQ(manager.next_keep_alive(), kNever);
    manager.keep_alive(100 * kNsPerS);
    EXPECT_EQ(socket.now(), "nothing");
  }
}

TEST(ServiceNotifierTest, AWrongEnvironmentIsAnErrorThatNamesTheVariable) {
  const std::string name = socket_name("wrong");
  NotifySocket socket(name);
  const std::string too_long = "/" + std::string(107, 'a');
  for (const char* wrong : {"", "@", "relative/path", too_long.c_str()}) {
    const auto manager = ServiceNotifier::from({.notify_socket = wrong}, kOwnPid);
    ASSERT_FALSE(manager.has_value()) << wrong;
    EXPECT_EQ(manager.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(manager.error().message, HasSubstr("NOTIFY_SOCKET"));
  }
  const auto gone = ServiceNotifier::from({.notify_socket = "/no/such/socket"}, kOwnPid);
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code, ErrorCode::kIo);
  EXPECT_THAT(gone.error().message, HasSubstr("No such file"));
  for (const char* wrong : {"", "soon", "1s", "-1", "18446744073709551616"}) {
    const auto manager = ServiceNotifier::from({name.c_str(), wrong, nullptr}, kOwnPid);
    ASSERT_FALSE(manager.has_value()) << wrong;
    EXPECT_THAT(manager.error().message, HasSubstr("WATCHDOG_USEC"));
    const auto process = ServiceNotifier::from({name.c_str(), "1000000", wrong}, kOwnPid);
    ASSERT_FALSE(process.has_value()) << wrong;
    EXPECT_THAT(process.error().message, HasSubstr("WATCHDOG_PID"));
  }
}

TEST(ServiceNotifierTest, AManagerThatIsGoneFailsReady) {
  const std::string name = socket_name("gone");
  ServiceNotifier manager;
  {
    NotifySocket socket(name);
    manager = manager_of({.notify_socket = name.c_str()});
  }
  const Status told = manager.ready("serving");
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace millrace::monitoring
