#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/address/address_rotation.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"
#include "protocol/keys/key.h"
#include "protocol/messages/frame.h"
#include "protocol/messages/messages.h"
#include "protocol/messages/peer_id.h"
#include "protocol/transport/tcp_counter.h"

/// Messages over ZeroMQ: a Listener (ROUTER) that others connect to, Connections (DEALER) to others, and a Poller that
/// waits for both. One message is two ZeroMQ frames: the envelope, and the payload (empty where there is none). See
/// protocol/wire/transport.md.
namespace millrace::protocol {

/// The keys of a process: CURVE on all its connections.
struct TransportKeys {
  KeyPair own;
  PublicKey server;  ///< of the processes that its connections lead to
};

struct TransportOptions {
  FrameLimits limits;
  uint32_t io_threads = 1;
  uint32_t queue_messages_max = 16'384;     ///< waiting to be sent to one peer; beyond it a send returns kWouldBlock
  uint32_t received_messages_max = 16'384;  ///< of one peer, that wait for the owner; beyond it the peer waits
  /// Bytes that wait to be sent to one peer of a listener. A send beyond it returns kWouldBlock; one message of any
  /// size passes. Messages without a frame of 1 KiB are counted apart, with the same bound.
  uint64_t queue_bytes_max = std::numeric_limits<uint64_t>::max();
  /// The same over all peers. Beyond it a send to a peer for which something waits returns kWouldBlock. Shared payloads
  /// count for each peer. Of small messages an eighth of it may wait, beside 16 KiB for each peer.
  uint64_t queue_total_bytes_max = std::numeric_limits<uint64_t>::max();
  /// Time for which queued messages may still be sent when a socket is closed.
  uint32_t linger_ms = 1'000;
  HostResolver resolver = look_up_host;  ///< names of hosts to addresses, on threads of its own
  /// Of a listener and of all connections; empty: neither authentication nor encryption. A listener needs a KeyGate
  /// beside it.
  std::optional<TransportKeys> keys = {};
};

/// Owns the sockets' I/O threads. Made in main, outlives every Listener and Connection.
class TransportContext {
 public:
  explicit TransportContext(TransportOptions options = {});
  ~TransportContext();
  TransportContext(const TransportContext&) = delete;
  TransportContext& operator=(const TransportContext&) = delete;

  const TransportOptions& options() const;
  void* handle() const;  ///< for this folder's own files
  /// Returns whether the system lets ZeroMQ start its threads. Errors  unsupported: a filter of system calls, named.
  const Status& threads_can_start();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

enum class SendResult : uint8_t {
  kSent = 1,         ///< queued; the payload's owner is kept until it has left
  kWouldBlock = 2,   ///< the peer's queue is full: nothing was queued
  kUnknownPeer = 3,  ///< no such connection any more
  kFailed = 4,       ///< the socket is closed, or there is no memory for the message
};

/// A message from the wire, or why it is none. Its payload is the received frame itself, not a copy.
struct Received {
  PeerId peer;  ///< empty for a Connection
  Result<Message> message;
  uint64_t bytes = 0;  ///< of all frames
  /// Of the connection that it came over, -1: not known. That may be gone, and its number another one's.
  int descriptor = -1;
};

/// Undecoded frames, for measurements of the bare transport.
struct ReceivedFrames {
  PeerId peer;
  std::vector<SharedBytes> frames;
  uint64_t bytes = 0;
  int descriptor = -1;  ///< as Received::descriptor
};

class Socket;

/// Accepts connections. Threads: one at a time.
class Listener {
 public:
  /// Listens on every address of the host that is this machine's.
  ///
  /// address  "tcp://host:port"; port 0 takes a free one. An interface's name is not taken: give its address.
  /// Cost     where the host is a name: the system's resolver, which may take seconds.
  /// Errors   io: the port is in use, the name is not known, or none of its addresses is this machine's. The sentence
  ///          names the remedy.
  static Result<std::unique_ptr<Listener>> bind(TransportContext& context, const std::string& address);
  ~Listener();

  /// Returns the bound address, with the actual port: by number; by name where the name has several addresses here.
  const std::string& address() const { return address_; }

  SendResult send(const PeerId& to, const Message& message);
  /// Sends one message to one of many peers: the caller encodes the envelope for each, and all share the payload.
  SendResult send_frames(const PeerId& to, const SharedBytes& envelope, const SharedBytes& payload);

  /// Returns the bytes that wait to be sent to the peer, without those that the system has; 0 without a bound on them.
  uint64_t queued_bytes(const PeerId& to) const;

  /// Returns the next message, without waiting.
  std::optional<Received> receive();
  std::optional<ReceivedFrames> receive_frames();

  Socket& socket() { return *socket_; }

 private:
  Listener() = default;
  Status bind_host(const HostPort& wanted, const HostResolver& resolver);
  std::unique_ptr<Socket> socket_;
  std::string address_;
  FrameLimits limits_;
};

enum class ConnectionState : uint8_t { kConnecting = 1, kConnected = 2, kDisconnected = 3 };

/// One connection to a Listener. It never reconnects by itself, because messages queued for an old connection must not
/// reach a new one before the Hello. The owner calls reconnect() when its backoff ends. Threads: one at a time.
///
/// Where the host is a name, each attempt goes to one address of it. The first attempt looks the name up. Each
/// reconnect() takes the next address, and the one after the last looks the name up again. The address that worked last
/// is tried first.
class Connection {
 public:
  /// Starts connecting; returns at once. Errors  invalid_argument: not an address. io: no descriptor for a socket.
  static Result<std::unique_ptr<Connection>> connect(TransportContext& context, const std::string& address);
  ~Connection();

