#include "protocol/address/host_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <stdexcept>

#include "protocol/address/host_port.h"

/// Names of hosts to addresses.
namespace millrace::protocol {
namespace {

using ::testing::HasSubstr;

constexpr int kLookupWaitMs = 20'000;

bool is_readable(int descriptor, int timeout_ms) {
  pollfd item{descriptor, POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) == 1;
}

TEST(LookUpHost, ANumberIsItsOwnAddress) {
  for (const char* number : {"127.0.0.1", "192.0.2.7", "::1", "2001:db8::7"}) {
    const auto found = look_up_host(number);
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(found->size(), 1u) << number;
    EXPECT_EQ(found->front().text, number);
    EXPECT_EQ(found->front().is_ipv6(), std::string_view(number).find(':') != std::string_view::npos);
    EXPECT_TRUE(is_numeric_host(number));
  }
  EXPECT_EQ(look_up_host("192.0.2.7")->front().bytes,
            (std::array<uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7}));
}

TEST(LookUpHost, ANumberInAnySpellingIsNoName) {
  for (const char* number : {"127.1", "0x7f000001", "2130706433"}) {
    EXPECT_TRUE(is_numeric_host(number)) << number;
    const auto found = look_up_host(number);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->front().text, "127.0.0.1") << number;
    EXPECT_EQ(loopback_of_name(number), "") << number;
  }
}

TEST(LookUpHost, NamesAreNoNumbers) {
  for (const char* name : {"localhost", "node1", "1.2.3.4.example", "1.2.3.4%eth0", "", "*"})
    EXPECT_FALSE(is_numeric_host(name)) << name;
}

TEST(LookUpHost, EveryAddressComesOnce) {
  const auto found = look_up_host("localhost");
  ASSERT_TRUE(found) << found.error().message;
  for (size_t at = 0; at < found->size(); ++at) {
    for (size_t other = 0; other < at; ++other) EXPECT_FALSE((*found)[at] == (*found)[other]);
  }
}

TEST(LookUpHost, AnUnknownNameIsNamedWithWhatToDo) {
  const auto found = look_up_host("no-such-host.invalid");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(found.error().message, HasSubstr("'no-such-host.invalid' cannot be found"));
  EXPECT_THAT(found.error().message, HasSubstr("/etc/hosts"));
}

TEST(LookUpHost, ANameOfLoopbackAloneIsRecognised) {
  std::vector<HostAddress> addresses = {{.text = "127.0.1.1"}, {.text = "::1"}};
  const HostResolver resolver = [&](const std::string&) -> Result<std::vector<HostAddress>> { return addresses; };
  EXPECT_EQ(loopback_of_name("node0", resolver), "127.0.1.1");
  for (const char* wanted :
       {"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback", "127.0.0.1", "::1", "*"})
    EXPECT_EQ(loopback_of_name(wanted, resolver), "");
  addresses.push_back({.text = "192.0.2.7"});
  EXPECT_EQ(loopback_of_name("node0", resolver), "");
  EXPECT_EQ(loopback_of_name("no-such-host.invalid"), "");
}

TEST(HostLookup, TheAnswerComesWhenTheResolverHasIt) {
  std::promise<void> may_answer;
  auto lookup = HostLookup::start(
      [held = may_answer.get_future().share()](const std::string& host) -> Result<std::vector<HostAddress>> {
        held.wait();
        return std::vector<HostAddress>{{.text = host + "!"}};
      },
      "name");
  ASSERT_TRUE(lookup) << lookup.error().message;
  EXPECT_FALSE((*lookup)->take());
  EXPECT_FALSE(is_readable((*lookup)->descriptor(), 0));
  may_answer.set_value();
  ASSERT_TRUE(is_readable((*lookup)->descriptor(), kLookupWaitMs));
  const auto answer = (*lookup)->take();
  ASSERT_TRUE(answer && *answer);
  EXPECT_EQ((*answer)->front().text, "name!");
  EXPECT_FALSE((*lookup)->take()) << "once";
}

TEST(HostLookup, AnErrorAndAnExceptionAreAnswersToo) {
  auto refused = HostLookup::start(
      [](const std::string&) -> Result<std::vector<HostAddress>> { return fail(ErrorCode::kUnavailable, "not known"); },
      "name");
  ASSERT_TRUE(is_readable((*refused)->descriptor(), kLookupWaitMs));
  EXPECT_EQ((*refused)->take()->error().message, "not known");
  auto thrown = HostLookup::start(
      [](const std::string&) -> Result<std::vector<HostAddress>> { throw std::runtime_error("no memory"); }, "name");
  ASSERT_TRUE(is_readable((*thrown)->descriptor(), kLookupWaitMs));
  EXPECT_THAT((*thrown)->take()->error().message, HasSubstr("no memory"));
}

TEST(HostLookup, ALookupCanBeDestroyedBeforeItsAnswer) {
  std::promise<void> may_answer;
  std::promise<void> ended;
  {
    auto lookup = HostLookup::start(
        [held = may_answer.get_future().share(), &ended](const std::string&) -> Result<std::vector<HostAddress>> {
          held.wait();
          ended.set_value();
          return std::vector<HostAddress>{};
        },
        "name");
    ASSERT_TRUE(lookup);
  }
  may_answer.set_value();
  ended.get_future().wait();
}

}  // namespace
}  // namespace millrace::protocol
