#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::server {

/// Finds the unfinished message in a connection's bytes (ZMTP 3: a greeting of 64 bytes, then frames). Pure.
///
/// Commands  end no message. ZeroMQ passes some on as messages, or as parts of them.
/// CURVE     the client's two frames of the handshake, HELLO and INITIATE, count as one message. Behind them CURVE
///           hides which frame is a message's last: such a connection has no unfinished message here.
/// Other     ZeroMQ also accepts peers of ZMTP 1 and 2, and Millrace has none. Their bytes count as one message without
///           an end, of the most frames that such bytes can be.
/// Cost      a step for each frame, and for each call.
class FrameCount {
 public:
  struct Unfinished {
    bool continues = true;  ///< the message that was unfinished before has not ended
    // Of these bytes, the part of the message that is unfinished now.
    uint64_t frames = 0;
    uint64_t bytes = 0;
  };
  /// Takes the next bytes.
  Unfinished count(std::span<const std::byte> bytes);

 private:
  enum class Part : uint8_t { kGreeting = 0, kFlags = 1, kLength = 2, kBody = 3, kUnknown = 4, kHidden = 5 };
  void take_greeting(std::byte byte);

  uint64_t rest_ = 0;          ///< of the body; before that, its length
  uint8_t at_ = 0;             ///< bytes of the greeting so far; bytes that the length lacks
  uint8_t before_hidden_ = 0;  ///< frames of the handshake of CURVE that have not ended; 0: another mechanism
  Part part_ = Part::kGreeting;
  bool is_last_ = false;  ///< the frame ends its message
};

}  // namespace millrace::server
