#include "protocol/transport/socket.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/transport/zmq_frame.h"

namespace millrace::protocol {
namespace {

// Below this a copy costs less than the bookkeeping of a shared owner.
constexpr size_t kCopyBelowBytes = 1024;
constexpr size_t kFramesMax = 2;
/// Memory of a message that waits to be sent, beside the bytes of its frames: two places in ZeroMQ's queue, and records
/// of owners.
constexpr uint64_t kWaitingMessageBytes = 512;
/// Bytes of small messages that may wait for a peer in any case, and the part of the bound of all peers for the others.
constexpr uint64_t kSmallAlways = 16 << 10;
constexpr uint64_t kSmallPart = 8;
constexpr int kKeepaliveIdleS = 30;
/// The domain of our questions to the KeyGate. Its name means nothing; without one ZeroMQ would not ask.
constexpr std::string_view kZapDomain = "millrace";
/// ZMQ_ZAP_ENFORCE_DOMAIN: no key is accepted while nothing answers the questions. The library takes it in all builds,
/// and its header shows the name in some alone.
constexpr int kZapEnforceDomain = 93;

// Keeps a payload alive until ZeroMQ has sent it. An I/O thread releases it; that thread's queue orders the release
// after the sending thread's writes. `handed` expresses the same order where tools can see it (the library is not built
// for ThreadSanitizer).
struct FrameOwner {
  std::shared_ptr<const void> owner;
  std::shared_ptr<QueuedBytes> queued;  ///< of its peer; nullptr: not counted
  uint64_t bytes = 0;
  std::atomic<bool> handed{false};

  ~FrameOwner() {
    if (queued) queued->subtract(bytes);
  }
};

void release_owner(void* /*data*/, void* hint) {
  auto* held = static_cast<FrameOwner*>(hint);
  MILLRACE_CHECK(held->handed.load(std::memory_order_acquire));
  delete held;
}

/// Returns the bytes of a received frame, which lives as long as a reader of them.
SharedBytes as_shared(std::shared_ptr<ZmqFrame> frame) {
  const auto* data = static_cast<const uint8_t*>(zmq_msg_data(&frame->message));
  const size_t size = zmq_msg_size(&frame->message);
  return {std::move(frame), ByteSpan(data, size)};
}

bool is_copied(const SharedBytes& bytes) { return bytes.bytes.size() < kCopyBelowBytes || !bytes.owner; }

/// A frame on its way out. `queued` is its peer's; nullptr: its bytes are not counted. False: there is no memory.
struct OutgoingFrame : ZmqFrame {
  bool fill(const SharedBytes& bytes, const std::shared_ptr<QueuedToPeer>& queued) {
    if (is_copied(bytes)) return copy(bytes.bytes.data(), bytes.bytes.size());
    return share(bytes, queued ? std::shared_ptr<QueuedBytes>(queued, &queued->large) : nullptr, bytes.bytes.size());
  }
  /// Counts a small envelope for its message. It is shared then: ZeroMQ reports the end of shared frames alone.
  bool fill_envelope(const SharedBytes& envelope, const SharedBytes& payload,
                     const std::shared_ptr<QueuedToPeer>& queued) {
    const ByteSpan bytes = envelope.bytes;
    if (!queued || bytes.size() >= kCopyBelowBytes) return fill(envelope, queued);
    const uint64_t counted = kWaitingMessageBytes + bytes.size() + (is_copied(payload) ? payload.bytes.size() : 0);
    return share(envelope.owner ? envelope : SharedBytes::from(ByteBuffer(bytes.begin(), bytes.end())),
                 std::shared_ptr<QueuedBytes>(queued, &queued->small), counted);
  }

