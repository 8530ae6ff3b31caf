#pragma once

#include <array>
#include <coroutine>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "kernels/base/clock.h"
#include "worker/peer/channel/message.h"
#include "worker/peer/channel/message_body.h"

namespace millrace::peer {

/// Holds the body of a message, and its form.
struct Packet {
  BodyForm form = BodyForm::kNone;
  SharedBytes body;
};

/// Takes the messages that a collective's channel sends, and the work that it charges.
class ChannelSink {
 public:
  virtual BodyMemory& body_memory() = 0;
  virtual void send_data(uint32_t collective, uint32_t to, uint32_t tag, Packet packet) = 0;
  virtual void charge(TimeNs work) = 0;
  virtual TimeNs now() const = 0;
  virtual TimeNs clock() const = 0;

 protected:
  ~ChannelSink() = default;
};

/// Gives the code of a collective its view of the group: its rank, and messages to and from the others. An algorithm is
/// a coroutine that sends and awaits. It knows no thread and no socket, so that it is the same over MPI, among threads
/// and simulated. When a rank is lost, or a time-out passes, the group destroys the suspended collective. So an await
/// never returns without a message.
///
class Channel {
 public:
  /// REQUIRES: rank < size.
  Channel(uint32_t collective, uint32_t rank, uint32_t size, ChannelSink& sink)
      : collective_(collective), rank_(rank), size_(size), sink_(&sink) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  uint32_t collective() const { return collective_; }  ///< its number: the same on all ranks
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }

  /// Sends a packet; never waits. tag: at most one message of this collective from here to `to` has it.
  void send(uint32_t to, uint32_t tag, Packet packet) { sink_->send_data(collective_, to, tag, std::move(packet)); }

  /// Returns the memory for bodies to send: the best that the transport has.
  BodyMemory& bodies() { return sink_->body_memory(); }

  class Receive {
   public:
    Receive(Channel& channel, uint64_t key) : channel_(channel), key_(key) {}
    bool await_ready() {
      if (channel_.arrived_.empty()) return false;
      const auto at = channel_.arrived_.find(key_);
      if (at == channel_.arrived_.end()) return false;
      packet_ = std::move(at->second);
      channel_.arrived_.erase(at);
      return true;
    }
    void await_suspend(std::coroutine_handle<> waiting) {
      channel_.waiting_ = Waiting{key_, waiting, channel_.sink_->now()};
      channel_.packet_ = &packet_;
    }
    Packet await_resume() { return std::move(packet_); }

   private:
    Channel& channel_;
    uint64_t key_;
    Packet packet_;
  };
  /// Returns an awaitable: co_await gives the message of `from` with this tag. One at a time.
  Receive receive(uint32_t from, uint32_t tag) { return Receive(*this, key_of(from, tag)); }

  /// Returns the time of this rank, for measurements. It must not affect the messages that an algorithm sends, unless
  /// all ranks agree on the effect.
  TimeNs clock() const { return sink_->clock(); }

  /// Charges the time of a computation, for simulated time; measures nothing.
  void charge(TimeNs work) { sink_->charge(work); }

  /// Notes the memory that the code will read when the next message comes. A caller with thousands of ranks in one
  /// process can prefetch it (PeerCore::prefetch_code). Null: no memory. The memory stays alive while the collective
  /// waits.
  void will_look_at(const void* one, const void* other) { next_looks_ = {one, other}; }

  // For the group that runs the collective.

  const std::array<const void*, 2>& next_looks() const { return next_looks_; }

  struct Waiting {
    uint64_t key = 0;
    std::coroutine_handle<> who;
    TimeNs since = 0;
    uint32_t from() const { return static_cast<uint32_t>(key >> 32); }
    uint32_t tag() const { return static_cast<uint32_t>(key); }
  };
  const std::optional<Waiting>& waiting() const { return waiting_; }
  /// Resumes the collective that awaits this message, without storing the message first. False: a second message with
  /// this tag.
  bool arrive(uint32_t from, uint32_t tag, Packet packet) {
    const uint64_t key = key_of(from, tag);
    if (!waiting_ || waiting_->key != key) return arrived_.emplace(key, std::move(packet)).second;
    *packet_ = std::move(packet);
    std::exchange(waiting_, std::nullopt)->who.resume();
    return true;
  }

 private:
  static uint64_t key_of(uint32_t from, uint32_t tag) { return uint64_t{from} << 32 | tag; }

  uint32_t collective_;
  uint32_t rank_;
  uint32_t size_;
  ChannelSink* sink_;
  std::unordered_map<uint64_t, Packet> arrived_;
  std::optional<Waiting> waiting_;
  Packet* packet_ = nullptr;  ///< of the suspended receive
  std::array<const void*, 2> next_looks_ = {};
};

}  // namespace millrace::peer
