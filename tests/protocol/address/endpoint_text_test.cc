#include "protocol/address/endpoint_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::protocol {
namespace {

TEST(EndpointText, AddressesAreReadAsTheyArePrinted) {
  for (const char* text : {"192.0.2.1:7700", "0.0.0.0:0", "255.255.255.255:65535", "[2001:db8::1]:7700", "[::]:1"}) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_TRUE(endpoint) << text;
    EXPECT_EQ(endpoint_text(*endpoint), text);
  }
}

TEST(EndpointText, AnIpv4AddressIsMapped) {
  const auto endpoint = parse_endpoint("192.0.2.1:7700");
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(ipv4_of(*endpoint), (Ipv4Address{192, 0, 2, 1}));
  EXPECT_EQ(endpoint->address, mapped_address({192, 0, 2, 1}));
  EXPECT_EQ(endpoint->port, 7700);
  EXPECT_FALSE(ipv4_of(*parse_endpoint("[2001:db8::1]:7700")));
}

TEST(EndpointText, OtherTextsAreRefusedWithAnExample) {
  for (const char* text :
       {"", ":", "7700", "192.0.2.1", "192.0.2.1:", "192.0.2.1:65536", "192.0.2.1:-1", "192.0.2:1", "localhost:7700",
        "2001:db8::1:7700", "[2001:db8::1]", "[]:1", "[192.0.2.1]:1", "192.0.2.1:1 "}) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(endpoint.error().message, ::testing::HasSubstr("192.0.2.1:7700"));
  }
}

}  // namespace
}  // namespace millrace::protocol
