#include <algorithm>
#include <ctime>
#include <string>

#include "tests/server/returning_cluster.h"

/// Members whose messages cost the shard more than they cost their sender.
namespace millrace::server {
namespace {

TEST(HostileMember, NoHelloLiftsTheBoundOnReadsOfTheTable) {
  ScriptedCluster cluster(ScriptedCluster::small_job(2));
  cluster.join_all();
  cluster.pass(60);  // the poll knows all changes
  const int64_t before = cluster.table().calls;
  for (uint32_t at = 0; at < 100; ++at) {
    const protocol::PeerId from{"worker-0 " + std::to_string(at / 2)};  // each connection says Hello twice
    cluster.send(from, 0, {{.worker = 0}, cluster.hello(0), {}});
    protocol::Header header = cluster.header(0);
    header.epoch = uint64_t{1} << 60;
    cluster.send(from, 0, {header, protocol::Heartbeat{}, {}});
  }
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unknown_epoch"), 100);
  EXPECT_LE(cluster.table().calls - before, 1);
}

TEST(HostileMember, RepeatedStatesOfManyPartsTakeLittleTime) {
  constexpr uint32_t kParts = 12'000;
  ReturningCluster cluster(ReturningCluster::job(2, kParts), 1);
  cluster.join_all_with_weights();
  cluster.say(1, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, ""});
  ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(cluster.say_hello(1, cluster.returning(1, 77))));
  for (uint32_t part = 0; part < kParts; ++part) {
    cluster.holds(1, part).n = 7;  // no step of the log: each part needs the weights of worker 0
    cluster.holds(1, part).decided_in = 1;
  }
  cluster.say_state(1, false);
  cluster.deliver_all(0);
  const std::clock_t before = std::clock();
  for (int repeated = 0; repeated < 40; ++repeated) cluster.say_state(1, false);
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 2) << "a search in the queue for each part takes 3e9 comparisons";
  EXPECT_EQ(cluster.counted(Metric::kDropped, "malformed_state"), 0);
  EXPECT_EQ(cluster.counted(Metric::kDropped, "unasked_state"), 0);
}

TEST(HostileMember, TheAuditLineOfAnEvictionHasTheKeyThatWasTakenAway) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  spec.heartbeat = std::chrono::milliseconds(200);
  spec.dead_after = std::chrono::milliseconds(600);
  ScriptedCluster cluster(spec);
  cluster.join(0);
  protocol::PeerId bob{.bytes = "worker-1", .address = "10.0.0.7"};
  bob.key.bytes[0] = 2;
  cluster.send(bob, 0, {{.worker = 1}, cluster.hello(1), {}});
  Actions actions;
  cluster.core().end_sessions([&](const protocol::PeerId& peer) { return peer == bob; },
                              {ErrorCode::kUnauthenticated, "its key was taken away"}, cluster.now, actions);
  cluster.carry_out(0, actions);
  for (int at = 0; at < 10; ++at) {
    cluster.pass(100);
    cluster.send(ScriptedCluster::peer(0), 0, {cluster.header(0), protocol::Heartbeat{}, {}});
  }
  const auto evicted = std::ranges::find(cluster.audited, AuditEvent::What::kEvict, &AuditEvent::what);
  ASSERT_NE(evicted, cluster.audited.end());
  EXPECT_EQ(evicted->worker, 1u);
  EXPECT_EQ(evicted->by, bob);
  EXPECT_EQ(evicted->by.address, "10.0.0.7");
}

}  // namespace
}  // namespace millrace::server
