#include "worker/peer/oktopk/oktopk_gather.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/base/check.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kMove = 0;
constexpr uint32_t kExcused = 1;
constexpr uint32_t kRound = 2;

/// Positions [begin, end) of the sequence.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t count() const { return begin < end ? end - begin : 0; }
};

Span overlap(Span a, Span b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// Two spans in the order of the sequence, either of which may be empty.
using Spans = std::array<Span, 2>;

uint64_t count_of(const Spans& spans) { return spans[0].count() + spans[1].count(); }

Span span_of_region(const GatherPlan& plan, uint32_t region) { return {plan.starts[region], plan.starts[region + 1]}; }
Span oktopk_gather_share_of(const GatherPlan& plan, size_t member) {
  return {plan.boundaries[member], plan.boundaries[member + 1]};
}

/// The shares of `count` members from `first` on, around.
Spans shares_of(std::span<const uint64_t> boundaries, size_t first, size_t count) {
  const size_t members = boundaries.size() - 1;
  const size_t last = std::min(first + count, members);
  const size_t around = first + count - last;
  return {Span{0, boundaries[around]}, Span{boundaries[first], boundaries[last]}};
}

/// What member i of `members` sends in its rounds.
uint64_t entries_gathering(std::span<const uint64_t> boundaries, size_t member) {
  const size_t members = boundaries.size() - 1;
  uint64_t sent = 0;
  for (size_t held = 1; held < members; held *= 2) {
    sent += count_of(shares_of(boundaries, member, std::min(held, members - held)));
  }
  return sent;
}

std::vector<uint64_t> like_shares(uint64_t total, uint64_t members) {
  std::vector<uint64_t> boundaries;
  for (uint64_t i = 0; i <= members; ++i) boundaries.push_back(total / members * i + total % members * i / members);
  return boundaries;
}

/// Returns the part of the member's share that the excused rank does not hold.
Spans lacked(const GatherPlan& plan, size_t member) {
  const Span share = oktopk_gather_share_of(plan, member), held = span_of_region(plan, *plan.excused);
  return {Span{share.begin, std::min(share.end, held.begin)}, Span{std::max(share.begin, held.end), share.end}};
}

/// One rank's gathering: the sequence, as far as it has it.
class Gathering {
 public:
  Gathering(Channel& channel, const AllreduceSettings& settings, const GatherPlan& plan, const Regions& regions,
            uint32_t first_tag)
      : channel_(channel), settings_(settings), plan_(plan), regions_(regions), first_tag_(first_tag) {
    all_.dimension = settings.dimension;
    all_.indices.resize(plan.total());
    all_.values.resize(plan.total());
  }

  Task<Status> run(StreamView own) {
    const uint32_t region = regions_.region[channel_.rank()];
    const Span held = span_of_region(plan_, region);
    MILLRACE_CHECK(!own.dense && own.count() == held.count(), own.count(), held.count());
    std::ranges::copy(own.indices, all_.indices.begin() + static_cast<ptrdiff_t>(held.begin));
    std::ranges::copy(own.values, all_.values.begin() + static_cast<ptrdiff_t>(held.begin));
    for (size_t i = 0; i < plan_.members.size(); ++i) {
      if (plan_.members[i] == region) continue;
      const Spans moved{overlap(held, oktopk_gather_share_of(plan_, i)), Span{}};
      if (Status status = send(plan_.members[i], kMove, moved); !status) co_return status;
    }
    if (plan_.excused == region) {
      for (size_t i = 0; i < plan_.members.size(); ++i) {
        const Spans spans = lacked(plan_, i);
        if (count_of(spans) == 0) continue;
        if (Status status = co_await receive(plan_.members[i], kExcused, spans); !status) co_return status;
      }
    } else {
      if (Status status = co_await take_part(region); !status) co_return status;
    }
    co_return validate(all_.view());
  }

  Stream take() { return std::move(all_); }

 private:
  /// Of a member: collects its share, sends the excused rank the missing part, and gathers.
  Task<Status> take_part(uint32_t region) {
    const std::vector<uint32_t>& members = plan_.members;
    const auto me = static_cast<size_t>(std::ranges::lower_bound(members, region) - members.begin());
    for (uint32_t other = 0; other < channel_.size(); ++other) {
      const Spans moved{overlap(span_of_region(plan_, other), oktopk_gather_share_of(plan_, me)), Span{}};
      if (other == region || count_of(moved) == 0) continue;
      if (Status status = co_await receive(other, kMove, moved); !status) co_return status;
    }
    if (plan_.excused) {
      if (Status status = send(*plan_.excused, kExcused, lacked(plan_, me)); !status) co_return status;
    }
    const size_t size = members.size();
    for (size_t held = 1, round = 0; held < size; held *= 2, ++round) {
      const size_t count = std::min(held, size - held);
      const uint32_t tag = kRound + static_cast<uint32_t>(round);
      const size_t from = (me + held) % size;
      const Spans mine = shares_of(plan_.boundaries, me, count), theirs = shares_of(plan_.boundaries, from, count);
      if (Status status = send(members[(me + size - held) % size], tag, mine); !status) co_return status;
      if (count_of(theirs) == 0) continue;
      if (Status status = co_await receive(members[from], tag, theirs); !status) co_return status;
    }
    co_return Status{};
  }

  /// Nothing is sent of nothing: both sides know.
  Status send(uint32_t to_region, uint32_t tag, const Spans& spans) {
    const uint64_t count = count_of(spans);
    if (count == 0) return {};
    SharedStream stream{{settings_.dimension, false, {}, {}}, nullptr, 0};
    Stream joined = Stream::empty(settings_.dimension);
    if (spans[0].count() == 0 || spans[1].count() == 0) {
      const Span span = spans[0].count() == 0 ? spans[1] : spans[0];
      stream.view.indices = IndexSpan(all_.indices).subspan(span.begin, count);
      stream.view.values = std::span<const float>(all_.values).subspan(span.begin, count);
    } else {
      for (const Span& span : spans) {
        const auto begin = static_cast<ptrdiff_t>(span.begin), end = static_cast<ptrdiff_t>(span.end);
        joined.indices.insert(joined.indices.end(), all_.indices.begin() + begin, all_.indices.begin() + end);
        joined.values.insert(joined.values.end(), all_.values.begin() + begin, all_.values.begin() + end);
      }
      stream.view = joined.view();
    }
    Result<Packed> packed = pack(stream, settings_.wire.sums, {}, 0, channel_.bodies());
    if (!packed) return std::unexpected(packed.error());
    channel_.send(regions_.owner[to_region], first_tag_ + tag, std::move(packed->packet));
    return {};
  }

  /// REQUIRES: spans are not empty.
  Task<Status> receive(uint32_t from_region, uint32_t tag, const Spans& spans) {
    const uint64_t count = count_of(spans);
    const Packet packet = co_await channel_.receive(regions_.owner[from_region], first_tag_ + tag);
    Result<SharedStream> stream = unpack(packet, settings_.dimension);
    if (!stream) co_return std::unexpected(stream.error());
    // A codec may have made it dense; what travels here is never 0.
    if (stream->view.dense) stream = SharedStream::from(to_sparse(stream->view));
    if (stream->view.count() != count) {
      co_return fail(ErrorCode::kMalformed, "a peer sent " + std::to_string(stream->view.count()) + " sums where " +
                                                std::to_string(count) + " are due");
    }
    size_t taken = 0;
    for (const Span& span : spans) {
      const auto at = static_cast<ptrdiff_t>(span.begin);
      std::ranges::copy(stream->view.indices.subspan(taken, span.count()), all_.indices.begin() + at);
      std::ranges::copy(stream->view.values.subspan(taken, span.count()), all_.values.begin() + at);
      taken += span.count();
    }
    co_return Status{};
  }

  Channel& channel_;
  const AllreduceSettings& settings_;
  const GatherPlan& plan_;
  const Regions& regions_;
  uint32_t first_tag_;
  Stream all_;
};

}  // namespace

