#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "kernels/base/random.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/group/peer_core.h"

namespace millrace::peer::testing {

/// Cores of all ranks in one thread, and their messages, which arrive in an order that the seed draws. Time is the
/// test's.
class Pump {
 public:
  Pump(uint32_t size, uint64_t seed, const GroupOptions& options = {})
      : body_bytes(size), body_bytes_received(size), draws_(RandomKey::from(seed)) {
    for (uint32_t rank = 0; rank < size; ++rank) cores_.push_back(std::make_unique<PeerCore>(rank, size, options));
  }

  uint32_t size() const { return static_cast<uint32_t>(cores_.size()); }
  PeerCore& core(uint32_t rank) { return *cores_[rank]; }
  TimeNs now = 0;
  uint64_t messages = 0;
  std::vector<uint64_t> body_bytes;           ///< sent, by rank
  std::vector<uint64_t> body_bytes_received;  ///< by rank
  std::function<void(Outgoing&)> tamper;      ///< with data that is sent; none: unchanged

  Result<uint32_t> start(uint32_t rank, Collective collective) {
    Actions actions;
    auto number = cores_[rank]->start(std::move(collective), now, actions);
    take(rank, std::move(actions));
    return number;
  }

  void tick(uint32_t rank) {
    Actions actions;
    cores_[rank]->on_tick(now, actions);
    take(rank, std::move(actions));
  }

  /// False: nothing is on its way.
  bool deliver_one() {
    if (under_way_.empty()) return false;
    std::swap(under_way_[draws_.next_below(under_way_.size())], under_way_.back());
    OnWay next = std::move(under_way_.back());
    under_way_.pop_back();
    if (dead_ && *dead_ == next.out.to) return true;
    Actions actions;
    cores_[next.out.to]->on_message(next.from, std::move(next.out.message), now, actions);
    take(next.out.to, std::move(actions));
    return true;
  }

  void deliver_all() {
    while (deliver_one()) {
    }
  }

  /// From here on it neither sends nor receives.
  void kill(uint32_t rank) { dead_ = rank; }

 private:
  struct OnWay {
    uint32_t from;
    Outgoing out;
  };

  void take(uint32_t from, Actions&& actions) {
    if (dead_ && *dead_ == from) return;
    for (Outgoing& out : actions.sends) {
      ++messages;
      body_bytes[from] += out.message.body.bytes.size();
      body_bytes_received[out.to] += out.message.body.bytes.size();
      if (tamper && out.message.kind == MessageKind::kData) tamper(out);
      under_way_.push_back({from, std::move(out)});
    }
  }

  RandomSequence draws_;
  std::vector<std::unique_ptr<PeerCore>> cores_;
  std::vector<OnWay> under_way_;
  std::optional<uint32_t> dead_;
};

/// Runs one collective on all ranks to its end. body: (rank, channel) -> Task<Result<R>>. Results by rank; an error
/// where the group ended, or where a rank still waits when nothing is on its way.
template <typename R, typename Body>
std::vector<Result<R>> run_on_all(Pump& pump, const std::string& description, const Body& body) {
  struct Kept {
    static Task<Status> in(Task<Result<R>> task, std::shared_ptr<std::optional<Result<R>>> result) {
      result->emplace(co_await std::move(task));
      if (!**result) co_return std::unexpected((*result)->error());
      co_return Status{};
    }
  };
  std::vector<std::shared_ptr<std::optional<Result<R>>>> results;
  std::vector<uint32_t> numbers;
  for (uint32_t rank = 0; rank < pump.size(); ++rank) {
    results.push_back(std::make_shared<std::optional<Result<R>>>());
    auto start = [&body, rank, result = results.back()](Channel& channel) {
      return Kept::in(body(rank, channel), result);
    };
    numbers.push_back(pump.start(rank, {description, start}).value());
  }
  pump.deliver_all();
  std::vector<Result<R>> out;
  for (uint32_t rank = 0; rank < pump.size(); ++rank) {
    if (!pump.core(rank).ended(numbers[rank])) {
      out.push_back(fail(ErrorCode::kInternal, "rank " + std::to_string(rank) + " still waits"));
    } else if (Status status = pump.core(rank).take_status(numbers[rank]); !status) {
      out.push_back(std::unexpected(status.error()));
    } else {
      out.push_back(std::move(**results[rank]));
    }
  }
  return out;
}

/// All ranks of one allreduce, step after step.
class PumpedAllreduce {
 public:
  PumpedAllreduce(uint32_t size, AlgorithmId id, const AllreduceSettings& settings, uint64_t seed)
      : pump(size, seed), settings_(settings) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      auto made = make_allreduce(id, settings);
      if (!made) throw std::runtime_error(made.error().message);
      ranks_.push_back(std::move(*made));
    }
  }

  Pump pump;

  /// One step. Results by rank; an error where the group ended, or where a rank still waits when nothing is on its way.
  std::vector<Result<Reduced>> step(const std::vector<SharedStream>& own) {
    return step(own, std::vector<SharedStream>(own.size()));
  }
  /// rest   of each rank, the values beside its contribution.
  std::vector<Result<Reduced>> step(const std::vector<SharedStream>& own, const std::vector<SharedStream>& rest) {
    const auto body = [this, &own, &rest](uint32_t rank, Channel& channel) {
      return ranks_[rank]->run(channel, Contribution(own[rank], rest[rank]));
    };
    return run_on_all<Reduced>(pump, description_of(*ranks_[0], settings_), body);
  }

  std::span<const std::unique_ptr<Allreduce>> ranks() const { return ranks_; }

 private:
  AllreduceSettings settings_;
  std::vector<std::unique_ptr<Allreduce>> ranks_;
};

}  // namespace millrace::peer::testing
