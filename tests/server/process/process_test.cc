#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/status/status_json.h"
#include "protocol/address/host_port.h"
#include "protocol/container/container.h"
#include "protocol/job/layout.h"
#include "protocol/table/membership_table.h"
#include "protocol/transport/transport.h"
#include "server/process/process.h"
#include "tests/monitoring/notify_socket.h"
#include "tests/server/process/server_program.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;

/// Sends one GET over a socket of its own; returns the whole answer.
std::string http_get(uint16_t port, const std::string& path) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(::write(socket, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char bytes[4096];
    for (ssize_t got = 0; (got = ::read(socket, bytes, sizeof(bytes))) > 0;)
      answer.append(bytes, static_cast<size_t>(got));
  }
  ::close(socket);
  return answer;
}

protocol::Hello hello_of(uint32_t workers) {
  protocol::Hello hello;
  hello.nonce = 7;
  hello.spec.name = "smoke";
  hello.spec.workers = workers;
  hello.spec.tensors.push_back({.name = "w", .dimension = 100});
  hello.shard_count = 1;
  hello.layout_hash = protocol::layout_hash(protocol::plan_layout(hello.spec, 1));
  return hello;
}

TEST(ServerProgram, ListensServesARoundAndLeavesOrderly) {
  TemporaryFolder folder;
  Program program({"--table", folder.path + "/table.db", "--listen", "tcp://127.0.0.1:0", "--json", "--quiet"});
  const auto line = nlohmann::json::parse(program.read_line(), nullptr, false);
  ASSERT_TRUE(line.is_object());
  EXPECT_EQ(line.value("event", ""), "listening");
  EXPECT_EQ(line.value("http", "-"), "");
  protocol::TransportContext context;
  HandWorker worker(context, line.value("address", ""));
  worker.send({{}, hello_of(1), {}});
  const auto welcome = worker.next<protocol::Welcome>();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_TRUE(std::get<protocol::Welcome>(welcome->body).membership.started);

  Stream gradient = Stream::empty(100);
  gradient.indices = {3, 50};
  gradient.values = {1.5f, -2.0f};
  auto coded = encode_container(gradient.view(), gradient.view(), EncodeOptions{});
  ASSERT_TRUE(coded.has_value());
  const SharedBytes payload = SharedBytes::from(std::move(coded->bytes));
  protocol::Contribution contribution;
  contribution.payload_hash = container_identity(payload.bytes).value();
  worker.send({welcome->header, contribution, payload});
  const auto update = worker.next<protocol::Update>();
  ASSERT_TRUE(update.has_value());
  const auto sum = read_container(update->payload.bytes, {.dimension = 100});
  ASSERT_TRUE(sum.has_value());
  EXPECT_EQ(sum->values, gradient.values);

  program.signal(SIGTERM);
  const auto goodbye = worker.next<protocol::Goodbye>();
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_EQ(std::get<protocol::Goodbye>(goodbye->body).reason, protocol::Goodbye::Reason::kShutdown);
  EXPECT_EQ(program.wait(), 0);
}

TEST(ServerProgram, ConfigurationComesFromAFile) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/shard.toml";
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs(("table = \"" + folder.path + "/table.db\"\nlisten = \"tcp://127.0.0.1:0\"\njson = true\n").c_str(), file);
  std::fclose(file);
  Program program({"--config", path});
  EXPECT_THAT(program.read_line(), HasSubstr("listening"));
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 0);
}

TEST(ServerProgram, WrongArgumentsAndTablesAreRefused) {
  TemporaryFolder folder;
  Program number({"--table", folder.path + "/t.db", "--shard", "2", "--shards", "2"});
  EXPECT_EQ(number.wait(), 2);
  Program table({"--table", folder.path + "/no/such/folder/t.db", "--listen", "tcp://127.0.0.1:0"});
  EXPECT_EQ(table.wait(), 6);
  Program everywhere({"--table", folder.path + "/t.db", "--listen", "tcp://0.0.0.0:0", "--insecure"});
  EXPECT_EQ(everywhere.wait(), 2) << "needs --advertise";
  Program help({"--help"});
  EXPECT_EQ(help.wait(), 0);
}

TEST(ShardProcess, LaterProcessUnderTheSameNumberStopsTheEarlierOne) {
  TemporaryFolder folder;
  Options options;
  options.table.location = folder.path + "/table.db";
  options.listen = "tcp://127.0.0.1:0";
  options.threads = 2;
  options.quiet = true;
  auto first = ShardProcess::start(options);
  ASSERT_TRUE(first.has_value()) << first.error().message;
  Status ended;
  std::thread loop([&] { ended = (*first)->run(); });
  auto second = ShardProcess::start(options);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ((*second)->incarnation(), (*first)->incarnation() + 1);
  loop.join();
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code, ErrorCode::kConflict);
}

