#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/doctor/check.h"
#include "worker/doctor/cluster_checks.h"
#include "worker/doctor/cluster_places.h"
#include "worker/doctor/cluster_reach.h"
#include "worker/doctor/host_checks.h"
#include "worker/doctor/pair_checks.h"
#include "worker/doctor/pair_reach.h"
#include "worker/program/table.h"

namespace millrace::doctor {
namespace {

constexpr const char* kOwn = "millrace 0.2.0";
using enum Verdict;

/// Returns the check of that name; the test fails where there is none.
Check find_check(const std::vector<Check>& checks, const std::string& name) {
  const auto found = std::ranges::find(checks, name, &Check::name);
  EXPECT_NE(found, checks.end()) << name;
  return found == checks.end() ? Check() : *found;
}

/// Every check has a finding, and every warning and problem a change.
void expect_sentences(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    EXPECT_FALSE(check.found.empty()) << check.name;
    EXPECT_TRUE(check.verdict < kWarning || !check.change.empty()) << check.name;
  }
}

HostFacts healthy_host() {
  HostFacts facts;
  facts.open_files = 1 << 20;
  facts.memory_available = uint64_t{64} << 30;
  facts.transparent_huge_pages = "always [madvise] never";
  facts.calls = {{"sched_setscheduler"}, {"memfd_create"}, {"pidfd_open"}};
  facts.instruction_set = "AVX2";
  facts.clock_synchronised = true;
  facts.interface_mtus = {{"eth0", 1'500}};
  return facts;
}

TEST(HostChecks, AHealthyHostHasNoFinding) {
  const std::vector<Check> checks = judge_host(healthy_host());
  EXPECT_EQ(checks.size(), 7u);
  for (const Check& check : checks) EXPECT_EQ(check.verdict, kOk) << check.name << ": " << check.found;
  expect_sentences(checks);
}

TEST(HostChecks, EachFaultIsFound) {
  struct Case {
    const char* name;
    Verdict verdict;
    std::function<void(HostFacts&)> damage;
    const char* said;  ///< in the finding, or in the change
  };
  const Case kCases[] = {
      {"descriptors", kWarning, [](HostFacts& facts) { facts.open_files = 1'024; }, "LimitNOFILE="},
      {"descriptors", kProblem, [](HostFacts& facts) { facts.open_files = 255; }, "ulimit -n"},
      {"memory", kWarning,
       [](HostFacts& facts) {
         facts.server_starts = true;
         facts.memory_available = uint64_t{4} << 30;
       },
       "--shard-memory-bytes-max 3072MiB --job-memory-bytes-max 1536MiB"},
      {"memory", kProblem, [](HostFacts& facts) { facts.memory_available = (uint64_t{256} << 20) - 1; },
       "control group"},
      {"memory", kOk, [](HostFacts& facts) { facts.memory_available = uint64_t{4} << 30; }, ""},
      {"memory", kNotChecked, [](HostFacts& facts) { facts.memory_available.reset(); }, "does not say"},
      {"huge pages", kWarning, [](HostFacts& facts) { facts.transparent_huge_pages = "always madvise [never]"; },
       "echo madvise"},
      {"huge pages", kNotChecked, [](HostFacts& facts) { facts.transparent_huge_pages.reset(); }, "does not say"},
      {"seccomp", kWarning, [](HostFacts& facts) { facts.calls[0].outcome = CallOutcome::kRefused; },
       "sched_setscheduler"},
      {"seccomp", kWarning, [](HostFacts& facts) { facts.calls[1].outcome = CallOutcome::kRefused; }, "over TCP"},
      {"seccomp", kOk, [](HostFacts& facts) { facts.calls[2].outcome = CallOutcome::kRefused; }, ""},
      {"seccomp", kProblem, [](HostFacts& facts) { facts.calls[2].outcome = CallOutcome::kKills; },
       "SystemCallErrorNumber=EPERM"},
      {"seccomp", kNotChecked, [](HostFacts& facts) { facts.calls[0].outcome = CallOutcome::kNotTried; }, "could try"},
      {"cpu", kWarning, [](HostFacts& facts) { facts.instruction_set = "SSE2"; }, "AVX2"},
      {"clock", kWarning, [](HostFacts& facts) { facts.clock_synchronised = false; }, "chrony"},
      {"clock", kNotChecked, [](HostFacts& facts) { facts.clock_synchronised.reset(); }, "does not say"},
      {"mtu", kWarning, [](HostFacts& facts) { facts.interface_mtus = {{"a", 1'450}, {"b", 9'000}}; },
       "ip link set dev a mtu 1500"},
      {"mtu", kWarning, [](HostFacts& facts) { facts.interface_mtus = {{"a", 7}}; }, "--switch-packet-bytes 0"},
      {"mtu", kNotChecked, [](HostFacts& facts) { facts.interface_mtus.clear(); }, "container"},
  };
  for (const Case& one : kCases) {
    HostFacts facts = healthy_host();
    one.damage(facts);
    const std::vector<Check> checks = judge_host(facts);
    const Check check = find_check(checks, one.name);
    EXPECT_EQ(check.verdict, one.verdict) << one.name << ": " << check.found;
    EXPECT_NE((check.found + check.change).find(one.said), std::string::npos) << check.found << check.change;
    EXPECT_EQ(std::ranges::count_if(checks, [](const Check& other) { return other.verdict != kOk; }),
              one.verdict != kOk)
        << one.name;
    expect_sentences(checks);
  }
}

TEST(HostChecks, TheFactsOfThisHostAreRead) {
  const HostFacts facts = read_host_facts();
  EXPECT_GT(facts.open_files, 0u);
  EXPECT_EQ(facts.calls.size(), 3u);
  EXPECT_FALSE(facts.instruction_set.empty());
  EXPECT_FALSE(host_name().empty());
}

ShardFacts healthy_shard() {
  ShardFacts facts{.place = {"shard 1", 1, "ready", "host:7601", "host:7701"}};
  facts.names.push_back({"host", std::vector<std::string>{"192.0.2.1"}});
  facts.connect = ConnectFacts{kNsPerMs};
  facts.mtu = MtuFacts{DatagramOutcome::kArrived, DatagramOutcome::kArrived, 1'500};
  facts.handshake = HandshakeFacts{.mechanism = PortMechanism::kCurve, .done = true};
  StatusReport status;
  status.shard = 1;
  status.address = "tcp://host:7601";
  status.software = kOwn;
  status.memory_bytes = 100;
  status.memory_bytes_max = 1'000;
  status.peers = {{0, "tcp://other:7600", 1, true}};
  facts.status = status;
  facts.wall_clock.add(0, 2 * kNsPerMs, 5 * kNsPerMs);
  facts.transfer = TransferFacts{.bytes = 1'000'000, .best = 8 * kNsPerMs};
  return facts;
}

std::vector<Check> judge(const ShardFacts& facts) { return judge_shard(facts, {kOwn, true}); }

TEST(ClusterChecks, AHealthyShardHasNoFinding) {
  const std::vector<Check> checks = judge(healthy_shard());
  std::vector<std::string> names;
  for (const Check& check : checks) {
    EXPECT_EQ(check.verdict, kOk) << check.name << ": " << check.found;
    names.push_back(check.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"name", "port", "latency", "mtu", "keys", "http", "version", "memory",
                                             "other shards", "clock skew", "bandwidth"}));
  expect_sentences(checks);
  EXPECT_EQ(find_check(checks, "latency").measure->value, 1);
  EXPECT_EQ(find_check(checks, "clock skew").measure->value, 4);
  EXPECT_EQ(find_check(checks, "bandwidth").measure->value, 1'000);
}

/// A healthy shard with one damaged fact, and the one finding of it.
struct ShardCase {
  const char* name;
  Verdict verdict;
  std::function<void(ShardFacts&)> damage;
  const char* said;  ///< in the finding, or in the change
};

void expect_found(const std::vector<ShardCase>& cases) {
  for (const ShardCase& one : cases) {
    ShardFacts facts = healthy_shard();
    one.damage(facts);
    const std::vector<Check> checks = judge(facts);
    const Check check = find_check(checks, one.name);
    EXPECT_EQ(check.verdict, one.verdict) << one.name << ": " << check.found;
    EXPECT_NE((check.found + check.change).find(one.said), std::string::npos) << check.found << check.change;
    EXPECT_EQ(std::ranges::count_if(checks, [](const Check& other) { return other.verdict != kOk; }),
              one.verdict != kOk)
        << one.name;
    expect_sentences(checks);
  }
}

std::unexpected<Error> unreachable() { return fail(ErrorCode::kUnavailable, "Connection refused"); }

TEST(ClusterChecks, EachFaultOfThePathIsFound) {
  expect_found({
      {"name", kProblem, [](ShardFacts& facts) { facts.names[0].addresses = unreachable(); }, "/etc/hosts"},
      {"name", kWarning, [](ShardFacts& facts) { facts.names[0].addresses = std::vector<std::string>{"127.0.1.1"}; },
       "loopback"},
      {"port", kProblem, [](ShardFacts& facts) { facts.connect = unreachable(); }, "firewalls"},
      {"latency", kWarning, [](ShardFacts& facts) { facts.connect = ConnectFacts{11 * kNsPerMs}; }, "one network"},
      {"mtu", kWarning,
       [](ShardFacts& facts) { facts.mtu = MtuFacts{DatagramOutcome::kArrived, DatagramOutcome::kTooLarge, 1'450}; },
       "--switch-packet-bytes 1422"},
      {"mtu", kWarning,
       [](ShardFacts& facts) { facts.mtu = MtuFacts{DatagramOutcome::kSilent, DatagramOutcome::kTooLarge, 0}; },
       "of the path's MTU less 28"},
      {"mtu", kProblem,
       [](ShardFacts& facts) { facts.mtu = MtuFacts{DatagramOutcome::kArrived, DatagramOutcome::kSilent, 1'500}; },
       "ICMP"},
      {"mtu", kNotChecked, [](ShardFacts& facts) { facts.mtu = MtuFacts{}; }, "firewall"},
      {"keys", kProblem, [](ShardFacts& facts) { facts.handshake = HandshakeFacts{}; }, "another program"},
      {"keys", kProblem, [](ShardFacts& facts) { facts.handshake->mechanism = PortMechanism::kNull; }, "without --key"},
      {"keys", kProblem,
       [](ShardFacts& facts) {
         facts.handshake->done = false;
         facts.handshake->trouble = "it does not accept";
       },
       "--allowed-keys"},
  });
}

TEST(ClusterChecks, EachFaultOfTheProcessIsFound) {
  expect_found({
      {"http", kWarning, [](ShardFacts& facts) { facts.status = unreachable(); }, "--http"},
      {"http", kProblem, [](ShardFacts& facts) { facts.status = fail(ErrorCode::kMalformed, "404"); },
       "another process"},
      {"http", kProblem, [](ShardFacts& facts) { facts.status = fail(ErrorCode::kUnauthenticated, "another token"); },
       "--http-token-file"},
      {"number", kProblem, [](ShardFacts& facts) { facts.place.number = 0; }, "is shard 1"},
      {"version", kWarning, [](ShardFacts& facts) { (*facts.status)->software = "millrace 0.3.0"; }, "one version"},
      {"version", kProblem, [](ShardFacts& facts) { (*facts.status)->software = "millrace 1.2.0"; }, "one version"},
      {"version", kNotChecked, [](ShardFacts& facts) { (*facts.status)->software = ""; }, "no version"},
      {"version", kProblem, [](ShardFacts& facts) { (*facts.status)->software = "millrace 0.2"; }, "one version"},
      {"version", kProblem, [](ShardFacts& facts) { (*facts.status)->software = "millrace 0.2.x"; }, "one version"},
      {"version", kProblem, [](ShardFacts& facts) { (*facts.status)->software = "nginx 0.2.0"; }, "one version"},
      {"table", kProblem, [](ShardFacts& facts) { (*facts.status)->table_error = "disk full"; }, "disk full"},
      {"memory", kWarning, [](ShardFacts& facts) { (*facts.status)->memory_bytes = 901; }, "--shard-memory-bytes-max"},
      {"other shards", kProblem, [](ShardFacts& facts) { (*facts.status)->peers[0].heard = false; }, "other:7600"},
      {"clock skew", kWarning,
       [](ShardFacts& facts) {
         facts.wall_clock = {};
         facts.wall_clock.add(0, 2 * kNsPerMs, -kNsPerS - kNsPerMs);
       },
       "chrony"},
      {"clock skew", kOk,
       [](ShardFacts& facts) {
         facts.wall_clock = {};
         facts.wall_clock.add(0, 2 * kNsPerMs, -kNsPerS + kNsPerMs);
       },
       "within 1.000 ms"},
      {"clock skew", kNotChecked,
       [](ShardFacts& facts) {
         facts.wall_clock = {};
         facts.clock_trouble = "no /trace";
       },
       "no /trace"},
      {"bandwidth", kWarning, [](ShardFacts& facts) { facts.transfer->best = 81 * kNsPerMs; }, "ethtool"},
      {"bandwidth", kNotChecked,
       [](ShardFacts& facts) {
         facts.connect = ConnectFacts{9 * kNsPerMs};
         facts.transfer->best = 81 * kNsPerMs;
       },
       "iperf3"},
      {"bandwidth", kNotChecked, [](ShardFacts& facts) { facts.transfer->trouble = "no /probe"; }, "no /probe"},
      {"bandwidth", kWarning, [](ShardFacts& facts) { facts.transfer->late = 3 * kNsPerS; }, "after 3.0 s"},
      {"latency", kNotChecked, [](ShardFacts& facts) { facts.connect = ConnectFacts{}; }, "not measured"},
      {"http", kNotChecked, [](ShardFacts& facts) { facts.status = fail(ErrorCode::kUnsupported, "a worker's"); },
       "a worker's"},
      {"http", kNotChecked,
       [](ShardFacts& facts) {
         facts.status = unreachable();
         facts.place.http_is_guessed = true;
       },
       "--table"},
  });
}

TEST(ClusterChecks, WithoutOwnKeysAServerThatWantsOneIsNotChecked) {
  ShardFacts facts = healthy_shard();
  facts.handshake->done = false;
  EXPECT_EQ(find_check(judge_shard(facts, {kOwn, false}), "keys").verdict, kNotChecked);
  facts.handshake->mechanism = PortMechanism::kNull;
  EXPECT_EQ(find_check(judge_shard(facts, {kOwn, false}), "keys").verdict, kWarning);
  facts.place.address = "127.0.0.1:7601";
  EXPECT_EQ(find_check(judge_shard(facts, {kOwn, false}), "keys").verdict, kOk);
}

TEST(ClusterChecks, NothingBehindAFailureIsJudged) {
  ShardFacts facts{.place = {.subject = "shard 1", .address = "host:7601", .http = "host:7701"}};
  facts.names.push_back({"host", fail(ErrorCode::kUnavailable, "not known")});
  EXPECT_EQ(judge(facts).size(), 1u);
  facts.names.clear();
  facts.connect = fail(ErrorCode::kUnavailable, "refused");
  facts.status = fail(ErrorCode::kUnavailable, "refused");
  EXPECT_EQ(judge(facts).size(), 2u);
  EXPECT_EQ(judge({.place = {.subject = "shard 1"}}).size(), 1u);
}

TEST(ClusterChecks, TheTableIsJudged) {
  TableFacts facts{.location = "t.db", .read_time = kNsPerMs};
  facts.shards = {
      {0, "ready", "a:1", ""}, {1, "draining", "b:1", ""}, {2, "gone", "c:1", ""}, {3, "never started", "", ""}};
  std::vector<Check> checks = judge_table(facts);
  std::vector<Verdict> verdicts;
  for (const Check& check : checks) verdicts.push_back(check.verdict);
  EXPECT_EQ(verdicts, (std::vector{kOk, kOk, kOk, kProblem, kProblem}));
  expect_sentences(checks);
  facts.read_time = 101 * kNsPerMs;
  EXPECT_EQ(judge_table(facts)[0].verdict, kWarning);
  facts.shards.clear();
  EXPECT_EQ(judge_table(facts)[0].verdict, kProblem);
  facts.trouble = "no such file";
  checks = judge_table(facts);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, kProblem);
}

TEST(ClusterChecks, AMissingTableIsNotMade) {
  protocol::TableFlags flags;
  flags.location = "/nowhere/millrace.table";
  const auto fetch = [](const std::string&) { return Result<nlohmann::json>(nlohmann::json()); };
  EXPECT_NE(read_table_facts(flags, fetch).trouble.find("no such file"), std::string::npos);
}

TEST(ClusterChecks, AnAddressThatIsNoneIsAProblem) {
  ShardCollector collector({.timeout_ms = 1});
  const std::vector<Check> checks = judge(collector.collect({.subject = "shard 1", .address = "\x1b[2J", .http = ""}));
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, kProblem);
}

TEST(ClusterChecks, PathsThatThisHostDoesNotSeeAreNamed) {
  std::vector<ShardFacts> shards = {
      healthy_shard(), healthy_shard(), {.place = {.subject = "dead:1", .http = "dead:1"}}};
  std::vector<Check> checks = judge_cluster(shards, "t.db");
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, kNotChecked);
  shards[1].place.address = "localhost:7601";  // as the operator wrote it; the shard advertises another one
  EXPECT_EQ(judge_cluster(shards, "t.db").size(), 1u);
  (*shards[1].status)->address = "tcp://127.0.0.1:7601";
  EXPECT_EQ(find_check(judge_cluster(shards, "t.db"), "advertise").verdict, kProblem);
  shards[0].place.address = "localhost:7600";
  (*shards[0].status)->address = "tcp://127.0.0.1:7600";
  EXPECT_TRUE(judge_cluster(shards, "t.db").empty());
  EXPECT_TRUE(judge_cluster(shards, "etcd://127.0.0.1:2379").empty());
  checks = judge_cluster(shards, "etcd://etcd1:2379,127.0.0.1:2379");
  ASSERT_EQ(checks.size(), 2u) << "one a shard";
  EXPECT_EQ(checks[0].name, "advertise");
  EXPECT_EQ(checks[0].verdict, kWarning) << "a trial on one host";
  EXPECT_TRUE(judge_cluster({}, "").empty());
}

PairFacts healthy_pair(uint32_t receiver, uint32_t sender) {
  PairFacts pair{.receiver = receiver, .sender = sender};
  pair.round_trip = kNsPerMs;
  pair.transfer = TransferFacts{.bytes = 1'000'000, .best = 8 * kNsPerMs};  // 1 Gbit/s
  return pair;
}

/// The paths between three shards, in both directions.
PairsFacts healthy_pairs() {
  PairsFacts facts;
  for (uint32_t receiver = 0; receiver < 3; ++receiver) {
    for (uint32_t sender = 0; sender < 3; ++sender) {
      if (receiver != sender) facts.pairs.push_back(healthy_pair(receiver, sender));
    }
  }
  return facts;
}

TEST(PairChecks, TheSlowestPathIsNamed) {
  PairsFacts facts = healthy_pairs();
  facts.pairs[4].round_trip = 2 * kNsPerMs;      // to 2 from 0
  facts.pairs[3].transfer.best = 10 * kNsPerMs;  // to 1 from 2
  const std::vector<Check> checks = judge_pairs(facts);
  ASSERT_EQ(checks.size(), 2u);
  expect_sentences(checks);
  EXPECT_EQ(worst_of(checks), kOk);
  EXPECT_EQ(checks[0].subject, "shard 0 to shard 2");
  EXPECT_EQ(checks[0].measure->value, 2);
  EXPECT_NE(checks[0].found.find("of 6 paths"), std::string::npos) << checks[0].found;
  EXPECT_EQ(checks[1].subject, "shard 2 to shard 1");
  EXPECT_EQ(checks[1].measure->value, 800);
}

TEST(PairChecks, EachFaultOfAPathIsFound) {
  struct Case {
    const char* name;
    Verdict verdict;
    std::function<void(PairFacts&)> damage;
    const char* said;
    std::string_view cell;
  };
  const Case kCases[] = {
      {"latency", kWarning, [](PairFacts& pair) { pair.round_trip = 11 * kNsPerMs; }, "one network", "11.00 / 1000"},
      {"bandwidth", kWarning, [](PairFacts& pair) { pair.transfer.best = 81 * kNsPerMs; }, "ethtool", "1.00 / 99"},
      {"bandwidth", kWarning, [](PairFacts& pair) { pair.transfer = {.late = kNsPerS}; }, "after 1.0 s", "1.00 / late"},
      {"path", kProblem, [](PairFacts& pair) { pair.connect_trouble = "refused"; }, "open the port of shard 2",
       "refused"},
      {"bandwidth", kNotChecked, [](PairFacts& pair) { pair.transfer = {.trouble = "no --http"}; },
       "1 of 6 paths: shard 2 to shard 1: no --http", "1.00 / ?"},
      {"bandwidth", kNotChecked, [](PairFacts& pair) { pair = {.receiver = 1, .sender = 2, .trouble = "busy"}; },
       "1 of 6 paths: shard 2 to shard 1: busy", "? / ?"},
  };
  for (const Case& one : kCases) {
    PairsFacts facts = healthy_pairs();
    one.damage(facts.pairs[3]);
    const std::vector<Check> checks = judge_pairs(facts);
    expect_sentences(checks);
    const auto found = std::ranges::find_if(checks, [&](const Check& check) { return check.verdict != kOk; });
    ASSERT_NE(found, checks.end()) << one.said;
    EXPECT_EQ(found->name, one.name);
    EXPECT_EQ(found->verdict, one.verdict) << found->found;
    EXPECT_NE((found->found + found->change).find(one.said), std::string::npos) << found->found << found->change;
    EXPECT_EQ(std::ranges::count_if(checks, [](const Check& check) { return check.verdict != kOk; }), 1) << one.said;
    EXPECT_NE(pairs_text(facts.pairs).find(one.cell), std::string::npos) << pairs_text(facts.pairs);
    const nlohmann::json row = pairs_json(facts.pairs)[3];
    EXPECT_EQ(row["receiver"], 1);
    EXPECT_EQ(row["sender"], 2);
    EXPECT_EQ(row.contains("problem"), one.cell != "11.00 / 1000" && one.cell != "1.00 / 99") << row;
  }
}

TEST(PairChecks, PathsThatNoShardWasAskedForAreCounted) {
  PairsFacts facts = healthy_pairs();
  facts.left_out = 3;
  const Check check = judge_pairs(facts).back();
  EXPECT_EQ(check.verdict, kNotChecked);
  EXPECT_NE(check.found.find("3 of 9 paths"), std::string::npos) << check.found;
  EXPECT_TRUE(judge_pairs({}).empty());
}

TEST(PairChecks, TheMatrixHasARowForEachReceiver) {
  PairsFacts facts = healthy_pairs();
  facts.pairs.resize(5);  // to 2 from 1 is missing
  facts.pairs[0].transfer.best = 4 * kNsPerMs;
  EXPECT_EQ(pairs_text(facts.pairs),
            "round trip in ms / Mbit/s or more\n" + program::aligned_table({{"to shard", "from 0", "from 1", "from 2"},
                                                                            {"0", "-", "1.00 / 2000", "1.00 / 1000"},
                                                                            {"1", "1.00 / 1000", "-", "1.00 / 1000"},
                                                                            {"2", "1.00 / 1000", "?", "-"}}));
  EXPECT_EQ(pairs_text({}), "");
  std::vector<PairFacts> many;
  for (uint32_t sender = 1; sender < 17; ++sender) many.push_back(healthy_pair(0, sender));
  EXPECT_EQ(pairs_text(many), "--json has the paths between 17 shards\n");
}

TEST(PairReach, AnAnswerIsReadAndAHostileOneIsTrouble) {
  const PairFacts whole =
      read_path_answer(0, 1, R"({"shard": 1, "round_trip_ms": 0.5, "bytes": 1048592, "best_ms": 8.5})");
  EXPECT_EQ(whole.trouble + whole.connect_trouble + whole.transfer.trouble, "");
  EXPECT_EQ(whole.round_trip, kNsPerMs / 2);
  EXPECT_EQ(whole.transfer.bytes, 1'048'592u);
  EXPECT_EQ(whole.transfer.best, 8'500 * kNsPerUs);
  const PairFacts late = read_path_answer(0, 1, R"({"shard": 1, "connect_problem": "refused", "late_ms": 700})");
  EXPECT_EQ(late.connect_trouble, "refused");
  EXPECT_EQ(late.transfer.late, 700 * kNsPerMs);
  EXPECT_EQ(read_path_answer(0, 1, R"({"shard": 1, "transfer_problem": "none"})").transfer.trouble, "none");
  for (const char* answer : {"", "[]", "{}", "null", R"({"shard": 2, "bytes": 1, "best_ms": 1})", R"({"shard": "1"})"})
    EXPECT_NE(read_path_answer(0, 1, answer).trouble, "") << answer;
  for (const char* more : {"", R"(, "bytes": 1)", R"(, "bytes": -1, "best_ms": 1)", R"(, "bytes": 1e9, "best_ms": 1)",
                           R"(, "bytes": 99999999999, "best_ms": 1)", R"(, "bytes": 1, "best_ms": -1)",
                           R"(, "bytes": 1, "best_ms": 1e300)", R"(, "bytes": 1, "best_ms": "1")", R"(, "late_ms": -1)",
                           R"(, "transfer_problem": [])"}) {
    const PairFacts facts = read_path_answer(0, 1, R"({"shard": 1, "round_trip_ms": -1)" + std::string(more) + "}");
    EXPECT_NE(facts.transfer.trouble, "") << more;
    EXPECT_FALSE(facts.round_trip) << more;
  }
}

cluster_status::ShardAnswer answer_of(uint32_t shard, const std::string& http) {
  cluster_status::ShardAnswer answer{.http = http, .said = {}};
  answer.said.shard = shard;
  answer.said.address = "tcp://said:760" + std::to_string(shard);
  answer.said.peers = {{1 - shard, "tcp://peer:760" + std::to_string(1 - shard), 1, true}};
  return answer;
}

std::string places_text(const std::vector<ShardPlace>& places) {
  std::string text;
  for (const ShardPlace& place : places) text += place.subject + "|" + place.address + "|" + place.http + "\n";
  return text;
}

TEST(ClusterPlaces, OneAddressLeadsToAllShards) {
  cluster_status::Answers answers;
  answers.shards = {answer_of(1, "h:7701"), answer_of(0, "h:7700")};
  EXPECT_EQ(places_text(join_places({}, {}, answers)), "shard 0|said:7600|h:7700\nshard 1|said:7601|h:7701\n");
}

TEST(ClusterPlaces, AShardThatIsNamedTwiceIsOnePlaceUnderTheWorkersAddress) {
  cluster_status::Answers answers;
  answers.shards = {answer_of(0, "h:7700"), answer_of(1, "h:7701")};
  EXPECT_EQ(places_text(join_places({}, {"tcp://h:7600", "tcp://h:7601"}, answers)),
            "shard 0|h:7600|h:7700\nshard 1|h:7601|h:7701\n");
  TableFacts table;
  table.shards = {{0, "ready", "t:7600", "h:7700"}, {1, "gone", "t:7601", ""}};
  EXPECT_EQ(places_text(join_places(table, {"tcp://h:7600"}, answers)),
            "shard 0|t:7600|h:7700\nshard 1|said:7601|h:7701\n");
}

TEST(ClusterPlaces, AnotherHostsLoopbackPortIsNotAsked) {
  TableFacts table;
  table.shards = {{0, "ready", "node0:7600", "127.0.0.1:7700"}, {1, "ready", "node1:7600", "", "its own host alone"}};
  cluster_status::Answers answers;
  answers.shards = {answer_of(0, "127.0.0.1:7700")};
  answers.why_missing[1] = "refused";
  std::vector<ShardPlace> places = join_places(table, {}, answers);
  EXPECT_EQ(places_text(places), "shard 0|node0:7600|127.0.0.1:7700\nshard 1|node1:7600|\n");
  const std::vector<Check> checks = judge({.place = places.at(1)});
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].name, "http");
  EXPECT_EQ(checks[0].verdict, kNotChecked);
  EXPECT_EQ(checks[0].found, "its own host alone");
  EXPECT_NE(checks[0].change, "");
  answers.shards.push_back(answer_of(1, "node1:7700"));  // the user named that port
  places = join_places(table, {}, answers);
  EXPECT_EQ(places.at(1).http + places.at(1).http_trouble, "node1:7700");
}

TEST(ClusterPlaces, WhatDoesNotAnswerIsAPlaceToo) {
  cluster_status::Answers answers;
  answers.shards = {answer_of(0, "h:7700")};
  answers.why_missing[1] = "refused";
  answers.unanswered = {{"gone:7700", "refused"}, {"s:7700", "refused"}};
  answers.said = {{"worker:9100", {}}, {"h:7700", {}}};
  EXPECT_EQ(places_text(join_places({}, {"tcp://s:7600"}, answers)),
            "shard 0|said:7600|h:7700\nshard 1|peer:7601|\ns:7600|s:7600|s:7700\ngone:7700||gone:7700\n"
            "worker:9100||worker:9100\n");
}

TEST(Report, HostileTextStaysOneLineAndValidJson) {
  Report report{.software = kOwn, .host = "h", .checks = {}};
  report.checks.push_back({"http", "a\nb", kProblem, "\x1b[2J\xff", "\"}", Measure{1.5, "ms"}});
  const std::string text = report_text(report);
  EXPECT_EQ(std::ranges::count(text, '\n'), 4);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("1 checks: problems 1, warnings 0, not checked 0"), std::string::npos) << text;
  const nlohmann::json json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json["verdict"], "problem");
  EXPECT_EQ(json["checks"].size(), 1u);
  EXPECT_EQ(json["checks"][0]["value"], 1.5);
}

}  // namespace
}  // namespace millrace::doctor
