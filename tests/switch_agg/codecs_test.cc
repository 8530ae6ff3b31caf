// Contributions of every index and value codec: the sum equals that of the entries that receivers decode of the very
// packets that came.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/base/random.h"
#include "tests/switch_agg/rack_rig.h"
#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::WindowCodecs;
using protocol::WindowIndexCodec;
using protocol::WindowRounding;
using protocol::WindowValueCodec;
using Event = switch_agg::AggregatorEvent;
using Fields = MadeUpWorker::ContributionFields;
namespace flag = protocol::datagram_flag;

constexpr uint32_t kCodecsIndices = 1024;
constexpr WindowIndexCodec kIndexCodecs[] = {WindowIndexCodec::kRaw, WindowIndexCodec::kGap, WindowIndexCodec::kBitmap,
                                             WindowIndexCodec::kBloom, WindowIndexCodec::kDense};
constexpr WindowValueCodec kValueCodecs[] = {WindowValueCodec::kFixed16, WindowValueCodec::kFixed32,
                                             WindowValueCodec::kQsgd8, WindowValueCodec::kQsgd4,
                                             WindowValueCodec::kNone};

bool can_be(WindowIndexCodec index, WindowValueCodec value) {
  if (value != WindowValueCodec::kNone) return true;
  return index != WindowIndexCodec::kBloom && index != WindowIndexCodec::kDense;
}

/// A window's packets of one worker, and their decoded entries.
struct Unit {
  std::vector<ByteBuffer> packets;
  Entries decoded;
};

/// What workers send, each packet in codecs of its own.
class Contributions {
 public:
  explicit Contributions(uint64_t seed) : random_(RandomKey::from(seed)) {}

  uint64_t below(uint64_t bound) { return random_.next_below(bound); }

  Unit of(MadeUpWorker& worker, Fields fields) {
    const Entries entries = draw();
    if (entries.empty()) return {.packets = {worker.empty(fields)}, .decoded = {}};
    const auto count = static_cast<uint8_t>(1 + below(std::min<uint64_t>(3, entries.size())));
    Unit out;
    auto from = entries.begin();
    for (uint8_t at = 0; at < count; ++at) {
      auto to = from;
      std::advance(to, at + 1 == count ? std::distance(from, entries.end()) : std::ssize(entries) / count);
      fields.fragment = at;
      fields.flags = at + 1 == count ? flag::kLast : uint8_t{0};
      fields.window_indices = kCodecsIndices;
      fields.codecs = draw_codecs();
      out.packets.push_back(worker.contribution(fields, Entries(from, to)));
      read(out, Entries(from, to), fields.codecs.value);
      from = to;
    }
    return out;
  }

  /// Every pair that there can be was in a packet.
  void expect_all_seen() const {
    for (const WindowIndexCodec index : kIndexCodecs) {
      for (const WindowValueCodec value : kValueCodecs) {
        if (!can_be(index, value)) continue;
        EXPECT_TRUE(seen_.contains({static_cast<uint8_t>(index), static_cast<uint8_t>(value)}))
            << static_cast<int>(index) << " with " << static_cast<int>(value);
      }
    }
  }

 private:
  /// Nothing, some entries, or most of the window; small and large values. No sum is over the headroom of four workers.
  Entries draw() {
    constexpr uint64_t kCounts[] = {0, 120, 120, 3 * kCodecsIndices};
    const int shift = below(2) == 0 ? 4 : 20;
    Entries entries;
    for (uint64_t left = below(1 + kCounts[below(4)]); left > 0; --left) {
      entries[static_cast<uint16_t>(below(kCodecsIndices))] = static_cast<int32_t>(random_.next_u32()) >> shift;
    }
    return entries;
  }

  WindowCodecs draw_codecs() {
    WindowCodecs codecs;
    do {
      codecs.index = kIndexCodecs[below(std::size(kIndexCodecs))];
      codecs.value = kValueCodecs[below(std::size(kValueCodecs))];
    } while (!can_be(codecs.index, codecs.value));
    codecs.rounding = below(2) == 0 ? WindowRounding::kNearest : WindowRounding::kRandom;
    codecs.random = RandomKey::from(random_.next_u64());
    return codecs;
  }

