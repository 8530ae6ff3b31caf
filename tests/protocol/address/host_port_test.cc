#include "protocol/address/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/address/endpoint_text.h"

namespace millrace::protocol {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(HostPort, IsReadAsItIsPrinted) {
  const struct {
    const char* text;
    HostPort expected;
  } kCases[] = {
      {"127.0.0.1:80", {"127.0.0.1", 80}},
      {"[::1]:0", {"::1", 0}},
      {"localhost:65535", {"localhost", 65535}},
      {"node1:7600", {"node1", 7600}},
      {"[fe80::1%eth0]:7600", {"fe80::1%eth0", 7600}},
      {"*:1", {"*", 1}},
  };
  for (const auto& [text, expected] : kCases) {
    const auto plain = parse_host_port(text);
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_EQ(*plain, expected) << text;
    EXPECT_EQ(host_port_text(plain->host, plain->port), text);
    const auto tcp = parse_tcp_address("tcp://" + std::string(text));
    ASSERT_TRUE(tcp) << tcp.error().message;
    EXPECT_EQ(*tcp, expected) << text;
    EXPECT_EQ(tcp_address(tcp->host, tcp->port), "tcp://" + std::string(text));
  }
  EXPECT_EQ(parse_host_port(std::string(253, 'a') + ":1")->host, std::string(253, 'a'));
}

struct Wrong {
  std::string text;
  std::string fault;
};

std::vector<Wrong> wrong_addresses() {
  using std::string_literals::operator""s;
  const std::string host = "the host is missing";
  const std::string port = "the port is missing";
  const std::string number = "the port is no number from 0 to 65535";
  const std::string odd = "the host has a space, a '/' or a control character";
  const std::string brackets = "an IPv6 number needs brackets";
  const std::string inside = "the brackets hold no IPv6 number";
  const std::string place = "a bracket is out of place";
  return {
      {"", host},
      {":", host},
      {":80", host},
      {"a", port},
      {"[::1]", port},
      {"a:", number},
      {"a:+5", number},
      {"a:-0", number},
      {"a:-1", number},
      {"a:65536", number},
      {"a:99999999999999999999", number},
      {"a:80\n", number},
      {"a: 80", number},
      {"a:80 ", number},
      {"a:80\0"s, number},
      {"a b:80", odd},
      {" a:80", odd},
      {"a\t:80", odd},
      {"a/b:80", odd},
      {"a\0:80"s, odd},
      {"\x1b[2J:80", odd},
      {"\xff\xfe:80", odd},
      {"ipc://x:1", odd},
      {"::1:80", brackets},
      {"2001:db8::1:7700", brackets},
      {"[::1:80", "the bracket is not closed"},
      {"[:80", "the bracket is not closed"},
      {"[]:80", inside},
      {"[a]:80", inside},
      {"[192.0.2.1]:1", inside},
      {"[[::1]]:80", inside},
      {"[::1%]]:80", inside},
      {"::1]:80", place},
      {"a[1]:80", place},
      {std::string(254, 'a') + ":80", "the host is longer than 253 bytes"},
      {std::string(1 << 20, ':'), "the host is longer than 253 bytes"},
  };
}

TEST(HostPort, OtherTextsAreRefusedWithTheFormAndTheFault) {
  for (const auto& [text, fault] : wrong_addresses()) {
    const auto plain = parse_host_port(text);
    ASSERT_FALSE(plain) << text;
    EXPECT_EQ(plain.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(plain.error().message,
                AllOf(HasSubstr("' is not an address: give HOST:PORT, as 127.0.0.1:9100"), EndsWith("; " + fault)));
    EXPECT_THAT(plain.error().message.size(), ::testing::Le(300u));
    EXPECT_THAT(plain.error().message, AllOf(Not(HasSubstr("\n")), Not(HasSubstr("\x1b")), Not(HasSubstr("\xff"))));

    const auto tcp = parse_tcp_address("tcp://" + text);
    ASSERT_FALSE(tcp) << text;
    EXPECT_THAT(tcp.error().message, AllOf(StartsWith("'tcp://"), EndsWith("; " + fault)));

    const auto endpoint = parse_endpoint(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_THAT(endpoint.error().message, EndsWith("; " + fault));

    EXPECT_FALSE(parse_server_addresses("a:1," + text)) << text;
    EXPECT_FALSE(resolve_endpoints(text)) << text;
  }
}

TEST(HostPort, ATcpAddressBeginsWithItsScheme) {
  for (const char* wrong : {"", "node1:7600", "tcp:/node1:7600", "TCP://node1:7600", "ipc://x:1"}) {
    const auto parsed = parse_tcp_address(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_THAT(parsed.error().message, EndsWith("give tcp://HOST:PORT, as tcp://127.0.0.1:7600 or tcp://[::1]:7600; "
                                                 "the tcp:// is missing"));
  }
  EXPECT_FALSE(parse_tcp_address("tcp://tcp://node1:7600"));
}

TEST(HostPort, Port0IsRefusedWhereItCannotBeReached) {
  EXPECT_TRUE(parse_host_port("a:0"));
  EXPECT_TRUE(parse_tcp_address("tcp://a:0"));
  EXPECT_TRUE(parse_endpoint("192.0.2.1:0"));
  for (const auto& refused :
       {parse_host_port("a:0", PortZero::kRefused).error(), parse_tcp_address("tcp://a:0", PortZero::kRefused).error(),
        parse_endpoint("192.0.2.1:0", PortZero::kRefused).error(), parse_server_addresses("a:0").error(),
        resolve_endpoints("192.0.2.1:0").error()})
    EXPECT_THAT(refused.message, EndsWith("; port 0 cannot be reached"));
}

TEST(HostPort, AListOfServersHasEachOnce) {
  EXPECT_THAT(*parse_server_addresses("a:1,tcp://b:2,[::1]:3"), ElementsAre("tcp://a:1", "tcp://b:2", "tcp://[::1]:3"));
  for (const char* wrong : {"", ",", "a:1,", ",a:1", "a:1,,b:2", "a:1;b:2", "a:1, b:2", "tcp://"})
    EXPECT_FALSE(parse_server_addresses(wrong)) << wrong;
  for (const char* twice : {"a:1,a:1", "a:1,b:2,tcp://a:1"}) {
    const auto parsed = parse_server_addresses(twice);
    ASSERT_FALSE(parsed) << twice;
    EXPECT_THAT(parsed.error().message, StartsWith("tcp://a:1 is given twice"));
  }
  const auto in_two_forms = parse_server_addresses(std::vector<std::string>{"a:1", "tcp://b:2"});
  EXPECT_THAT(*in_two_forms, ElementsAre("tcp://a:1", "tcp://b:2"));
  for (const char* wrong : {"", "a:1,b:2", "a", "a:0", "tcp://a:1"})
    EXPECT_FALSE(parse_server_addresses(std::vector<std::string>{"a:1", wrong})) << wrong;
  std::string many = "a:1";
  for (int port = 2; port <= 1024; ++port) many += ",a:" + std::to_string(port);
  EXPECT_THAT(*parse_server_addresses(many), SizeIs(1024));
}

TEST(HostPort, AListenerOnEveryAddressIsKnownInAnySpelling) {
  for (const char* every :
       {"*:1", "0.0.0.0:1", "0:1", "0.0:1", "000.0.0.0:1", "0x0:1", "[::]:1", "[::0]:1", "[0:0:0:0:0:0:0:0]:1",
        "[::0.0.0.0]:1", "[::ffff:0.0.0.0]:1", "[::ffff:0:0]:1", "[::%lo]:1"})
    EXPECT_TRUE(is_every_host(parse_host_port(every)->host)) << every;
  for (const char* one :
       {"127.0.0.1:1", "1:1", "0.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "node1:1", "0x:1", "0node:1"})
    EXPECT_FALSE(is_every_host(parse_host_port(one)->host)) << one;
  for (const char* no_host : {"", "0%x", "0 0", "0\t", "0 node"}) EXPECT_FALSE(is_every_host(no_host)) << no_host;
}

TEST(HostPort, LoopbackIsKnownInAnySpelling) {
  for (const char* here : {"localhost", "127.0.0.1", "127.255.0.9", "127.1", "0177.0.0.1", "0x7f000001", "2130706433",
                           "::1", "0:0:0:0:0:0:0:1", "::1%lo", "::ffff:127.0.0.1", "::ffff:7f00:1"})
    EXPECT_TRUE(is_loopback_host(here)) << here;
  for (const char* other : {"", "*", "0.0.0.0", "0", "::", "192.0.2.1", "128.1", "::2", "::ffff:128.0.0.1", "node1",
                            "127.0.0.1.example", "127.0.0.1%x", "127.1 node"})
    EXPECT_FALSE(is_loopback_host(other)) << other;
}

}  // namespace
}  // namespace millrace::protocol