 private:
  bool share(const SharedBytes& bytes, std::shared_ptr<QueuedBytes> queued, uint64_t counted) {
    auto* held = new (std::nothrow) FrameOwner{bytes.owner, std::move(queued), counted};
    if (held == nullptr) return false;
    if (held->queued) held->queued->add(counted);
    held->handed.store(true, std::memory_order_release);
    // ZeroMQ's interface is not const-correct; it only reads the sent bytes.
    auto* data = const_cast<uint8_t*>(bytes.bytes.data());
    if (zmq_msg_init_data(&message, data, bytes.bytes.size(), release_owner, held) == 0) return true;
    zmq_msg_init(&message);
    delete held;
    return false;
  }
};

/// Reads the remaining frames of the message at which its socket is, unless disarmed. Takes no memory.
class RestOfMessage {
 public:
  explicit RestOfMessage(void* socket) : socket_(socket) {}
  ~RestOfMessage() {
    int more = 0;
    size_t size = sizeof(more);
    while (socket_ != nullptr && zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &size) == 0 && more != 0) {
      zmq_msg_t frame;
      zmq_msg_init(&frame);
      const bool read = zmq_msg_recv(&frame, socket_, ZMQ_DONTWAIT) >= 0 || zmq_errno() == EINTR;
      zmq_msg_close(&frame);
      if (!read) return;
    }
  }
  RestOfMessage(const RestOfMessage&) = delete;
  RestOfMessage& operator=(const RestOfMessage&) = delete;
  void disarm() { socket_ = nullptr; }

 private:
  void* socket_;
};

SendResult send_one(void* socket, OutgoingFrame& frame, int flags) {
  for (;;) {
    if (zmq_msg_send(&frame.message, socket, flags | ZMQ_DONTWAIT) >= 0) return SendResult::kSent;
    const int error = zmq_errno();
    if (error == EINTR) continue;
    if (error == EAGAIN) return SendResult::kWouldBlock;
    return error == EHOSTUNREACH ? SendResult::kUnknownPeer : SendResult::kFailed;
  }
}

/// Returns the key that the KeyGate has accepted for the sender of a frame. REQUIRES: the socket has keys. Without
/// them a peer can give this property any value.
PublicKey verified_key(const zmq_msg_t& frame) {
  const char* user = zmq_msg_gets(&frame, "User-Id");
  return user == nullptr ? PublicKey{} : key_of_digits(user).value_or(PublicKey{});
}

/// Fills in the other end's address. The frame of a routing identity lacks it at times, the frames behind it have it.
void note_address(const zmq_msg_t& frame, PeerId& peer) {
  constexpr std::string_view kMapped = "::ffff:";
  const char* address = zmq_msg_gets(&frame, "Peer-Address");
  if (address == nullptr) return;
  std::string_view text = address;
  if (text.starts_with(kMapped)) text.remove_prefix(kMapped.size());
  peer.address = text;
}

Status has_curve() {
  if (zmq_has("curve") != 0) return {};
  return fail(ErrorCode::kUnsupported, "this libzmq was built without CURVE: keys cannot be used with it");
}

}  // namespace

Result<std::unique_ptr<Socket>> Socket::open(TransportContext& context, int type) {
  if (const Status& can = context.threads_can_start(); !can) return std::unexpected(can.error());
  std::unique_ptr<Socket> socket(new Socket);  // first: the owner of the handle exists before it
  socket->handle_ = zmq_socket(context.handle(), type);
  if (socket->handle_ == nullptr) return not_opened();
  const auto& options = context.options();
  socket->set(ZMQ_LINGER, static_cast<int>(options.linger_ms));
  socket->set(ZMQ_SNDHWM, static_cast<int>(options.queue_messages_max));
  socket->set(ZMQ_RCVHWM, static_cast<int>(options.received_messages_max));
  socket->queue_bytes_max_ = options.queue_bytes_max;
  socket->queue_total_bytes_max_ = options.queue_total_bytes_max;
  const auto frame_max =
      static_cast<int64_t>(std::max(options.limits.payload_bytes_max, options.limits.envelope_bytes_max));
  zmq_setsockopt(socket->handle_, ZMQ_MAXMSGSIZE, &frame_max, sizeof(frame_max));
  socket->set(ZMQ_TCP_KEEPALIVE, 1);
  socket->set(ZMQ_TCP_KEEPALIVE_IDLE, kKeepaliveIdleS);
  return socket;
}

