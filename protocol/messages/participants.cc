#include "protocol/messages/participants.h"

#include <algorithm>
#include <utility>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"

namespace millrace::protocol {
namespace {

uint64_t lot_of(uint64_t seed, uint64_t step, uint32_t worker) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(seed);
  writer.put(step);
  writer.put(worker);
  return hash64(bytes);
}

}  // namespace

std::vector<uint32_t> participants_of(const JobSpec& spec, std::span<const Member> members, uint64_t step) {
  std::vector<uint32_t> drawn;
  for (const Member& member : members) {
    if (member.state == MemberState::kSynced) drawn.push_back(member.worker);
  }
  if (spec.participants == 0 || drawn.size() <= spec.participants) return drawn;
  std::vector<std::pair<uint64_t, uint32_t>> lots;
  for (const uint32_t worker : drawn) lots.emplace_back(lot_of(spec.seed, step, worker), worker);
  drawn.clear();
  const auto last = lots.begin() + static_cast<std::ptrdiff_t>(spec.participants);
  std::ranges::nth_element(lots, last);
  for (auto lot = lots.begin(); lot != last; ++lot) drawn.push_back(lot->second);
  std::ranges::sort(drawn);
  return drawn;
}

bool takes_part(const JobSpec& spec, std::span<const Member> members, uint64_t step, uint32_t worker) {
  return std::ranges::binary_search(participants_of(spec, members, step), worker);
}

}  // namespace millrace::protocol