  /// Decodes the last packet: indices are the intended ones with every codec, and values of 32 bits too.
  void read(Unit& out, const Entries& meant, WindowValueCodec value) {
    const protocol::Datagram datagram = *protocol::parse_datagram(out.packets.back());
    seen_.emplace(datagram.header.index_codec, datagram.header.value_codec);
    const Entries decoded = entries_of(datagram, kCodecsIndices);
    EXPECT_TRUE(std::ranges::equal(decoded, meant, {}, &Entries::value_type::first, &Entries::value_type::first));
    if (value == WindowValueCodec::kFixed32) {
      EXPECT_EQ(decoded, meant);
    }
    out.decoded.insert(decoded.begin(), decoded.end());
  }

  RandomSequence random_;
  std::set<std::pair<uint8_t, uint8_t>> seen_;
};

void add(Entries& sums, const Entries& decoded) {
  for (const auto& [index, value] : decoded) sums[index] += value;
}

/// The same packet as a time-out sends it again, with FLUSH.
ByteBuffer flushed(MadeUpWorker& worker, const ByteBuffer& packet) {
  const protocol::Datagram datagram = *protocol::parse_datagram(packet);
  protocol::DatagramHeader header = datagram.header;
  header.flags |= flag::kFlush;
  return worker.sealed(header, {}, datagram.payload);
}

TEST(CodecsTest, ManyTurnsAreTheSumsOfTheDecodedPackets) {
  SwitchRig rig({.workers = 4, .slots = 2, .window_indices = kCodecsIndices, .slots_max = 4});
  rig.open();
  Contributions contributions(12);
  for (uint64_t turn = 1; turn < 400; ++turn) {
    std::vector<std::pair<uint32_t, ByteBuffer>> packets;
    Entries expected;
    for (uint32_t worker = 0; worker < 4; ++worker) {
      const Unit unit = contributions.of(rig.worker(worker), {.turn = turn, .step = static_cast<uint32_t>(turn - 1)});
      for (const ByteBuffer& packet : unit.packets) packets.emplace_back(worker, packet);
      add(expected, unit.decoded);
    }
    for (size_t at = packets.size() - 1; at > 0; --at) std::swap(packets[at], packets[contributions.below(at + 1)]);
    for (const auto& [worker, packet] : packets) rig.give(worker, packet);
    for (uint32_t at = 0; at < 4; ++at) ASSERT_EQ(rig.result(at), expected) << "turn " << turn;
  }
  EXPECT_EQ(rig.counted(Event::kOmittedOverflow) + rig.counted(Event::kMalformedPayload), 0);
  contributions.expect_all_seen();
}

TEST(CodecsTest, AddedUpByARackOrHandedOnByItTheSumsAreTheSame) {
  // A forced run of 32-bit values is as long as the window.
  RackRig rig({.window_indices = kCodecsIndices, .packet_bytes_max = 8000, .rack_packet_bytes_max = 8000});
  rig.open();
  Contributions contributions(13);
  for (uint64_t turn = 1; turn < 300; ++turn) {
    const Fields fields{.turn = turn, .step = static_cast<uint32_t>(turn - 1)};
    // Worker 0 past the rack: the other one's units are flushed, and go up raw.
    const bool raw = contributions.below(3) == 0;
    Entries expected;
    for (uint32_t worker = 0; worker < 3; ++worker) {
      const bool past = worker == 2 || (raw && worker == 0);
      MadeUpWorker& from = past ? rig.at_shard(worker) : rig.at_rack(worker);
      const Unit unit = contributions.of(from, fields);
      for (const ByteBuffer& packet : unit.packets) {
        past ? rig.give_shard(packet) : rig.give_rack(packet);
        if (!past && raw) rig.give_rack(flushed(from, packet));
      }
      add(expected, unit.decoded);
    }
    for (uint32_t worker = 0; worker < 3; ++worker) ASSERT_EQ(rig.told(worker), expected) << "turn " << turn;
  }
  EXPECT_GT(rig.counted_at_shard(Event::kGroupAdded), 100);
  EXPECT_GT(rig.counted_at_rack(Event::kForwarded), 100);
  EXPECT_EQ(rig.counted_at_shard(Event::kMalformedPayload) + rig.counted_at_rack(Event::kMalformedPayload), 0);
  contributions.expect_all_seen();
}

}  // namespace
}  // namespace millrace::testing
