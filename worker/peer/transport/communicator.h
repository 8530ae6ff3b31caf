#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/channel/message_body.h"

namespace millrace::peer {

struct ReceivedMessage {
  uint32_t from = 0;
  PeerMessage message;
};

/// Counts a group's traffic through one rank. Headers are bytes too.
struct Traffic {
  uint64_t messages_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  /// Dropped by the group: of no collective that can have them; 0, or a peer is at fault.
  uint64_t messages_unexpected = 0;
};

/// Says which thread waits.
enum class WaitAs : uint8_t {
  kIdle = 1,        ///< one that has nothing else to do: looks often at first
  kBackground = 2,  ///< one beside a thread that computes, perhaps on the same core: sleeps at once, and never yields
  kBetween = 3,     ///< the same while nothing is under way
};

/// Connects one rank to a fixed set of ranks that exchange messages: MPI, threads of a process, or a simulated network.
///
/// Order    messages from one rank may arrive in any order; each arrives once, whole, or the rank is lost.
/// Threads  one thread at a time, but for wait(), which another's calls may overlap, and wake().
class Communicator : public BodyMemory {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;

  /// Begins to send; never waits for the receiver. Keeps the body alive until it has gone.
  /// to       < size(), not rank().
  /// Errors   unavailable: that rank is lost or has left. receive() may still have messages of it.
  ///          limit_exceeded: a body longer than the transport carries.
  virtual Status send(uint32_t to, PeerMessage message) = 0;

  /// Returns the best memory for a body to send.
  WritableBody take_body(size_t bytes) override { return heap_body(bytes); }

  /// Returns a message that has arrived, if there is one; also advances the sends in flight. Never waits. Its body
  /// begins at a multiple of 8.
  /// Errors   malformed, version_mismatch: from a peer of another build; io: the transport failed.
  virtual Result<std::optional<ReceivedMessage>> receive() = 0;
  /// Returns the rank whose bytes the last error of receive() is about; empty: this rank's transport failed.
  virtual std::optional<uint32_t> culprit() const { return std::nullopt; }

  /// Returns a rank of which bytes have come since it was returned last, or whose machine has taken bytes before a
  /// question (MessageKind::kAsk). For transports that carry long messages in parts.
  virtual std::optional<uint32_t> take_heard() { return std::nullopt; }

  /// Returns a rank that is known to be lost permanently, each once; for transports that can detect it.
  virtual std::optional<uint32_t> take_lost() { return std::nullopt; }
  /// Returns a rank that has left in good order, each once and after its messages; for transports that can detect it.
  virtual std::optional<uint32_t> take_left() { return std::nullopt; }

  /// Waits for something to receive, or wake(), and no longer than `at_most`.
  virtual void wait(TimeNs at_most, WaitAs as) = 0;
  /// Ends a wait() of another thread, or the next one.
  virtual void wake() = 0;

  /// Returns whether its calls yield the core by themselves while they find nothing to do.
  virtual bool yields() const { return false; }

  /// Returns the time of the same clock on every call; only differences count.
  virtual TimeNs now() const = 0;
  virtual Traffic traffic() const = 0;
};

}  // namespace millrace::peer