  const std::string& address() const { return address_; }

  /// Reads pending connection events; takes memory only where a lookup has ended. kDisconnected stays until
  /// reconnect().
  ConnectionState state();
  /// Returns one sentence: why the name's lookup led to no connection. Empty: it did, or there was none.
  const std::string& trouble() const { return trouble_; }
  /// Returns one sentence: why the keys of both sides led to no connection since the last (re)connect. Empty: they did,
  /// or the cause is another. As of the last state().
  const std::string& key_trouble() const { return key_trouble_; }
  /// Returns a descriptor that is readable once the lookup under way has an answer for state() to take; -1: none is
  /// under way.
  int lookup_descriptor() const { return lookup_ ? lookup_->descriptor() : -1; }

  /// Returns whether a process has accepted the connection since the last (re)connect; it need not speak the protocol.
  /// As of the last state().
  bool accepted() const { return accepted_; }

  /// Drops the old connection with everything queued on it and starts a new one. Errors as connect(); without memory or
  /// descriptors the old one stays.
  Status reconnect();

  /// Closes the sockets with everything queued on them. A lookup continues, and the next address stays the same.
  /// REQUIRES: no poller has the connection. Until reconnect() it has its address, and takes no other call.
  void close();

  /// Says which bytes moved between two looks: those of messages that have not ended, too.
  struct Progress {
    uint64_t received = 0;  ///< bytes
    /// The other end's system took some of a queue of over kSendingBytes. A process that is stopped ends this once the
    /// buffers of its system are full.
    bool sent = false;
  };
  static constexpr uint64_t kSendingBytes = 65'536;
  /// Returns the bytes that moved since the last call, or since the connection was made. None where the system does not
  /// count. As of the last state().
  Progress progress();
  /// Returns the bytes that the other end's system has not taken yet; 0 where the system does not count.
  uint64_t unsent_bytes() const;

  SendResult send(const Message& message);
  SendResult send_frames(const SharedBytes& envelope, const SharedBytes& payload);
  std::optional<Received> receive();
  std::optional<ReceivedFrames> receive_frames();

  Socket& socket() { return *socket_; }
  Socket& monitor() { return *monitor_; }

 private:
  /// A message that waits for the name's address.
  struct Unsent {
    SharedBytes envelope;
    SharedBytes payload;
  };

  Connection() = default;
  Status open_sockets();
  void stop_monitor();
  Status connect_to(const std::string& address);
  void connect_to_host();
  void take_lookup();
  void give_up(const Error& error);
  void note_handshake(uint16_t event, uint32_t reason);
  SendResult keep_unsent(const SharedBytes& envelope, const SharedBytes& payload);
  SendResult hand(const SharedBytes& envelope, const SharedBytes& payload);

  TransportContext* context_ = nullptr;
  std::unique_ptr<Socket> socket_;
  std::unique_ptr<Socket> monitor_;
  std::string address_;
  std::optional<HostPort> name_;  ///< of the address; nothing where that is a number
  AddressRotation rotation_;
  std::unique_ptr<HostLookup> lookup_;
  std::deque<Unsent> unsent_;  ///< while lookup_ is there
  std::string trouble_;
  std::string key_trouble_;
  FrameLimits limits_;
  TcpCounter counter_;
  TcpCounter::Counts counts_;  ///< of the last progress()
  uint64_t handed_ = 0;        ///< bytes of frames that the socket has taken since the last (re)connect
  ConnectionState state_ = ConnectionState::kConnecting;
  bool accepted_ = false;
};

/// Wakes a Poller from another thread. wake() is safe from any thread and from signal handlers.
class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  void wake();
  void clear();
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

class KeyGate;

/// Waits until something can be received. Connections are watched for connection events too.
class Poller {
 public:
  /// Adds an object. It must outlive the poller or be removed; a Connection may be reconnected in between.
  void add(Listener& listener) { listeners_.push_back(&listener); }
  void add(Connection& connection) { connections_.push_back(&connection); }
  void add(KeyGate& gate) { gates_.push_back(&gate); }
  void add(Waker& waker) { wakers_.push_back(&waker); }
  /// Adds a socket of the system's: datagrams beside the messages. The owner closes it, after it was removed.
  void add_descriptor(int descriptor) { descriptors_.push_back(descriptor); }
  void remove_descriptor(int descriptor) { std::erase(descriptors_, descriptor); }
  void remove(Connection& connection) { std::erase(connections_, &connection); }

  /// Waits for at most timeout_ms (-1: no limit). True: something is ready. A waker that fired is cleared.
  bool wait(int timeout_ms);
  /// Waits for descriptors and wakers alone: ZeroMQ takes several microseconds to find no message. True:
  /// something is ready. A waker that fired is cleared.
  bool wait_for_descriptors(int timeout_ms);

 private:
  std::vector<Listener*> listeners_;
  std::vector<Connection*> connections_;
  std::vector<KeyGate*> gates_;
  std::vector<Waker*> wakers_;
  std::vector<int> descriptors_;
};

}  // namespace millrace::protocol
