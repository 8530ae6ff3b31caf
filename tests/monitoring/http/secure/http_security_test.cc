#include "monitoring/http/secure/http_security.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "monitoring/http/http_client.h"
#include "monitoring/http/http_port.h"
#include "monitoring/http/secure/tls.h"

namespace millrace::monitoring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kAnswerMs = 20'000;
constexpr const char* kToken = "a-token-of-this-test-0123456789";

/// Makes certificates by the program openssl, once for all tests.
class HttpSecurityTest : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    std::string pattern = ::testing::TempDir() + "http_security.XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    certify("port", "IP:127.0.0.1");
    certify("other", "IP:127.0.0.1");
    run("req -new -key port.key -subj /CN=port -out port.csr");
    write("names", "subjectAltName=IP:127.0.0.1\n");
    run("x509 -req -in port.csr -signkey port.key -days -1 -extfile names -out expired.pem");
    run("x509 -req -in port.csr -signkey port.key -days 30 -extfile names -out late.pem");
    run("pkey -in port.key -aes256 -passout pass:secret -out locked.key");
    ::chmod(at("locked.key").c_str(), 0600);
    write("token", std::string(kToken) + "\n# of the test\n");
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder_); }

  static std::string at(const std::string& name) { return folder_ + "/" + name; }

  static void write(const std::string& name, const std::string& text, mode_t mode = 0640) {
    std::ofstream(at(name), std::ios::trunc) << text;
    ASSERT_EQ(::chmod(at(name).c_str(), mode), 0);
  }

  static void copy(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(at(from), at(to), std::filesystem::copy_options::overwrite_existing);
  }

  static std::string tls(const std::string& certificate = "port.pem", const std::string& key = "port.key") {
    return at(certificate) + "," + at(key);
  }

  static HttpSecurityOptions port_options() { return {.tls = tls(), .token_file = at("token")}; }

  struct Port {
    std::shared_ptr<HttpProtection> protection;
    std::unique_ptr<HttpPort> port;
    std::string address() const { return port->address(); }
  };

  static Port serve(const HttpSecurityOptions& options, const std::string& status = R"({"shard": 0})",
                    std::function<HttpAnswer(const HttpRequest&)> answer_reader = {}) {
    Port served;
    auto protection = open_http_protection("127.0.0.1:0", options, HttpOptionNames::kFlags, HttpTokens::kNamed);
    EXPECT_TRUE(protection) << (protection ? "" : protection.error().message);
    if (!protection) return served;
    served.protection = std::move(*protection);
    HttpHandlers handlers{.metrics_text = [] { return std::string("millrace_a_total 1\n"); },
                          .unhealthy = []() -> std::optional<std::string> { return "disk of job 7 is full"; },
                          .unready = [] { return std::optional<std::string>(); },
                          .status_json = [status] { return status; },
                          .title = "Millrace shard of job 7"};
    handlers.trace_json = [](std::string_view) -> Result<std::string> { return std::string("{}"); };
    handlers.more_json["/cluster"] = [] { return std::string("{}"); };
    handlers.answer_reader = std::move(answer_reader);
    auto port = HttpPort::start("127.0.0.1:0", "--http", std::move(handlers), served.protection);
    EXPECT_TRUE(port);
    if (port) served.port = std::move(*port);
    return served;
  }

  static Result<HttpReply> get(const std::string& address, const std::string& path, const std::string& ca,
                               const std::string& token) {
    HttpSecurityOptions options;
    if (!ca.empty()) options.ca_file = at(ca);
    if (!token.empty()) options.token_file = at(token);
    const auto caller = open_http_caller(options, {address});
    EXPECT_TRUE(caller) << (caller ? "" : caller.error().message);
    return http_get(address, path, kAnswerMs, caller ? caller->get() : nullptr);
  }

  static std::string why_not(const std::string& address, const std::string& ca) {
    const auto reply = get(address, "/status", ca, "token");
    return reply ? "status " + std::to_string(reply->status) : reply.error().message;
  }

  static std::string why_no_port(const HttpSecurityOptions& options) {
    const auto protection = open_http_protection("127.0.0.1:0", options, HttpOptionNames::kFlags, HttpTokens::kNamed);
    return protection ? "" : protection.error().message;
  }

 private:
  static void run(const std::string& words) {
    const std::string line = "cd '" + folder_ + "' && openssl " + words + " > openssl.log 2>&1";
    ASSERT_EQ(std::system(line.c_str()), 0) << words;  // NOLINT(cert-env33-c,concurrency-mt-unsafe)
  }
  static void certify(const std::string& name, const std::string& of) {
    run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" + name +
        " -addext subjectAltName=" + of + " -keyout " + name + ".key -out " + name + ".pem");
    ::chmod(at(name + ".key").c_str(), 0640);
  }

  static std::string folder_;
};

