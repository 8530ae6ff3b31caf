#include "protocol/messages/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

Hello hello_of(uint32_t version_min, uint32_t version_max, Capabilities capabilities = 0) {
  Hello hello;
  hello.version_min = version_min;
  hello.version_max = version_max;
  hello.capabilities = capabilities;
  hello.software = "millrace 9";
  return hello;
}

TEST(Handshake, TakesTheNewestVersionThatBothSpeak) {
  const Offer ours{.version_min = 2, .version_max = 5};
  EXPECT_EQ(negotiate(hello_of(1, 3), ours)->version, 3u);
  EXPECT_EQ(negotiate(hello_of(4, 9), ours)->version, 5u);
  EXPECT_EQ(negotiate(hello_of(5, 5), ours)->version, 5u);
  EXPECT_EQ(negotiate(hello_of(1, 2), ours)->version, 2u);
}

TEST(Handshake, TakesTheCapabilitiesThatBothHave) {
  const Hello hello = hello_of(kProtocolVersion, kProtocolVersion, 0b0110);
  EXPECT_EQ(negotiate(hello, {.capabilities = 0b0011})->capabilities, 0b0010u);
}

TEST(Handshake, NoCommonVersion_RefusedWithBothVersionsAndWithoutRetry) {
  for (const Hello& hello : {hello_of(6, 9), hello_of(0, 1)}) {
    const auto refused = negotiate(hello, {.version_min = 2, .version_max = 5, .software = "millrace 5"});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kVersionMismatch);
    EXPECT_FALSE(refused.error().retry);
    EXPECT_THAT(refused.error().sentence,
                ::testing::AllOf(::testing::HasSubstr("millrace 9"), ::testing::HasSubstr("millrace 5"),
                                 ::testing::HasSubstr("2 to 5")));
  }
}

TEST(Handshake, ABuildOfVersion1WhoseOrdinalsMovedIsRefused) {
  const auto refused = negotiate(hello_of(1, 1), {.software = "this build"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kVersionMismatch);
  EXPECT_THAT(refused.error().sentence,
              ::testing::HasSubstr("speaks protocol versions 1 to 1, this build speaks 2 to"));
}

TEST(Handshake, IsTheSameBetweenShards) {
  ShardHello hello;
  EXPECT_EQ(negotiate(hello, {}), Agreement{});
  hello.version_min = hello.version_max = 7;
  EXPECT_EQ(negotiate(hello, {}).error().code, ErrorCode::kVersionMismatch);
}

}  // namespace
}  // namespace millrace::protocol
