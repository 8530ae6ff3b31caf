#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <ranges>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/stream/stream.h"
#include "protocol/messages/messages.h"
#include "tests/support/watched_core.h"

namespace millrace::testing {

/// Records the updates that a worker's core was sent, and its contributions in flight. Computes from both the entries
/// that the applied updates carry. For jobs of mode synchronous, with codecs that keep every value.
class UpdatesSaid {
 public:
  explicit UpdatesSaid(uint32_t worker) : worker_(worker) {}

  /// Records a message that the core is given, under any identity.
  void heard(const protocol::Message& message) {
    const auto* update = std::get_if<protocol::Update>(&message.body);
    if (update != nullptr) said_[{update->part, update->step}].push_back({update->contributors, update->whole_sum});
  }

  /// Copies the contributions in flight. Call it before messages are delivered, and after new contributions are coded.
  void note_in_flight(const WatchedCore& core) {
    in_flight_.clear();
    for (const auto& bucket : core.layout().buckets) {
      for (const worker::OutstandingView& out : core.outstanding(bucket.bucket))
        in_flight_.push_back({bucket.bucket, out.part, out.step, out.incarnation, out.begin, to_sparse(out.sent)});
    }
  }

  /// Adds to `counted` [bucket][index] the entries that left the contributions in flight since note_in_flight(), with
  /// the updates that counted them. Returns false if the messages leave open whether an update carried all entries.
  bool add_carried(const WatchedCore& core, std::span<const worker::DeliveredUpdate> delivered,
                   std::vector<std::vector<double>>& counted) const {
    for (const Contribution& sent : in_flight_) {
      if (is_in_flight(core, sent)) continue;
      const std::vector<worker::DeliveredUpdate> held = core.awaiting_acks(sent.part);
      const worker::DeliveredUpdate* update = youngest(delivered, held, sent.part, sent.step);
      if (update == nullptr || !update->counted) continue;  // all of it returns
      const StreamView& sum = update->sum.view;
      bool whole = sum.dense;
      if (!whole && !find_whole(sent, whole)) return false;
      for (size_t i = 0; i < sent.entries.indices.size(); ++i) {
        const uint32_t index = sent.entries.indices[i];
        if (whole || std::ranges::binary_search(sum.indices, index))
          counted[sent.bucket][sent.begin + index] += static_cast<double>(sent.entries.values[i]);
      }
    }
    return true;
  }

  /// Returns the update that resolved the contribution to that step; null: none. A snapshot may go back before a held
  /// update: then its step comes again, and the younger one is held behind it. All held ones are younger than delivered
  /// ones.
  static const worker::DeliveredUpdate* youngest(std::span<const worker::DeliveredUpdate> delivered,
                                                 std::span<const worker::DeliveredUpdate> held, uint32_t part,
                                                 uint64_t step) {
    for (const auto& updates : {held, delivered}) {
      for (const worker::DeliveredUpdate& one : updates | std::views::reverse)
        if (one.part == part && one.step == step && !one.delivered_before && !one.replaces) return &one;
    }
    return nullptr;
  }

 private:
  struct Contribution {
    uint32_t bucket = 0;
    uint32_t part = 0;
    uint64_t step = 0;
    uint64_t incarnation = 0;
    uint64_t begin = 0;
    Stream entries;
  };
  struct Said {
    std::vector<protocol::ContributorId> contributors;
    bool whole_sum = true;
  };

  static bool is_in_flight(const WatchedCore& core, const Contribution& sent) {
    return std::ranges::any_of(core.outstanding(sent.bucket), [&sent](const worker::OutstandingView& out) {
      return out.part == sent.part && out.step == sent.step && out.incarnation == sent.incarnation;
    });
  }

  /// Returns false where two updates of that step count the contribution, and only one carries all entries.
  bool find_whole(const Contribution& sent, bool& whole) const {
    const protocol::ContributorId own{worker_, sent.incarnation};
    bool seen[2] = {false, false};
    if (const auto said = said_.find({sent.part, sent.step}); said != said_.end()) {
      for (const Said& one : said->second)
        if (std::ranges::find(one.contributors, own) != one.contributors.end()) seen[one.whole_sum ? 1 : 0] = true;
    }
    MILLRACE_CHECK(seen[0] || seen[1], sent.part, sent.step,
                   sent.incarnation);  // counted by no update that it was sent
    whole = seen[1];
    return seen[0] != seen[1];
  }

  uint32_t worker_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<Said>> said_;  ///< by part and step
  std::vector<Contribution> in_flight_;
};

}  // namespace millrace::testing
