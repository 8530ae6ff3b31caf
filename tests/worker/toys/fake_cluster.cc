#include "tests/worker/toys/fake_cluster.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace millrace::testing {
namespace {

/// More than the 120 s after which the tests' sessions end with a sentence, less than the time that ctest gives a test.
constexpr std::chrono::seconds kConditionMax{200};

}  // namespace

FakeCluster::FakeCluster(const protocol::JobSpec& spec, uint32_t shard_count, Script script)
    : table_(spec, shard_count), script_(std::move(script)) {
  for (uint32_t number = 0; number < shard_count; ++number) {
    shards_.push_back(std::make_unique<ToyShard>(table_, number));
    auto listener = protocol::Listener::bind(context_, "tcp://127.0.0.1:0");
    if (!listener) {
      ADD_FAILURE() << listener.error().message;
      std::abort();
    }
    addresses_.push_back((*listener)->address());
    listeners_.push_back(std::move(*listener));
  }
  peers_.resize(shard_count);
  silent_.assign(shard_count, false);
  thread_ = std::thread([this] { serve(); });
}

FakeCluster::~FakeCluster() {
  run_there([this] { stop_ = true; });
  thread_.join();
}

void FakeCluster::wait_until(const std::function<bool()>& condition) {
  bool finished = false;
  std::unique_lock lock(mutex_);
  works_.push_back([&] {
    if (!condition()) return false;
    const std::lock_guard inner(mutex_);
    finished = true;
    done_.notify_all();
    return true;
  });
  waker_.wake();
  if (!done_.wait_for(lock, kConditionMax, [&] { return finished; })) {
    ADD_FAILURE() << "the condition has not held within " << kConditionMax.count() << " s";
    std::abort();  // the cluster's thread still has the condition
  }
}

void FakeCluster::run_there(const std::function<void()>& work) {
  wait_until([&] {
    work();
    return true;
  });
}

void FakeCluster::serve() {
  constexpr int kTickMs = 5;
  while (!stop_) {
    protocol::Poller poller;  // made again: a script may have replaced a listener
    for (auto& listener : listeners_) poller.add(*listener);
    poller.add(waker_);
    poller.wait(kTickMs);
    std::vector<std::function<bool()>> works;
    {
      const std::lock_guard lock(mutex_);
      works.swap(works_);
    }
    std::erase_if(works, [](const auto& work) { return work(); });
    {
      const std::lock_guard lock(mutex_);
      works_.insert(works_.begin(), works.begin(), works.end());
    }
    for (uint32_t shard = 0; shard < shards_.size() && !stop_; ++shard) receive(shard);
  }
  listeners_.clear();
}

void FakeCluster::receive(uint32_t shard) {
  while (auto received = listeners_[shard]->receive()) {
    if (!received->message) {
      ADD_FAILURE() << "a worker sent bytes that are no message: " << received->message.error().message;
      continue;
    }
    const protocol::Message& message = *received->message;
    const uint32_t worker = message.header.worker;
    if (std::holds_alternative<protocol::Hello>(message.body)) peers_[shard][worker] = received->peer;
    if (const auto* goodbye = std::get_if<protocol::Goodbye>(&message.body)) goodbyes[worker] = *goodbye;
    if (script_ && script_(*this, shard, received->peer, message)) continue;
    ToyShard::Out out;
    shards_[shard]->on_message(worker, message, out);
    send_out(shard, out);
  }
}

void FakeCluster::send_out(uint32_t shard, ToyShard::Out& out) {
  if (silent_[shard]) return;
  for (auto& [worker, message] : out) {
    const auto peer = peers_[shard].find(worker);
    if (peer != peers_[shard].end()) listeners_[shard]->send(peer->second, message);
  }
}

void FakeCluster::reply(uint32_t shard, const protocol::PeerId& to, protocol::Body body, SharedBytes payload) {
  protocol::Message message;
  message.header = {table_.membership.job, table_.membership.epoch, 0, worker_life, shard, shards_[shard]->incarnation};
  message.body = std::move(body);
  message.payload = std::move(payload);
  listeners_[shard]->send(to, message);
}

void FakeCluster::adopt_views() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    ToyShard::Out out;
    shards_[shard]->adopt_membership(out);
    send_out(shard, out);
  }
}

void FakeCluster::break_connections(uint32_t shard) {
  for (const auto& [worker, peer] : peers_[shard]) shards_[shard]->disconnect(worker);
  peers_[shard].clear();
  listeners_[shard].reset();
  for (;;) {
    // The old socket leaves the port a moment after it is closed.
    auto listener = protocol::Listener::bind(context_, addresses_[shard]);
    if (!listener) continue;
    listeners_[shard] = std::move(*listener);
    return;
  }
}

}  // namespace millrace::testing