std::unexpected<Error> Socket::not_opened() {
  return fail(ErrorCode::kIo, std::string("cannot open a socket: ") + zmq_strerror(zmq_errno()) +
                                  "; raise the limit of open files (ulimit -n), or close what holds them");
}

void Socket::set(int option, int value) {
  MILLRACE_CHECK(zmq_setsockopt(handle_, option, &value, sizeof(value)) == 0, option, value);
}

Status Socket::listen_with(const TransportKeys& keys) {
  if (const Status can = has_curve(); !can) return can;
  has_keys_ = true;
  set(ZMQ_CURVE_SERVER, 1);
  const auto& secret = keys.own.secret.bytes();
  MILLRACE_CHECK(zmq_setsockopt(handle_, ZMQ_CURVE_SECRETKEY, secret.data(), secret.size()) == 0);
  MILLRACE_CHECK(zmq_setsockopt(handle_, ZMQ_ZAP_DOMAIN, kZapDomain.data(), kZapDomain.size()) == 0);
  const int on = 1;
  if (zmq_setsockopt(handle_, kZapEnforceDomain, &on, sizeof(on)) == 0) return {};
  return fail(ErrorCode::kUnsupported, "this libzmq cannot refuse every key that nothing has judged: it is too old");
}

Status Socket::connect_with(const TransportKeys& keys) {
  if (const Status can = has_curve(); !can) return can;
  const auto& own = keys.own.public_key.bytes;
  const auto& secret = keys.own.secret.bytes();
  const auto& server = keys.server.bytes;
  MILLRACE_CHECK(zmq_setsockopt(handle_, ZMQ_CURVE_SERVERKEY, server.data(), server.size()) == 0);
  MILLRACE_CHECK(zmq_setsockopt(handle_, ZMQ_CURVE_PUBLICKEY, own.data(), own.size()) == 0);
  MILLRACE_CHECK(zmq_setsockopt(handle_, ZMQ_CURVE_SECRETKEY, secret.data(), secret.size()) == 0);
  return {};
}

void Socket::close() {
  if (handle_ != nullptr) zmq_close(handle_);
  handle_ = nullptr;
}

Socket::Queued Socket::queued_to(const PeerId& peer) {
  const auto known = queued_.find(peer.bytes);
  if (known != queued_.end()) return known->second;
  if (queued_.size() >= sweep_queued_at_) {
    std::erase_if(queued_, [](const auto& entry) {
      return entry.second->large.to_peer.load(std::memory_order_relaxed) == 0 &&
             entry.second->small.to_peer.load(std::memory_order_relaxed) == 0;
    });
    sweep_queued_at_ = std::max(kSweepQueuedFrom, 2 * queued_.size());
  }
  auto queued = std::make_shared<QueuedToPeer>();
  queued->large.total = large_total_;
  queued->small.total = small_total_;
  return queued_.emplace(peer.bytes, std::move(queued)).first->second;
}

uint64_t Socket::queued_bytes(const PeerId& peer) const {
  const auto known = queued_.find(peer.bytes);
  if (known == queued_.end()) return 0;
  const QueuedToPeer& queued = *known->second;
  return queued.large.to_peer.load(std::memory_order_relaxed) + queued.small.to_peer.load(std::memory_order_relaxed);
}

bool Socket::has_room(const QueuedToPeer& queued) const {
  constexpr uint64_t kOneMessage = 1;  // of any size, where nothing waits
  return queued.large.has_room(kOneMessage, queue_bytes_max_, queue_total_bytes_max_) &&
         queued.small.has_room(kSmallAlways, queue_bytes_max_, queue_total_bytes_max_ / kSmallPart);
}

