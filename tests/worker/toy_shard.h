#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/job_spec.h"
#include "protocol/layout.h"
#include "protocol/messages.h"

namespace millrace::testing {

/// The membership table, reduced to one job and to what workers can see of it.
struct ToyTable {
  protocol::JobSpec spec;
  protocol::JobLayout layout;
  protocol::JobView view;

  ToyTable(const protocol::JobSpec& spec_, uint32_t shard_count);
  /// As a shard would: adds the worker, or recognises it. The life; 0: refused.
  uint64_t join(uint32_t worker, uint64_t nonce);
  void remove(uint32_t worker);
};

/// What a decision made of one step of one part.
struct ToyDecision {
  std::set<uint32_t> counted;
  std::map<uint64_t, double> carried;  ///< index in the bucket -> sum, of the entries that the update carries
  protocol::Update update;
  SharedBytes payload;
};

/// A slow and obvious shard: decides a step of a part when every member's contribution is in, sums in ascending order of workers,
/// keeps every update for ever. What it counts and what it carries can be bent by the test.
class ToyShard {
 public:
  ToyShard(ToyTable& table, uint32_t number) : table_(table), number_(number) {
    parts_.resize(table.layout.parts.size());
  }

  /// One message in; what goes out, by worker.
  using Out = std::vector<std::pair<uint32_t, protocol::Message>>;
  void on_message(uint32_t worker, const protocol::Message& message, Out& out);
  /// Takes over the table's view: tells everybody, then serves again what was not acknowledged.
  void adopt_view(Out& out);
  void disconnect(uint32_t worker) { connected_.erase(worker); }

  const std::map<uint64_t, ToyDecision>& log(uint32_t part) const { return parts_[part].log; }
  uint64_t acknowledged(uint32_t part, uint32_t worker) const;

  uint64_t life = 1;
  /// Who of those that are in is counted; default: all.
  std::function<std::set<uint32_t>(uint32_t part, uint64_t step, const std::set<uint32_t>& in)> count;
  /// Whether an entry of the sum comes back; default: all (then the update says whole_sum).
  std::function<bool(uint32_t part, uint64_t step, uint64_t index)> carry;
  std::vector<std::string> complaints;  ///< what a correct worker never does

 private:
  struct Slot {
    protocol::Contribution contribution;
    Stream<float> stream;
    uint64_t life = 0;
  };
  struct Part {
    std::map<uint64_t, std::map<uint32_t, Slot>> open;
    std::map<uint64_t, ToyDecision> log;
    std::map<uint32_t, uint64_t> acks;
  };

  protocol::Message to(uint32_t worker, protocol::Body body, SharedBytes payload = {}) const;
  void serve(uint32_t worker, const ToyDecision& decision, Out& out) const;
  void on_hello(uint32_t worker, const protocol::Hello& hello, Out& out);
  void on_contribution(uint32_t worker, const protocol::Message& message, Out& out);
  void decide(uint32_t part, Out& out);
  void close(uint32_t part, uint64_t step, Out& out);

  ToyTable& table_;
  uint32_t number_;
  protocol::JobView view_;
  std::set<uint32_t> connected_;
  std::vector<Part> parts_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t>
      hashes_;  ///< (part and worker, step) -> payload hash: bytes never change
};

}  // namespace millrace::testing
