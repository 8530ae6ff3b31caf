#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/descriptor.h"

namespace millrace::testing {

/// Why a test with etcd is skipped.
inline constexpr const char* kNoEtcd = "etcd is not installed (deploy/setup.sh --tests)";

/// A TCP port of the loopback that no other test takes during this object's life. It is below the ports that Linux
/// takes for port 0. So no other process takes it by chance, not even while the program that listens there is down.
class ReservedPort {
 public:
  ReservedPort();
  uint16_t number() const { return number_; }

 private:
  uint16_t number_ = 0;
  Descriptor holder_;  ///< a UDP socket of this number: in the way of other tests, and not of the program
};

/// One etcd of this test's own, on ports of its own, with its data in a fresh folder. It ends with the object, and with
/// the test's process.
class EtcdServer {
 public:
  /// Returns nullptr where etcd is not installed.
  static std::unique_ptr<EtcdServer> start();
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  /// Returns "127.0.0.1:PORT" for clients.
  std::string endpoint() const;
  uint16_t port() const { return client_port_.number(); }

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
  ReservedPort client_port_;
  ReservedPort peer_port_;
  pid_t pid_ = -1;
};

}  // namespace millrace::testing