Options options_with_http(const TemporaryFolder& folder) {
  Options options;
  options.table.location = folder.path + "/table.db";
  options.listen = "tcp://127.0.0.1:0";
  options.http = "127.0.0.1:0";
  options.quiet = true;
  return options;
}

TEST(ShardProcess, AStartThatFailsLeavesTheProcessThatHasTheNumberAlone) {
  TemporaryFolder folder;
  Options options = options_with_http(folder);
  auto running = ShardProcess::start(options);
  ASSERT_TRUE(running.has_value()) << running.error().message;
  options.http = (*running)->http_address();
  const auto failed = ShardProcess::start(options);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  auto table = protocol::open_sqlite_table(options.table.location);
  ASSERT_TRUE(table.has_value());
  const auto map = (*table)->shard_map();
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->front(), (protocol::ShardEntry{(*running)->address(), (*running)->incarnation()}));
}

TEST(ShardProcess, HttpPortAnswersFromTheLoop) {
  TemporaryFolder folder;
  Options options = options_with_http(folder);
  auto process = ShardProcess::start(options);
  ASSERT_TRUE(process.has_value()) << process.error().message;
  const auto address = protocol::parse_host_port((*process)->http_address());
  ASSERT_TRUE(address.has_value());
  EXPECT_NE(address->port, 0);
  std::thread loop([&] { EXPECT_TRUE((*process)->run().has_value()); });
  EXPECT_THAT(http_get(address->port, "/status"), HasSubstr("\"shard_count\":1"));
  EXPECT_THAT(http_get(address->port, "/healthz"), HasSubstr("200"));
  EXPECT_THAT(http_get(address->port, "/metrics"), HasSubstr("millrace_shard_memory_limit_bytes"));
  EXPECT_THAT(http_get(address->port, "/readyz"), HasSubstr("ready\n"));
  (*process)->request_stop();
  loop.join();
}

/// Sets NOTIFY_SOCKET while it lives: programs that start meanwhile have the service manager of that name.
struct ManagedEnvironment {
  explicit ManagedEnvironment(const std::string& name) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    ::setenv("WATCHDOG_USEC", "200000", 1);
  }
  ~ManagedEnvironment() {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("WATCHDOG_USEC");
  }
};

TEST(ServerProgram, TheShardReportsItsStateToTheServiceManager) {
  TemporaryFolder folder;
  NotifySocket manager(folder.path + "/notify");
  const ManagedEnvironment environment(folder.path + "/notify");
  Program program({"--table", folder.path + "/table.db", "--listen", "127.0.0.1:0", "--quiet"});
  EXPECT_EQ(manager.next_state(), "READY=1\nSTATUS=starting");
  EXPECT_EQ(manager.next_state(), "STATUS=ready");
  EXPECT_EQ(manager.next(), "WATCHDOG=1") << "an idle shard gives signs of life, too";
  EXPECT_EQ(manager.next(), "WATCHDOG=1");
  program.signal(SIGHUP);
  EXPECT_THAT(manager.next_state(), ::testing::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_EQ(manager.next_state(), "READY=1\nSTATUS=ready");
  program.signal(SIGTERM);
  EXPECT_EQ(manager.next_state(), "STOPPING=1\nSTATUS=shutting down");
  EXPECT_EQ(program.wait(), 0);
}

TEST(ServerProgram, ASpareIsStartedButNotReady) {
  TemporaryFolder folder;
  NotifySocket manager(folder.path + "/notify");
  const ManagedEnvironment environment(folder.path + "/notify");
  Program spare({"--spare", "--table", folder.path + "/table.db", "--listen", "127.0.0.1:0", "--quiet"});
  EXPECT_EQ(manager.next_state(), "READY=1\nSTATUS=a spare without a number");
  EXPECT_EQ(manager.next(), "WATCHDOG=1");
  spare.signal(SIGHUP);
  EXPECT_THAT(manager.next_state(), ::testing::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_EQ(manager.next_state(), "READY=1\nSTATUS=a spare without a number");
  EXPECT_EQ(manager.next(), "WATCHDOG=1") << "it ends no spare";
}

TEST(StatusJson, SurvivesNamesThatAreNotText) {
  StatusReport report;
  report.jobs.emplace_back().name = "bad \xff\xfe name";
  const auto json = nlohmann::json::parse(monitoring::status_json(report), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["jobs"].size(), 1u);
}

TEST(StatusJson, AnImbalanceThatIsNoFiniteNumberIsOneAllTheSame) {
  StatusReport report;
  AuditStatus& audit = report.jobs.emplace_back().audit.emplace();
  audit.updates_imbalance = NAN;
  audit.workers.emplace_back().imbalance = INFINITY;
  const auto json = nlohmann::json::parse(monitoring::status_json(report))["jobs"][0]["audit"];
  EXPECT_GT(json["imbalance"], 1e300);
  EXPECT_GT(json["updates_imbalance"], 1e300);
  EXPECT_GT(json["workers"][0]["imbalance"], 1e300);
}

}  // namespace
}  // namespace millrace::server
