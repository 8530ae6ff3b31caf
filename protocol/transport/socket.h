#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "kernels/base/result.h"
#include "protocol/keys/key.h"
#include "protocol/transport/transport.h"

namespace millrace::protocol {

/// Bytes that wait to be sent.
struct QueuedBytes {
  std::atomic<uint64_t> to_peer{0};
  std::shared_ptr<std::atomic<uint64_t>> total;  ///< to all peers of the socket

  void add(uint64_t bytes) {
    to_peer.fetch_add(bytes, std::memory_order_relaxed);
    total->fetch_add(bytes, std::memory_order_relaxed);
  }
  void subtract(uint64_t bytes) {
    to_peer.fetch_sub(bytes, std::memory_order_relaxed);
    total->fetch_sub(bytes, std::memory_order_relaxed);
  }
  /// always  bytes below which the peer has room in any case.
  bool has_room(uint64_t always, uint64_t to_peer_max, uint64_t total_max) const {
    const uint64_t waiting = to_peer.load(std::memory_order_relaxed);
    return waiting < always || (waiting < to_peer_max && total->load(std::memory_order_relaxed) < total_max);
  }
};

/// Bytes that wait to be sent to one peer. Small messages are apart: many answers that strangers cause, and do not
/// read, leave the room of updates as it is.
struct QueuedToPeer {
  QueuedBytes large;  ///< frames that are shared for their size
  QueuedBytes small;  ///< messages with a small envelope, without their shared payload
};

/// A ZeroMQ socket with its options set; the one place that calls the library for sending and receiving. For this
/// folder's own files.
class Socket {
 public:
  /// Whether messages begin with the routing identity of their sender: those of a ROUTER.
  enum class Routing : uint8_t { kNone = 0, kRouted = 1 };
  /// One multipart message.
  struct Frames {
    ReceivedFrames frames;
    bool too_many = false;  ///< more than two after the routing identity; those are dropped
  };
  /// An event of a monitor.
  struct Event {
    uint16_t kind = 0;   ///< 0: it cannot be read
    uint32_t value = 0;  ///< of failed handshakes: the reason
  };

  /// type    ZMQ_ROUTER, ZMQ_DEALER, ...
  /// Errors  io: the process has no descriptor for it. unsupported: threads_can_start().
  static Result<std::unique_ptr<Socket>> open(TransportContext& context, int type);
  static std::unexpected<Error> not_opened();
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void set(int option, int value);
  /// Listens under the own key, and asks the context's KeyGate about each key that connects. Without a gate no key is
  /// accepted. Errors  unsupported: this libzmq has no CURVE.
  Status listen_with(const TransportKeys& keys);
  /// Connects under the own key, to a process that proves the server's. Errors  as listen_with().
  Status connect_with(const TransportKeys& keys);
  void* handle() const { return handle_; }
  void close();

  /// Queues all frames or none. `to` is left out where the socket has one peer.
  SendResult send_all(const PeerId* to, const SharedBytes& envelope, const SharedBytes& payload);
  /// Returns the bytes that wait to be sent to the peer. 0: none, or they are not counted.
  uint64_t queued_bytes(const PeerId& peer) const;
  /// Reads one whole multipart message; frames beyond two (after the routing identity) are read and dropped. Throws
  /// std::bad_alloc with that message read and dropped: its rest must not be taken for the next one.
  std::optional<Frames> receive_all(Routing routing);
  std::optional<Received> receive_message(Routing routing, const FrameLimits& limits);
  /// Returns a monitor's next event. Takes no memory: if an event were read and lost, no caller would make its broken
  /// connection again.
  std::optional<Event> receive_event();

 private:
  static constexpr size_t kSweepQueuedFrom = 64;
  Socket() = default;
  std::optional<Frames> receive_frames(Routing routing);
  /// Shared with the frames: a thread of ZeroMQ ends those.
  using Queued = std::shared_ptr<QueuedToPeer>;
  Queued queued_to(const PeerId& peer);
  bool has_room(const QueuedToPeer& queued) const;
  void* handle_ = nullptr;
  uint64_t queue_bytes_max_ = 0;
  uint64_t queue_total_bytes_max_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> large_total_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::shared_ptr<std::atomic<uint64_t>> small_total_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::unordered_map<std::string, Queued> queued_;  ///< of peers that were sent something
  size_t sweep_queued_at_ = kSweepQueuedFrom;
  bool has_keys_ = false;  ///< listen_with(): peers have proved theirs
};

}  // namespace millrace::protocol