std::string HttpSecurityTest::folder_;

Descriptor connect_raw(const HttpPort& port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

/// Waits until the port closes the connection. Returns the bytes that it sent.
size_t bytes_until_closed(const Descriptor& socket) {
  size_t count = 0;
  for (;;) {
    pollfd item{socket.number(), POLLIN, 0};
    if (::poll(&item, 1, kAnswerMs) <= 0) {
      ADD_FAILURE() << "the port does not close the connection";
      return count;
    }
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(socket.number(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return count;
    count += static_cast<size_t>(got);
  }
}

/// The first bytes that a client of TLS sends.
std::string client_hello(const std::string& ca_file) {
  std::array<int, 2> pair{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
  const Descriptor near(pair[0]);
  const Descriptor far(pair[1]);
  const auto context = TlsContext::client(ca_file);
  EXPECT_TRUE(context);
  const auto channel = (*context)->open(near, "127.0.0.1");
  EXPECT_EQ(channel->write("x").outcome, ByteChannel::Outcome::kWaitToRead);
  EXPECT_FALSE(channel->is_open());
  std::array<char, 4096> bytes{};
  const ssize_t got = ::recv(far.number(), bytes.data(), bytes.size(), 0);
  return {bytes.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

TEST_F(HttpSecurityTest, EveryPathWithNumbersNeedsTheToken) {
  const Port port = serve(port_options());
  write("wrong", "another-token-of-this-test-0123\n");
  write("longer", std::string(kToken) + "x\n");
  for (const char* path : {"/status", "/metrics", "/trace", "/cluster", "/absent"}) {
    for (const char* token : {"", "wrong", "longer"}) {
      const auto reply = get(port.address(), path, "port.pem", token);
      ASSERT_TRUE(reply) << reply.error().message;
      EXPECT_EQ(reply->status, 401) << path << " with " << token;
      EXPECT_THAT(reply->body, HasSubstr("--http-token-file"));
    }
  }
  const auto reply = get(port.address(), "/status", "port.pem", "token");
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, R"({"shard": 0})");
  EXPECT_EQ(get(port.address(), "/absent", "port.pem", "token")->status, 404);
}

TEST_F(HttpSecurityTest, RefusedRequestsAndHandshakesAreCounted) {
  const Port port = serve(port_options());
  const auto metrics = [&] {
    const auto reply = get(port.address(), "/metrics", "port.pem", "token");
    return reply && reply->status == 200 ? reply->body : std::string();
  };
  EXPECT_THAT(metrics(),
              AllOf(HasSubstr("millrace_a_total 1\n"), HasSubstr("millrace_http_refused_total{reason=\"token\"} 0\n")));
  for (const char* path : {"/status", "/absent", "/healthz", "/"}) get(port.address(), path, "port.pem", "");
  EXPECT_THAT(why_not(port.address(), "other.pem"), Not(HasSubstr("status 200")));
  EXPECT_THAT(metrics(), HasSubstr("millrace_http_refused_total{reason=\"token\"} 2\n"));
  const std::string counted = "millrace_http_refused_total{reason=\"handshake\"} 1\n";
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS;
       !metrics().contains(counted) && monotonic_now_ns() < until;)
    ::poll(nullptr, 0, 10);
  EXPECT_THAT(metrics(), HasSubstr(counted));
}

TEST_F(HttpSecurityTest, ProbesAndThePageNeedNoTokenAndNameNothing) {
  const Port port = serve(port_options());
  const auto health = get(port.address(), "/healthz", "port.pem", "");
  ASSERT_TRUE(health) << health.error().message;
  EXPECT_EQ(health->status, 503);
  EXPECT_THAT(health->body, Not(HasSubstr("job 7")));
  EXPECT_EQ(get(port.address(), "/readyz", "port.pem", "")->status, 200);
  const auto page = get(port.address(), "/", "port.pem", "");
  EXPECT_EQ(page->status, 200);
  EXPECT_THAT(page->body, AllOf(HasSubstr("<title>Millrace</title>"), Not(HasSubstr("job 7"))));
  EXPECT_THAT(get(port.address(), "/healthz", "port.pem", "token")->body, HasSubstr("job 7"));
  EXPECT_THAT(get(port.address(), "/", "port.pem", "token")->body, HasSubstr("job 7"));
}

TEST_F(HttpSecurityTest, ATokenWithoutTlsProtectsAPortOnLoopback) {
  const Port port = serve({.token_file = at("token")});
  EXPECT_EQ(get(port.address(), "/status", "", "")->status, 401);
  EXPECT_EQ(get(port.address(), "/status", "", "token")->status, 200);
}

TEST_F(HttpSecurityTest, AClientSendsNoTokenUnencryptedOverANetwork) {
  const auto reply = get("203.0.113.7:9100", "/status", "", "token");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(reply.error().message, HasSubstr("--http-ca"));
  // An address of a table: any process of this machine may listen there.
  const Port port = serve({.token_file = at("token")});
  const auto caller = open_http_caller({.token_file = at("token")}, {"127.0.0.1:1"});
  ASSERT_TRUE(caller);
  const auto unnamed = http_get(port.address(), "/status", kAnswerMs, caller->get());
  ASSERT_FALSE(unnamed);
  EXPECT_EQ(unnamed.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(HttpSecurityTest, AClientRefusesAServerThatIsNotProven) {
  const Port port = serve(port_options());
  EXPECT_EQ(why_not(port.address(), "port.pem"), "status 200");
  EXPECT_THAT(why_not(port.address(), "other.pem"), AllOf(HasSubstr("certificate is refused"), HasSubstr("--http-ca")));
  const std::string by_name = "localhost:" + std::to_string(port.port->port());
  EXPECT_THAT(why_not(by_name, "port.pem"), HasSubstr("mismatch"));
  const Port expired = serve({.tls = tls("expired.pem"), .token_file = at("token")});
  EXPECT_THAT(why_not(expired.address(), "expired.pem"), HasSubstr("expired"));
}

TEST_F(HttpSecurityTest, HttpAndHttpsNameEachOther) {
  const Port secure = serve(port_options());
  EXPECT_THAT(why_not(secure.address(), ""), HasSubstr("--http-ca"));
  const Port plain = serve({});
  EXPECT_THAT(why_not(plain.address(), "port.pem"), AllOf(HasSubstr("TLS failed"), HasSubstr("--http-tls")));
}

TEST_F(HttpSecurityTest, AnAnswerOfManyRecordsArrivesWhole) {
  const std::string status(size_t{3} << 20, 's');
  const Port port = serve(port_options(), status);
  const auto reply = get(port.address(), "/status", "port.pem", "token");
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_TRUE(reply->body == status) << reply->body.size();
}

TEST_F(HttpSecurityTest, AHandshakeThatBreaksOffEndsItsConnection) {
  const Port port = serve(port_options());
  const std::string hello = client_hello(at("port.pem"));
  ASSERT_GT(hello.size(), 100U);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{6}, size_t{100}, hello.size() - 1, hello.size()}) {
    const Descriptor socket = connect_raw(*port.port);
    ASSERT_EQ(::send(socket.number(), hello.data(), count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
    ::shutdown(socket.number(), SHUT_WR);
    bytes_until_closed(socket);
  }
  for (const size_t flipped : {size_t{0}, size_t{1}, size_t{5}, size_t{10}}) {
    std::string other = hello;
    other[flipped] = static_cast<char>(other[flipped] ^ 0x40);
    const Descriptor socket = connect_raw(*port.port);
    ASSERT_EQ(::send(socket.number(), other.data(), other.size(), MSG_NOSIGNAL), static_cast<ssize_t>(other.size()));
    ::shutdown(socket.number(), SHUT_WR);
    bytes_until_closed(socket);
  }
  EXPECT_EQ(why_not(port.address(), "port.pem"), "status 200");
}

// They take all connections of the port. A new one ends the oldest; the last ones end by the time limit of a request.
TEST_F(HttpSecurityTest, ClientsThatNeverEndTheHandshakeAreClosedAndDelayNoOther) {
  const Port port = serve(port_options());
  const std::string hello = client_hello(at("port.pem"));
  std::vector<Descriptor> silent;
  for (size_t at = 0; at < HttpPort::kConnectionsMax + 4; ++at) {
    silent.push_back(connect_raw(*port.port));
    ASSERT_GT(::send(silent.back().number(), hello.data(), at % 2 == 0 ? hello.size() / 2 : hello.size(), MSG_NOSIGNAL),
              0);
  }
  EXPECT_EQ(why_not(port.address(), "port.pem"), "status 200");
  for (const Descriptor& socket : silent) bytes_until_closed(socket);
}

constexpr const char* kReader = "a-token-of-a-reader-0123456789";

TEST_F(HttpSecurityTest, NamedTokensHaveTheirNames) {
  write("named", std::string(kToken) + "\n# readers\n\nops " + kReader + "\nads.1 " + kReader + "x");
  const Port port = serve({.token_file = at("named")});
  EXPECT_EQ(port.protection->reader_of(kToken), "");
  EXPECT_EQ(port.protection->reader_of(kReader), "ops");
  EXPECT_EQ(port.protection->reader_of(std::string(kReader) + "x"), "ads.1");
  for (const std::string& other :
       {std::string(), std::string("ops"), "ops " + std::string(kReader), std::string(kReader) + "y"})
    EXPECT_EQ(port.protection->reader_of(other), std::nullopt) << other;
  EXPECT_THAT(port.protection->reader_names(), testing::ElementsAre("ops", "ads.1"));
  const auto of_worker = open_http_protection("127.0.0.1:0", {.token_file = at("named")});
  ASSERT_TRUE(of_worker);
  EXPECT_EQ((*of_worker)->reader_of(kToken), "");
  EXPECT_EQ((*of_worker)->reader_of(kReader), std::nullopt) << "its port has one token";
  write("named", std::string(kToken) + "\nops " + kReader + "\nops " + kReader + "y\n");
  EXPECT_TRUE(open_http_protection("127.0.0.1:0", {.token_file = at("named")})) << "further lines are any text there";
  EXPECT_FALSE(port.protection->reload());
  EXPECT_EQ(port.protection->reader_of(std::string(kReader) + "x"), "ads.1") << "the old tokens hold";
  write("named", std::string(kToken) + "\n");
  ASSERT_TRUE(port.protection->reload());
  EXPECT_EQ(port.protection->reader_of(kReader), std::nullopt);
}

TEST_F(HttpSecurityTest, ANamedTokenReadsThePathsOfItsHandlerAlone) {
  write("named", std::string(kToken) + "\nops " + kReader + "\n");
  write("reader", std::string(kReader) + "\n");
  const Port none = serve({.token_file = at("named")});
  const Port port = serve({.token_file = at("named")}, "{}", [](const HttpRequest& request) {
    return HttpAnswer{.body = request.reader + " " + request.path};
  });
  for (const char* path : {"/status", "/metrics", "/trace", "/cluster", "/absent"}) {
    const auto refused = get(none.address(), path, "", "reader");
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 401) << path;
    const auto answer = get(port.address(), path, "", "reader");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->body, std::string("ops ") + path);
    EXPECT_EQ(get(port.address(), path, "", "named")->body.contains("ops"), false) << "the first line";
  }
  const auto health = get(port.address(), "/healthz", "", "reader");
  EXPECT_EQ(health->status, 503);
  EXPECT_THAT(health->body, Not(HasSubstr("job 7")));
  EXPECT_THAT(get(port.address(), "/", "", "reader")->body, Not(HasSubstr("job 7")));
}

TEST_F(HttpSecurityTest, ATokenFileWithAWrongLineIsRefused) {
  const std::string first = std::string(kToken) + "\n";
  const std::string token = kReader;
  const std::vector<std::string> lines = {token,
                                          "ops",
                                          "ops ",
                                          "ops short",
                                          "ops  " + token,
                                          " " + token,
                                          "ops " + token + " ",
                                          "ops\t" + token,
                                          "ops " + token + "\r",
                                          "-ops " + token,
                                          "o/s " + token,
                                          std::string(65, 'n') + " " + token,
                                          token + " ops",
                                          "ops " + std::string(513, 't'),
                                          "ops " + token + "\nads " + token,
                                          "ops " + token + "\nops " + token + "x",
                                          "ops " + std::string(kToken)};
  for (const std::string& line : lines) {
    write("wrong.named", first + line + "\n");
    const std::string why = why_no_port({.token_file = at("wrong.named")});
    EXPECT_THAT(why, AllOf(StartsWith("--http-token-file: "), HasSubstr("line "), HasSubstr("wrong.named"))) << line;
    EXPECT_THAT(why, AllOf(Not(HasSubstr(token)), Not(HasSubstr(kToken)))) << "no part of a secret";
    EXPECT_TRUE(open_http_caller({.token_file = at("wrong.named")})) << "a client reads the first line alone";
  }
  std::string many = first;
  for (int at = 0; many.size() < (64u << 10); ++at)
    many += "n" + std::to_string(at) + " " + token + std::to_string(at) + "\n";
  write("wrong.named", many);
  EXPECT_THAT(why_no_port({.token_file = at("wrong.named")}), HasSubstr("65536 bytes"));
}

TEST_F(HttpSecurityTest, ReloadTakesNewFilesOrLeavesTheOldOnes) {
  copy("port.pem", "now.pem");
  copy("port.key", "now.key");
  copy("token", "now.token");
  const Port port = serve({.tls = tls("now.pem", "now.key"), .token_file = at("now.token")});
  EXPECT_EQ(why_not(port.address(), "port.pem"), "status 200");
  copy("other.pem", "now.pem");
  EXPECT_EQ(why_not(port.address(), "port.pem"), "status 200") << "before the reload";
  const Status mixed = port.protection->reload();
  ASSERT_FALSE(mixed);
  EXPECT_THAT(mixed.error().message, HasSubstr("not the key of the certificate"));
  EXPECT_EQ(why_not(port.address(), "port.pem"), "status 200");
  copy("other.key", "now.key");
  write("now.token", "a-new-token-of-this-test\n");
  ASSERT_TRUE(port.protection->reload());
  EXPECT_THAT(why_not(port.address(), "port.pem"), HasSubstr("certificate is refused"));
  EXPECT_EQ(get(port.address(), "/status", "other.pem", "token")->status, 401);
  EXPECT_EQ(get(port.address(), "/status", "other.pem", "now.token")->status, 200);
  write("now.token", "short\n");
  ASSERT_FALSE(port.protection->reload());
  write("kept", "a-new-token-of-this-test\n");
  EXPECT_EQ(get(port.address(), "/status", "other.pem", "kept")->status, 200);
}

TEST_F(HttpSecurityTest, APortExportsTheEndOfTheCertificatesThatItUses) {
  const std::string name = "millrace_http_certificate_end_time_seconds";
  copy("port.pem", "shown.pem");
  const Port port = serve({.tls = tls("shown.pem")});
  const auto shows = [&](const std::string& ca, const std::string& of) {
    const auto end = read_certificate_end(at(of));
    return get(port.address(), "/metrics", ca, "")
        ->body.contains(name + "{certificate=\"http-tls\"} " + std::to_string(*end) + "\n");
  };
  EXPECT_TRUE(shows("port.pem", "port.pem"));
  copy("late.pem", "shown.pem");
  EXPECT_TRUE(shows("port.pem", "port.pem")) << "before the reload";
  ASSERT_TRUE(port.protection->reload());
  EXPECT_TRUE(shows("late.pem", "late.pem"));
  copy("port.key", "shown.pem");
  ASSERT_FALSE(port.protection->reload());
  EXPECT_TRUE(shows("late.pem", "late.pem")) << "the old one is in use";
  // A chain, whose second certificate has ended.
  copy("late.pem", "shown.pem");
  std::ofstream(at("shown.pem"), std::ios::app) << std::ifstream(at("expired.pem")).rdbuf();
  ASSERT_TRUE(port.protection->reload());
  EXPECT_TRUE(shows("late.pem", "expired.pem"));
  const Port plain = serve({.token_file = at("token")});
  EXPECT_THAT(get(plain.address(), "/metrics", "", "token")->body, Not(HasSubstr(name)));
}

TEST_F(HttpSecurityTest, FilesThatCannotServeAreNamedWithoutTheirSecret) {
  write("open", std::string(kToken) + "\n", 0644);
  write("shared", std::string(kToken) + "\n", 0660);
  write("short", "fifteen-letters\n");
  write("spaced", "a token with spaces in it\n");
  write("large", std::string(5000, 'x'));
  for (const char* token : {"open", "shared", "short", "spaced", "large", "absent", "."}) {
    const std::string why = why_no_port({.tls = tls(), .token_file = at(token)});
    EXPECT_THAT(why, AllOf(StartsWith("--http-token-file: token file "), HasSubstr(at(token)))) << token;
    EXPECT_THAT(why, Not(HasSubstr(kToken)));
    EXPECT_THAT(why, Not(HasSubstr("fifteen")));
  }
  EXPECT_THAT(why_no_port({.token_file = at("open")}), HasSubstr("chmod 600"));
  EXPECT_THAT(why_no_port({.token_file = at("shared")}), HasSubstr("its group may write it"));
  EXPECT_THAT(why_no_port({.token_file = at("short")}), HasSubstr("16 to 512"));
  copy("port.key", "open.key");
  ::chmod(at("open.key").c_str(), 0644);
  EXPECT_THAT(why_no_port({.tls = tls("port.pem", "open.key")}), HasSubstr("chmod 600"));
  EXPECT_THAT(why_no_port({.tls = tls("port.pem", "other.key")}), HasSubstr("not the key of the certificate"));
  EXPECT_THAT(why_no_port({.tls = tls("port.pem", "locked.key")}), HasSubstr("passphrase"));
  EXPECT_THAT(why_no_port({.tls = tls("absent", "port.key")}),
              AllOf(StartsWith("--http-tls: "), HasSubstr("No such file or directory")));
  copy("port.pem", "open.pem");
  ::chmod(at("open.pem").c_str(), 0666);
  EXPECT_THAT(why_no_port({.tls = tls("open.pem", "port.key")}), HasSubstr("all users may write it"));
  EXPECT_FALSE(open_http_caller({.ca_file = at("open.pem")}));
  copy("port.pem", "cut.pem");
  std::filesystem::resize_file(at("cut.pem"), std::filesystem::file_size(at("cut.pem")) - 40);
  EXPECT_THAT(why_no_port({.tls = tls("cut.pem", "port.key")}), HasSubstr("damaged"));
  EXPECT_THAT(why_no_port({.tls = tls("port.key", "port.key")}), HasSubstr("no certificate"));
  for (const std::string& text : {at("port.pem"), at("port.pem") + ",", "," + at("port.key"), tls() + "," + tls()})
    EXPECT_EQ(why_no_port({.tls = text}), "--http-tls: give two files, CERT,KEY");
  EXPECT_FALSE(open_http_caller({.ca_file = at("token")}));
  EXPECT_FALSE(open_http_caller({.ca_file = at("absent")}));
}

TEST_F(HttpSecurityTest, OtherAddressesThanLoopbackNeedBothOrTheWord) {
  const std::string all = "0.0.0.0:7700";
  const HttpSecurityOptions none;
  for (const char* loopback : {"127.0.0.1:7700", "[::1]:7700", "localhost:7700", ""})
    EXPECT_EQ(refuse_http(loopback, none), "") << loopback;
  for (const char* open : {"0.0.0.0:7700", "[::]:7700", "192.0.2.1:7700", "node1:7700"}) {
    EXPECT_THAT(refuse_http(open, none), AllOf(HasSubstr(open), HasSubstr("--http-tls"), HasSubstr("--http-token-file"),
                                               HasSubstr("--http-insecure")));
    EXPECT_NE(refuse_http(open, {.tls = "c,k"}), "") << open;
    EXPECT_NE(refuse_http(open, {.token_file = "t"}), "") << open;
    EXPECT_EQ(refuse_http(open, {.tls = "c,k", .token_file = "t"}), "") << open;
    EXPECT_EQ(refuse_http(open, {.insecure = true}), "") << open;
    EXPECT_EQ(refuse_http(open, {.tls = "c,k", .insecure = true}), "") << open;
    EXPECT_THAT(refuse_http(open, {.token_file = "t", .insecure = true}), HasSubstr("unencrypted")) << open;
  }
  EXPECT_NE(refuse_http(all, {.tls = "c,k", .token_file = "t", .insecure = true}), "");
  EXPECT_NE(refuse_http("", {.tls = "c,k"}), "");
  EXPECT_NE(refuse_http("", {.token_file = "t"}), "");
  EXPECT_NE(refuse_http("", {.insecure = true}), "");
  EXPECT_EQ(refuse_http("", {.ca_file = "a"}), "");
  EXPECT_THAT(refuse_http(all, none, HttpOptionNames::kFields),
              AllOf(HasSubstr("WorkerConfig::http "), HasSubstr("http_tls"), Not(HasSubstr("--"))));
  EXPECT_FALSE(open_http_protection(all, none));
  EXPECT_EQ(*open_http_protection("127.0.0.1:0", none), nullptr);
}

}  // namespace
}  // namespace millrace::monitoring
