#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace::testing {

/// Why a test with etcd is skipped.
inline constexpr const char* kNoEtcd = "etcd is not installed (deploy/setup.sh --tests)";

/// One etcd of this test's own, on free ports of the loopback, with its data in a fresh folder. It ends with the
/// object, and with the test's process.
class EtcdServer {
 public:
  /// Returns nullptr where etcd is not installed.
  static std::unique_ptr<EtcdServer> start();
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  /// Returns "127.0.0.1:PORT" for clients.
  std::string endpoint() const;
  uint16_t port() const { return client_port_; }

  /// Ends the process, as a power cut does. Its data stays.
  void kill();
  /// Removes the data of a process that was killed.
  void lose_data();
  /// Copies the data of a process that was killed.
  void keep_data();
  /// Replaces the data of a process that was killed by the copy.
  void go_back();
  /// Starts it again on its ports and data.
  void start_again();

 private:
  EtcdServer();
  std::string folder_;
  uint16_t client_port_ = 0;
  uint16_t peer_port_ = 0;
  pid_t pid_ = -1;
};

/// Returns a port of the loopback that is free now.
uint16_t free_port();

}  // namespace millrace::testing