// Either all frames are queued or none: ZeroMQ decides at the first one, and the rest of a multipart message follows.
// All frames are made before the first one is sent. One that could not be made would leave half a message, and the
// next message would be its end.
SendResult Socket::send_all(const PeerId* to, const SharedBytes& envelope, const SharedBytes& payload) {
  if (handle_ == nullptr) return SendResult::kFailed;
  OutgoingFrame identity;
  OutgoingFrame first;
  OutgoingFrame second;
  const Queued queued =
      to != nullptr && queue_bytes_max_ != std::numeric_limits<uint64_t>::max() ? queued_to(*to) : nullptr;
  if (queued && !has_room(*queued)) return SendResult::kWouldBlock;
  if (to != nullptr && !identity.copy(to->bytes.data(), to->bytes.size())) return SendResult::kFailed;
  if (!first.fill_envelope(envelope, payload, queued) || !second.fill(payload, queued)) return SendResult::kFailed;
  if (to != nullptr) {
    if (const auto result = send_one(handle_, identity, ZMQ_SNDMORE); result != SendResult::kSent) return result;
  }
  if (const auto result = send_one(handle_, first, ZMQ_SNDMORE); result != SendResult::kSent) return result;
  return send_one(handle_, second, 0);
}

std::optional<Socket::Frames> Socket::receive_all(Routing routing) {
  RestOfMessage rest(handle_);
  auto received = receive_frames(routing);
  rest.disarm();
  return received;
}

std::optional<Socket::Frames> Socket::receive_frames(Routing routing) {
  Frames all;
  ReceivedFrames& received = all.frames;
  bool is_identity = routing == Routing::kRouted;
  for (bool more = true; more; is_identity = false) {
    auto frame = std::make_shared<ZmqFrame>();
    while (zmq_msg_recv(&frame->message, handle_, ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() != EINTR) return std::nullopt;  // between messages only: a multipart message arrives as a whole
    }
    more = zmq_msg_more(&frame->message) != 0;
    received.bytes += zmq_msg_size(&frame->message);
    if (is_identity) {
      received.peer.bytes.assign(static_cast<const char*>(zmq_msg_data(&frame->message)),
                                 zmq_msg_size(&frame->message));
      continue;
    }
    if (routing == Routing::kRouted && received.frames.empty()) {
      if (has_keys_) received.peer.key = verified_key(frame->message);
      note_address(frame->message, received.peer);
      received.descriptor = zmq_msg_get(&frame->message, ZMQ_SRCFD);
    }
    if (received.frames.size() < kFramesMax) {
      received.frames.push_back(as_shared(std::move(frame)));
    } else {
      all.too_many = true;
    }
  }
  return all;
}

std::optional<Socket::Event> Socket::receive_event() {
  const RestOfMessage rest(handle_);  // the address
  ZmqFrame frame;
  while (zmq_msg_recv(&frame.message, handle_, ZMQ_DONTWAIT) < 0) {
    if (zmq_errno() != EINTR) return std::nullopt;
  }
  Event event;
  if (zmq_msg_size(&frame.message) < sizeof(event.kind) + sizeof(event.value)) return event;
  const auto* bytes = static_cast<const uint8_t*>(zmq_msg_data(&frame.message));
  std::memcpy(&event.kind, bytes, sizeof(event.kind));
  std::memcpy(&event.value, bytes + sizeof(event.kind), sizeof(event.value));
  return event;
}

std::optional<Received> Socket::receive_message(Routing routing, const FrameLimits& limits) {
  auto all = receive_all(routing);
  if (!all) return std::nullopt;
  ReceivedFrames& frames = all->frames;
  Received received{std::move(frames.peer), fail(ErrorCode::kMalformed, "not two frames: envelope and payload"),
                    frames.bytes, frames.descriptor};
  if (!all->too_many && frames.frames.size() == kFramesMax) {
    received.message = decode_message(frames.frames[0].bytes, std::move(frames.frames[1]), limits);
  }
  return received;
}

}  // namespace millrace::protocol
