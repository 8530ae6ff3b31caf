#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace millrace::testing {

/// A TCP proxy on the loopback that can lose answers of the server: a request then takes effect without its client's
/// knowledge.
///
/// Threads  its own thread serves one connection after another; the methods may be called from any.
class LossyProxy {
 public:
  explicit LossyProxy(uint16_t to_port);
  ~LossyProxy();
  LossyProxy(const LossyProxy&) = delete;
  LossyProxy& operator=(const LossyProxy&) = delete;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  /// Closes the connection in place of each of the next `count` answers.
  void lose_answers(int count) { lose_ = count; }
  int answers_to_lose() const { return lose_.load(); }

 private:
  void run();
  void serve(int client);

  uint16_t to_port_;
  uint16_t port_ = 0;
  int listener_ = -1;
  int stop_[2] = {-1, -1};
  std::atomic<int> lose_ = 0;
  std::thread thread_;
};

}  // namespace millrace::testing
