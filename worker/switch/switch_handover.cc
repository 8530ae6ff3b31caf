#include "worker/switch/switch_handover.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/bytes.h"
#include "protocol/base/field_reader.h"
#include "protocol/messages/handover_frame.h"

namespace millrace::worker {
namespace {

using protocol::DatagramHeader;
using protocol::FieldReader;

constexpr uint32_t kBlocksMax = 1U << 26;  // windows of a job, at the least size

void put_fragments(ByteWriter& writer, const std::vector<SwitchFragment>& fragments) {
  writer.put(static_cast<uint32_t>(fragments.size()));
  for (const SwitchFragment& fragment : fragments) {
    DatagramHeader header = fragment.header;
    header.extension_words = static_cast<uint8_t>(fragment.extension.size() / 8);
    header.payload_bytes = static_cast<uint16_t>(fragment.payload.size());
    // The packet as it came, where the MAC was: zeros.
    ByteBuffer packet(protocol::datagram_bytes(header), 0);
    protocol::put_header(header, packet);
    std::ranges::copy(fragment.extension, packet.begin() + protocol::kDatagramHeaderBytes);
    std::ranges::copy(fragment.payload, packet.begin() + protocol::kDatagramHeaderBytes +
                                            static_cast<std::ptrdiff_t>(fragment.extension.size()));
    writer.put(static_cast<uint32_t>(packet.size()));
    writer.put_bytes(packet);
  }
}

std::vector<SwitchFragment> read_fragments(FieldReader& in, const SwitchHandoverShape& shape) {
  std::vector<SwitchFragment> fragments;
  const uint32_t count = in.count(sizeof(uint32_t), protocol::kFragmentsMax);
  for (uint32_t at = 0; at < count && in.good(); ++at) {
    const ByteSpan packet = in.bytes(in.get<uint32_t>());
    const auto datagram = protocol::parse_datagram(packet);
    in.expect(datagram.has_value() && datagram->header.type == protocol::DatagramType::kResult);
    in.expect(in.good() && protocol::datagram_bytes(datagram->header) <= shape.packet_bytes_max);
    if (!in.good()) break;
    fragments.push_back({datagram->header, ByteBuffer(datagram->extension.begin(), datagram->extension.end()),
                         ByteBuffer(datagram->payload.begin(), datagram->payload.end())});
  }
  return fragments;
}

void put_exponents(ByteWriter& writer, const ExponentTable::State& state) {
  writer.put(static_cast<uint32_t>(state.whole.size()));
  for (const int exponent : state.whole) writer.put(static_cast<int32_t>(exponent));
  writer.put(static_cast<uint32_t>(state.blocks.size()));
  for (const auto& [block, exponent] : state.blocks) {
    writer.put(block);
    writer.put(static_cast<int32_t>(exponent));
  }
}

int read_exponent(FieldReader& in) {
  const auto exponent = in.get<int32_t>();
  in.expect(exponent >= kGridExponentLowest && exponent <= kGridExponentHighest);
  return exponent;
}

ExponentTable::State read_exponents(FieldReader& in, size_t groups) {
  ExponentTable::State state;
  const uint32_t whole = in.count(sizeof(int32_t), kBlocksMax);
  in.expect(whole == groups);
  for (uint32_t at = 0; at < whole && in.good(); ++at) state.whole.push_back(read_exponent(in));
  const uint32_t blocks = in.count(2 * sizeof(uint32_t), kBlocksMax);
  for (uint32_t at = 0; at < blocks && in.good(); ++at) {
    const auto block = in.get<uint32_t>();
    in.expect(state.blocks.empty() || state.blocks.back().first < block);
    state.blocks.emplace_back(block, read_exponent(in));
  }
  return state;
}

SwitchRemoval read_removal(FieldReader& in, size_t slots, const SwitchHandoverShape& shape) {
  SwitchRemoval removal;
  in >> removal.epoch;
  const uint32_t gone = in.count(sizeof(uint16_t) + sizeof(uint64_t), protocol::kSwitchWorkersMax);
  for (uint32_t at = 0; at < gone; ++at) {
    const auto worker = in.get<uint16_t>();
    removal.gone.emplace_back(worker, in.get<uint64_t>());
  }
  for (size_t at = 0; at < slots && in.good(); ++at) {
    SwitchRemoval::Slot& slot = removal.slots.emplace_back();
    in >> slot.turn;
    slot.result = read_fragments(in, shape);
  }
  return removal;
}

void put_lane_history(ByteWriter& writer, const SwitchHandover::Lane& lane) {
  writer.put(static_cast<uint32_t>(lane.removals.size()));
  for (const SwitchRemoval& removal : lane.removals) {
    writer.put(removal.epoch);
    writer.put(static_cast<uint32_t>(removal.gone.size()));
    for (const auto& [worker, incarnation] : removal.gone) {
      writer.put(worker);
      writer.put(incarnation);
    }
    for (const SwitchRemoval::Slot& slot : removal.slots) {
      writer.put(slot.turn);
      put_fragments(writer, slot.result);
    }
  }
  writer.put(lane.opened_live);
  writer.put_array<uint64_t>(lane.opened_incarnations);
}

void read_lane_history(FieldReader& in, SwitchHandover::Lane& lane, const SwitchHandoverShape& shape) {
  const uint32_t removals = in.count(2 * sizeof(uint32_t), kSwitchRemovalsMax);
  for (uint32_t at = 0; at < removals && in.good(); ++at)
    lane.removals.push_back(read_removal(in, lane.slots.size(), shape));
  in >> lane.opened_live;
  for (uint64_t& incarnation : lane.opened_incarnations) in >> incarnation;
}

}  // namespace

ByteBuffer encode_handover(const SwitchHandover& handover) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(protocol::kHandoverMagic);
  writer.put(uint64_t{0});
  writer.put(handover.next_step);
  size_t slots = 0;
  for (const SwitchHandover::Lane& lane : handover.lanes) slots += lane.slots.size();
  writer.put(static_cast<uint32_t>(slots));
  for (const SwitchHandover::Lane& lane : handover.lanes) {
    for (const SwitchHandover::Slot& slot : lane.slots) {
      writer.put(slot.turn);
      put_fragments(writer, slot.last_result);
    }
  }
  put_exponents(writer, handover.exponents);
  for (const SwitchHandover::Lane& lane : handover.lanes) put_lane_history(writer, lane);
  bytes.resize((bytes.size() + 7) / 8 * 8, 0);
  const uint64_t all = bytes.size();
  std::memcpy(bytes.data() + sizeof(protocol::kHandoverMagic), &all, sizeof all);
  return bytes;
}

Result<SwitchHandover> decode_handover(ByteSpan bytes, const SwitchHandoverShape& shape) {
  FieldReader in(bytes);
  in.expect(in.get<uint64_t>() == protocol::kHandoverMagic);
  in.expect(in.get<uint64_t>() == bytes.size());
  SwitchHandover handover;
  in >> handover.next_step;
  in.expect(handover.next_step < UINT32_MAX);  // steps are numbered below it
  in.expect(in.get<uint32_t>() == shape.slots);
  handover.lanes.resize(shape.lanes);
  for (size_t at = 0; at < shape.slots && in.good(); ++at) {
    SwitchHandover::Slot& slot = handover.lanes[at * shape.lanes / shape.slots].slots.emplace_back();
    in >> slot.turn;
    in.expect(slot.turn >= 1);
    slot.last_result = read_fragments(in, shape);
  }
  handover.exponents = read_exponents(in, shape.groups);
  for (SwitchHandover::Lane& lane : handover.lanes) read_lane_history(in, lane, shape);
  if (!in.good()) return fail(ErrorCode::kMalformed, "a handover is cut off, or of another job's switch");
  return handover;
}

}  // namespace millrace::worker
