#include "worker/peer/collectives/integer_collectives.h"

#include <algorithm>
#include <bit>
#include <span>
#include <string>

#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kNumberSumFold = 0;
constexpr uint32_t kNumberSumUnfold = 1;
constexpr uint32_t kHalving = 32;
constexpr uint32_t kDoubling = 64;

struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t middle() const { return begin + (end - begin) / 2; }
};

template <typename N>
Result<std::vector<N>> numbers_of(const Packet& packet, size_t count) {
  Result<std::vector<N>> numbers = unpack_numbers<N>(packet);
  if (numbers && numbers->size() != count) {
    return fail(ErrorCode::kMalformed, "a peer sent " + std::to_string(numbers->size()) + " numbers where " +
                                           std::to_string(count) + " are due");
  }
  return numbers;
}

Packet packet_of(const std::vector<uint64_t>& numbers, Range range) {
  return pack_numbers(std::span(numbers).subspan(range.begin, range.end - range.begin));
}

Status add_number_sum(std::vector<uint64_t>& numbers, Range range, const Packet& packet) {
  const auto theirs = numbers_of<uint64_t>(packet, range.end - range.begin);
  if (!theirs) return std::unexpected(theirs.error());
  for (size_t i = 0; i < theirs->size(); ++i) numbers[range.begin + i] += (*theirs)[i];
  return {};
}

Status take(std::vector<uint64_t>& numbers, Range range, const Packet& packet) {
  const auto theirs = numbers_of<uint64_t>(packet, range.end - range.begin);
  if (!theirs) return std::unexpected(theirs.error());
  std::ranges::copy(*theirs, numbers.begin() + static_cast<ptrdiff_t>(range.begin));
  return {};
}

/// Of `paired` ranks, a power of two: halving down to a range of its own, and doubling back.
Task<Status> sum_among(Channel& channel, std::vector<uint64_t>& numbers, uint32_t paired, uint32_t first_tag) {
  const uint32_t rank = channel.rank();
  std::vector<Range> ranges{{0, numbers.size()}};
  for (uint32_t bit = paired / 2; bit > 0; bit /= 2) {
    const Range all = ranges.back();
    const Range low{all.begin, all.middle()}, high{all.middle(), all.end};
    const bool keeps_low = (rank & bit) == 0;
    const uint32_t tag = first_tag + kHalving + static_cast<uint32_t>(std::countr_zero(bit));
    channel.send(rank ^ bit, tag, packet_of(numbers, keeps_low ? high : low));
    const Packet theirs = co_await channel.receive(rank ^ bit, tag);
    ranges.push_back(keeps_low ? low : high);
    if (Status status = add_number_sum(numbers, ranges.back(), theirs); !status) co_return status;
  }
  for (uint32_t bit = 1; bit < paired; bit *= 2) {
    const Range own = ranges.back();
    ranges.pop_back();
    const Range all = ranges.back();
    const bool has_low = (rank & bit) == 0;
    const uint32_t tag = first_tag + kDoubling + static_cast<uint32_t>(std::countr_zero(bit));
    channel.send(rank ^ bit, tag, packet_of(numbers, own));
    const Packet theirs = co_await channel.receive(rank ^ bit, tag);
    const Range other = has_low ? Range{own.end, all.end} : Range{all.begin, own.begin};
    if (Status status = take(numbers, other, theirs); !status) co_return status;
  }
  co_return Status{};
}

}  // namespace

Task<Result<std::vector<uint64_t>>> sum_numbers(Channel& channel, std::vector<uint64_t> own, uint32_t first_tag) {
  const uint32_t rank = channel.rank();
  const uint32_t paired = std::bit_floor(channel.size());
  const Range all{0, own.size()};
  if (rank >= paired) {
    channel.send(rank - paired, first_tag + kNumberSumFold, packet_of(own, all));
    const Packet sums = co_await channel.receive(rank - paired, first_tag + kNumberSumUnfold);
    if (Status status = take(own, all, sums); !status) co_return std::unexpected(status.error());
    co_return std::move(own);
  }
  const bool folds = rank + paired < channel.size();
  if (folds) {
    const Packet folded = co_await channel.receive(rank + paired, first_tag + kNumberSumFold);
    if (Status status = add_number_sum(own, all, folded); !status) co_return std::unexpected(status.error());
  }
  if (Status status = co_await sum_among(channel, own, paired, first_tag); !status) {
    co_return std::unexpected(status.error());
  }
  if (folds) channel.send(rank + paired, first_tag + kNumberSumUnfold, packet_of(own, all));
  co_return std::move(own);
}

Task<Result<std::vector<uint32_t>>> gather_numbers(Channel& channel, std::vector<uint32_t> own, uint32_t first_tag) {
  const uint32_t size = channel.size(), rank = channel.rank();
  const size_t each = own.size();
  // Held: the numbers of this rank, of the next one, and so on around.
  for (uint32_t held = 1, round = 0; held < size; held *= 2, ++round) {
    const uint32_t count = std::min(held, size - held);
    const Packet packet = pack_numbers(std::span<const uint32_t>(own).first(count * each));
    channel.send((rank + size - held) % size, first_tag + round, packet);
    const Packet received = co_await channel.receive((rank + held) % size, first_tag + round);
    const auto theirs = numbers_of<uint32_t>(received, count * each);
    if (!theirs) co_return std::unexpected(theirs.error());
    own.insert(own.end(), theirs->begin(), theirs->end());
  }
  std::ranges::rotate(own, own.begin() + static_cast<ptrdiff_t>((size - rank) % size * each));
  co_return std::move(own);
}

}  // namespace millrace::peer
