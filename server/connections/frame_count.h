#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::server {

/// Finds the unfinished message in a connection's bytes (ZMTP 3: a greeting of 64 bytes, then frames). Pure.
///
/// Commands  end no message. ZeroMQ passes some on as messages, or as parts of them.
/// CURVE     the client's two frames of the handshake, HELLO and INITIATE, count as one message. Behind them CURVE
///           hides which frame is a message's last: all further frames count as one message that does not end.
/// Refused   clients that choose their routing identity, by READY's property Identity or by ZMTP 1 or 2; Millrace has
///           none such. ZeroMQ aborts the process where it draws an identity that a client has chosen. CURVE hides it.
/// Cost      a step for each frame, and for each call.
class FrameCount {
 public:
  struct Unfinished {
    bool continues = true;  ///< the message that was unfinished before has not ended
    // Of these bytes, the part of the message that is unfinished now.
    uint64_t frames = 0;
    uint64_t bytes = 0;
    bool is_refused = false;  ///< ZeroMQ must not see these bytes
    bool hides_ends = false;  ///< the frames are behind the handshake of CURVE
  };
  /// Takes the next bytes. Once refused, further bytes change nothing.
  Unfinished count(std::span<const std::byte> bytes);

 private:
  enum class Part : uint8_t { kGreeting = 0, kFlags = 1, kLength = 2, kBody = 3, kRefused = 4 };
  /// The longest READY that is accepted: that of Millrace's programs has 41 bytes.
  static constexpr uint8_t kReadyBytesMax = 128;
  void take_greeting(std::byte byte);
  void take_body(std::span<const std::byte> bytes);
  void end_frame(Unfinished& unfinished);

  uint64_t rest_ = 0;          ///< of the body; before that, its length
  uint8_t at_ = 0;             ///< bytes of the greeting so far; bytes that the length lacks
  uint8_t before_hidden_ = 0;  ///< frames of the handshake of CURVE that have not ended; 0: another mechanism
  Part part_ = Part::kGreeting;
  bool hides_ends_ = false;    ///< behind the handshake of CURVE
  bool is_last_ = false;       ///< the frame ends its message
  bool is_ready_due_ = false;  ///< the frame must be READY
  uint8_t ready_bytes_ = 0;
  std::array<char, kReadyBytesMax> ready_ = {};
};

}  // namespace millrace::server
