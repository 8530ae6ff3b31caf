#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/result.h"
#include "protocol/keys/key.h"
#include "protocol/transport/transport.h"

namespace millrace::protocol {

/// Answers ZeroMQ's questions whether a key may connect to the listeners of a context (its protocol ZAP). ZeroMQ asks
/// once the peer has proved that it has the secret of the key, and before the first message.
///
/// Without    a gate, or while answer() is not called, no process with a key gets in.
/// Threads    one at a time.
class KeyGate {
 public:
  /// A process that wants to connect.
  struct Caller {
    PublicKey key;
    std::string address;  ///< without its port
  };
  /// Returns whether the key may connect.
  using Judge = std::function<bool(const Caller&)>;
  /// Bounds the time of one answer(): a flood of handshakes waits for the next one.
  static constexpr int kAnswersPerCall = 64;

  /// Errors  io: no descriptor is left, or the context has a gate already.
  static Result<std::unique_ptr<KeyGate>> open(TransportContext& context);
  ~KeyGate();
  KeyGate(const KeyGate&) = delete;
  KeyGate& operator=(const KeyGate&) = delete;

  /// Answers the questions that are there, without waiting. A question that is malformed is answered with no.
  void answer(const Judge& judge);
  void* handle() const { return handle_; }  ///< for this folder's own files

 private:
  explicit KeyGate(void* handle) : handle_(handle) {}
  bool answer_one(const Judge& judge);
  void* handle_;
};

}  // namespace millrace::protocol
