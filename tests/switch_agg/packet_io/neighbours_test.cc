#include "switch_agg/packet_io/dpdk/neighbours.h"

#include <gtest/gtest.h>

namespace millrace::switch_agg {
namespace {

WireAddress host(uint32_t number, uint8_t version = 0) {
  const auto byte = [&](int shift) { return static_cast<uint8_t>(number >> shift); };
  return {{0x02, version, byte(24), byte(16), byte(8), byte(0)}, {byte(24), byte(16), byte(8), byte(0)}};
}

TEST(Neighbours, UnknownHostsAreUnknown) {
  const Neighbours neighbours;
  EXPECT_FALSE(neighbours.find({0, 0, 0, 0}));
  EXPECT_FALSE(neighbours.find({10, 0, 0, 1}));
}

TEST(Neighbours, ASubnetIsKept) {
  Neighbours neighbours;
  for (uint32_t number = 0x0A000001; number < 0x0A000100; ++number) neighbours.learn(host(number));
  for (uint32_t number = 0x0A000001; number < 0x0A000100; ++number)
    EXPECT_EQ(neighbours.find(host(number).ip), host(number).mac) << number;
}

TEST(Neighbours, AMovedHostIsFoundAtItsNewPlace) {
  Neighbours neighbours;
  neighbours.learn(host(1, 0));
  neighbours.learn(host(1, 9));
  EXPECT_EQ(neighbours.find(host(1).ip), host(1, 9).mac);
}

TEST(Neighbours, AKnownHostKeepsItsPlaceUnlessItIsLearnedByForce) {
  Neighbours neighbours;
  neighbours.learn_if_new(host(1, 0));
  neighbours.learn_if_new(host(1, 9));
  EXPECT_EQ(neighbours.find(host(1).ip), host(1, 0).mac);
  neighbours.learn(host(1, 9));
  neighbours.learn_if_new(host(1, 0));
  EXPECT_EQ(neighbours.find(host(1).ip), host(1, 9).mac);
}

TEST(Neighbours, AHostThatIsLearnedAgainSurvivesAFlood) {
  Neighbours neighbours;
  const WireAddress faithful = host(0x0A000001);
  for (uint32_t number = 1; number <= 100'000; ++number) {
    neighbours.learn(host(0xC0000000 + number));
    if (number % 64 == 0) neighbours.learn(faithful);
  }
  EXPECT_EQ(neighbours.find(faithful.ip), faithful.mac);
  EXPECT_FALSE(neighbours.find(host(0xC0000001).ip)) << "the oldest made way";
}

}  // namespace
}  // namespace millrace::switch_agg
