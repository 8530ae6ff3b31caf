#pragma once

#include <zmq.h>

#include <cstring>

namespace millrace::protocol {

/// A frame of ZeroMQ's, empty until it is filled or received.
struct ZmqFrame {
  zmq_msg_t message;
  ZmqFrame() { zmq_msg_init(&message); }
  ~ZmqFrame() { zmq_msg_close(&message); }
  ZmqFrame(const ZmqFrame&) = delete;
  ZmqFrame& operator=(const ZmqFrame&) = delete;

  /// Copies the bytes. False: there is no memory for them; up to 33 bytes need none.
  bool copy(const void* bytes, size_t size) {
    zmq_msg_close(&message);
    if (zmq_msg_init_size(&message, size) != 0) {
      zmq_msg_init(&message);
      return false;
    }
    if (size != 0) std::memcpy(zmq_msg_data(&message), bytes, size);
    return true;
  }
};

}  // namespace millrace::protocol
