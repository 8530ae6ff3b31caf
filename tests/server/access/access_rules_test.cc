#include "server/access/access_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace millrace::server {
namespace {

using protocol::AllowedKeys;
using protocol::PublicKey;
using ::testing::HasSubstr;

class Rules : public ::testing::Test {
 protected:
  Rules() {
    AllowedKeys allowed;
    EXPECT_TRUE(allowed.add("worker-0", worker_));
    rules_ = AccessRules::of(own_, allowed);
  }
  static protocol::PeerId peer(const PublicKey& key) { return {"c", key, "192.0.2.1"}; }
  static protocol::Message message(protocol::Body body) { return {{}, std::move(body), {}}; }

  const PublicKey own_ = protocol::draw_key_pair().public_key;
  const PublicKey worker_ = protocol::draw_key_pair().public_key;
  const PublicKey stranger_ = protocol::draw_key_pair().public_key;
  AccessRules rules_;
};

TEST_F(Rules, WithoutKeysEveryMessagePasses) {
  const AccessRules none;
  EXPECT_FALSE(none.has_keys());
  EXPECT_TRUE(none.judge({"c"}, message(protocol::Hello())));
  EXPECT_TRUE(none.judge({"c"}, message(protocol::ShardHello())));
  EXPECT_FALSE(none.may_connect(PublicKey())) << "a gate without keys lets no key in";
}

TEST_F(Rules, TheClustersKeyAndTheAllowedOnesConnect) {
  EXPECT_TRUE(rules_.may_connect(own_));
  EXPECT_TRUE(rules_.may_connect(worker_));
  EXPECT_FALSE(rules_.may_connect(stranger_));
  EXPECT_FALSE(rules_.may_connect(PublicKey()));
  EXPECT_EQ(rules_.name_of(own_), "cluster");
  EXPECT_EQ(rules_.name_of(worker_), "worker-0");
  EXPECT_EQ(rules_.name_of(stranger_), "");
}

TEST_F(Rules, OnlyTheClustersKeySpeaksAsAShard) {
  EXPECT_TRUE(rules_.judge(peer(own_), message(protocol::ShardHello())));
  EXPECT_TRUE(rules_.judge(peer(own_), message(protocol::ThresholdHistogram())));
  for (const protocol::Body& body :
       {protocol::Body(protocol::ShardHello()), protocol::Body(protocol::ThresholdHistogram())}) {
    const Status judged = rules_.judge(peer(worker_), message(body));
    ASSERT_FALSE(judged);
    EXPECT_EQ(judged.error().code, ErrorCode::kUnauthenticated);
    EXPECT_THAT(judged.error().message, HasSubstr("'worker-0'"));
  }
}

TEST_F(Rules, TheClustersKeySpeaksForWorkersOnlyWhereItIsAllowed) {
  EXPECT_TRUE(rules_.judge(peer(worker_), message(protocol::Hello())));
  EXPECT_FALSE(rules_.judge(peer(own_), message(protocol::Hello())));
  AllowedKeys allowed;
  ASSERT_TRUE(allowed.add("cluster", own_));
  const AccessRules both = AccessRules::of(own_, allowed);
  EXPECT_TRUE(both.judge(peer(own_), message(protocol::Hello())));
  EXPECT_TRUE(both.judge(peer(own_), message(protocol::ShardHello())));
}

TEST_F(Rules, AKeyThatWasTakenAwayHearsSoAtItsNextMessage) {
  const Status judged = rules_.judge(peer(stranger_), message(protocol::Heartbeat()));
  ASSERT_FALSE(judged);
  EXPECT_EQ(judged.error().code, ErrorCode::kUnauthenticated);
  EXPECT_THAT(judged.error().message, HasSubstr("any more"));
}

TEST_F(Rules, AnotherKeyMayNotHaveTheClustersName) {
  AllowedKeys allowed;
  ASSERT_TRUE(allowed.add("cluster", worker_));
  const AccessRules rules = AccessRules::of(own_, allowed);
  EXPECT_FALSE(rules.may_connect(worker_));
  EXPECT_THAT(rules.allowed().problems(), ::testing::ElementsAre(HasSubstr("'cluster'")));
}

}  // namespace
}  // namespace millrace::server