GatherPlan plan_gather(std::span<const uint64_t> counts, double balance_ratio) {
  const uint64_t size = counts.size();
  GatherPlan plan;
  plan.starts.assign(1, 0);
  for (const uint64_t count : counts) plan.starts.push_back(plan.starts.back() + count);
  plan.members.resize(size);
  std::iota(plan.members.begin(), plan.members.end(), 0u);
  plan.boundaries = plan.starts;
  const uint64_t total = plan.total();
  if (size <= 2 || total == 0 || std::isinf(balance_ratio)) return plan;
  const auto largest = static_cast<uint64_t>(std::ranges::max_element(counts) - counts.begin());
  const double share = static_cast<double>(total) / static_cast<double>(size);
  bool balances = static_cast<double>(counts[largest]) > balance_ratio * share;
  const double most = 2 * static_cast<double>(total) - 3 * share;
  for (size_t i = 0; i < size && !balances; ++i) {
    balances = static_cast<double>(entries_gathering(plan.boundaries, i)) > most;
  }
  if (!balances) return plan;
  if (static_cast<double>(total - counts[largest]) < share) {
    plan.excused = static_cast<uint32_t>(largest);
    plan.members.erase(plan.members.begin() + static_cast<ptrdiff_t>(largest));
  }
  plan.boundaries = like_shares(total, plan.members.size());
  return plan;
}

Task<Result<Stream>> gather_by_plan(Channel& channel, const AllreduceSettings& settings, const GatherPlan& plan,
                                    const Regions& regions, StreamView own, uint32_t first_tag) {
  Gathering gathering(channel, settings, plan, regions, first_tag);
  if (Status status = co_await gathering.run(own); !status) co_return std::unexpected(status.error());
  co_return gathering.take();
}

}  // namespace millrace::peer
