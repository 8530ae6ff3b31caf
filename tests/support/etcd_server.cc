#include "tests/support/etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "kernels/base/check.h"

namespace millrace::testing {
namespace {

// As in tests/integration/reserved_ports.py.
constexpr uint16_t kReservedFirst = 20'000;
constexpr uint16_t kReservedCount = 6'000;

bool has_etcd() {
  for (const char* path : {"/usr/bin/etcd", "/usr/local/bin/etcd"}) {
    if (::access(path, X_OK) == 0) return true;
  }
  return false;
}

/// Returns a socket at this port of the loopback; empty: another socket of its kind has the port.
Descriptor socket_at(uint16_t port, int kind) {
  Descriptor socket(::socket(AF_INET, kind | SOCK_CLOEXEC, 0));
  MILLRACE_CHECK(socket);
  const sockaddr_in at{
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  if (::bind(socket.number(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) return {};
  return socket;
}

}  // namespace

ReservedPort::ReservedPort() {
  for (auto offset = static_cast<uint32_t>(::getpid());; ++offset) {  // the next process begins at another one
    number_ = static_cast<uint16_t>(kReservedFirst + offset % kReservedCount);
    holder_ = socket_at(number_, SOCK_DGRAM);
    if (holder_ && socket_at(number_, SOCK_STREAM)) return;
  }
}

EtcdServer::EtcdServer() {
  std::string pattern = ::testing::TempDir() + "millrace-etcd-XXXXXX";
  MILLRACE_CHECK(::mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
}

std::unique_ptr<EtcdServer> EtcdServer::start() {
  if (!has_etcd()) return nullptr;
  std::unique_ptr<EtcdServer> server(new EtcdServer());
  server->start_again();
  return server;
}

std::string EtcdServer::endpoint() const { return "127.0.0.1:" + std::to_string(client_port_.number()); }

void EtcdServer::start_again() {
  const std::string client = "http://" + endpoint();
  const std::string peer = "http://127.0.0.1:" + std::to_string(peer_port_.number());
  const std::string cluster = "one=" + peer;
  const std::string data = folder_ + "/data";
  const std::string log = folder_ + "/log";
  std::vector<const char*> argv = {"etcd",
                                   "--name=one",
                                   "--data-dir",
                                   data.c_str(),
                                   "--listen-client-urls",
                                   client.c_str(),
                                   "--advertise-client-urls",
                                   client.c_str(),
                                   "--listen-peer-urls",
                                   peer.c_str(),
                                   "--initial-advertise-peer-urls",
                                   peer.c_str(),
                                   "--initial-cluster",
                                   cluster.c_str(),
                                   "--logger=zap",
                                   "--log-level=error",
                                   nullptr};
  pid_ = ::fork();
  MILLRACE_CHECK(pid_ >= 0);
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::execvp("etcd", const_cast<char* const*>(argv.data()));
  ::_exit(127);
}

void EtcdServer::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::lose_data() {
  MILLRACE_CHECK(pid_ < 0);
  std::filesystem::remove_all(folder_ + "/data");
}

void EtcdServer::keep_data() {
  MILLRACE_CHECK(pid_ < 0);
  std::filesystem::copy(folder_ + "/data", folder_ + "/kept", std::filesystem::copy_options::recursive);
}

void EtcdServer::go_back() {
  lose_data();
  std::filesystem::rename(folder_ + "/kept", folder_ + "/data");
}

EtcdServer::~EtcdServer() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace millrace::testing
