#include "worker/peer/transport/thread_network.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::peer {

class ThreadNetwork::Rank final : public Communicator {
 public:
  Rank(ThreadNetwork& network, uint32_t rank) : network_(network), rank_(rank) {}

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return network_.size(); }

  Status send(uint32_t to, PeerMessage message) override {
    MILLRACE_CHECK(to < size() && to != rank_, to, rank_);
    const uint64_t bytes = kMessageHeaderBytes + message.body.bytes.size();
    const bool is_data = message.kind == MessageKind::kData;
    if (!network_.ranks_[to]->put({rank_, std::move(message)})) {
      if (!is_data) return {};  // take_lost() or take_left() reports it
      return fail(ErrorCode::kUnavailable, "rank " + std::to_string(to) + " has left the group");
    }
    ++traffic_.messages_sent;
    traffic_.bytes_sent += bytes;
    return {};
  }

  Result<std::optional<ReceivedMessage>> receive() override {
    const std::lock_guard lock(mutex_);
    if (arrived_.empty()) return std::nullopt;
    ReceivedMessage message = std::move(arrived_.front());
    arrived_.pop_front();
    traffic_.bytes_received += kMessageHeaderBytes + message.message.body.bytes.size();
    return message;
  }

  std::optional<uint32_t> take_lost() override { return take_ended(lost_); }
  std::optional<uint32_t> take_left() override { return take_ended(left_); }

  void wait(TimeNs at_most, WaitAs) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(at_most),
                      [this] { return woken_ || !arrived_.empty() || !lost_.empty() || !left_.empty(); });
    woken_ = false;
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_all();
  }

  TimeNs now() const override { return monotonic_now_ns(); }
  Traffic traffic() const override { return traffic_; }

  bool put(ReceivedMessage message) {
    {
      const std::lock_guard lock(mutex_);
      if (gone_) return false;
      arrived_.push_back(std::move(message));
    }
    changed_.notify_all();
    return true;
  }

  void go() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    arrived_.clear();
  }

  void hear_of_loss(uint32_t rank) { hear_of_end(rank, lost_); }
  void hear_of_leaving(uint32_t rank) { hear_of_end(rank, left_); }

 private:
  void hear_of_end(uint32_t rank, std::deque<uint32_t>& ended) {
    {
      const std::lock_guard lock(mutex_);
      ended.push_back(rank);
    }
    changed_.notify_all();
  }

  std::optional<uint32_t> take_ended(std::deque<uint32_t>& ended) {
    const std::lock_guard lock(mutex_);
    // Messages that it sent before come first.
    if (ended.empty() || !arrived_.empty()) return std::nullopt;
    const uint32_t rank = ended.front();
    ended.pop_front();
    return rank;
  }

  ThreadNetwork& network_;
  uint32_t rank_;
  Traffic traffic_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ReceivedMessage> arrived_;
  std::deque<uint32_t> lost_;
  std::deque<uint32_t> left_;
  bool woken_ = false;
  bool gone_ = false;
};

ThreadNetwork::ThreadNetwork(uint32_t size) {
  for (uint32_t rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
}

ThreadNetwork::~ThreadNetwork() = default;

Communicator& ThreadNetwork::communicator(uint32_t rank) {
  MILLRACE_CHECK(rank < ranks_.size(), rank, ranks_.size());
  return *ranks_[rank];
}

void ThreadNetwork::lose(uint32_t rank) {
  ranks_[rank]->go();
  for (const auto& other : ranks_) {
    if (other->rank() != rank) other->hear_of_loss(rank);
  }
}

void ThreadNetwork::leave(uint32_t rank) {
  ranks_[rank]->go();
  for (const auto& other : ranks_) {
    if (other->rank() != rank) other->hear_of_leaving(rank);
  }
}

}  // namespace millrace::peer
