// Packets of all kinds into an aggregator: raw bytes of anybody, and well signed packets of workers of the job whose every
// field may be anything. It never aborts; what it sends is well formed and signed; a turn that it closed has, in the same epoch
// and life, one result, whoever is told it and however often.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/base/check.h"
#include "switch_agg/aggregator.h"
#include "tests/fuzz/byte_source.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;

class SwitchFuzz {
 public:
  static constexpr uint32_t kWorkers = 3;
  static constexpr uint32_t kSlots = 2;
  static constexpr uint32_t kIndices = 128;
  static constexpr uint32_t kJob = 7;

  explicit SwitchFuzz(ByteSource& source)
      : source_(source),
        aggregator_({.jobs_max = 2, .slots_max = 3, .window_indices_max = kIndices, .packet_bytes_max = 1200}, 1) {
    switch_agg::SwitchJob job{
        .job = kJob, .name = "fuzz", .workers = kWorkers, .window_indices = kIndices, .slots = kSlots};
    job.key.fill(1);
    if (source_.one_in(2)) job.reselect_k = 1 + source_.below(8);
    MILLRACE_CHECK(aggregator_.add_job(job, now_).has_value());
    for (uint16_t id = 0; id < kWorkers; ++id) workers_.emplace_back(kJob, job.key, id);
    for (uint32_t at = 0; at < kWorkers; ++at) shake_hands(at);
    if (!source_.one_in(8)) greet(1 + source_.below(2), 1);
  }

  void run() {
    while (!source_.empty()) step();
  }

 private:
  void step() {
    const uint32_t at = source_.below(kWorkers);
    switch (source_.below(16)) {
      case 0: return give(at, source_.bytes(200));
      case 1: return shake_hands(at);
      case 2: return greet(static_cast<uint32_t>(source_.number(4)), source_.number(4));
      case 3: return hello(at, static_cast<uint32_t>(source_.number(4)));
      case 4: return anything(at);
      case 5: return kept(at);
      case 6: return damaged();
      case 7: return tick();
      default: return contribution(at);
    }
  }

  /// One for all calls: its room is large beside what most of them write.
  KeepingSink& empty_sink() {
    sink_.sent.clear();
    sink_.rooms_left = UINT64_MAX;
    return sink_;
  }
  void give(uint32_t from, ByteSpan packet) {
    last_.assign(packet.begin(), packet.end());
    KeepingSink& sink = empty_sink();
    if (source_.one_in(32)) sink.rooms_left = source_.below(3);
    aggregator_.receive({.bytes = packet, .from = workers_[from].endpoint()}, now_, sink);
    look(sink);
  }
  void tick() {
    now_ += source_.one_in(8) ? 11 * kNsPerS : kNsPerMs * source_.byte();
    KeepingSink& sink = empty_sink();
    aggregator_.tick(now_, sink);
    look(sink);
  }
  void damaged() {
    if (last_.empty()) return;
    ByteBuffer packet = last_;
    packet[source_.byte() % packet.size()] ^= source_.byte();
    give(source_.below(kWorkers), packet);
  }

  void shake_hands(uint32_t at) {
    KeepingSink& sink = empty_sink();
    aggregator_.receive({.bytes = workers_[at].challenge_request(), .from = workers_[at].endpoint()}, now_, sink);
    MILLRACE_CHECK(sink.sent.size() == 1);  // a CHALLENGE: slots are never all taken here
    MILLRACE_CHECK(workers_[at].take_challenge(sink.sent[0].bytes));
  }
  void hello(uint32_t at, uint32_t epoch) {
    const uint64_t live = source_.one_in(4) ? source_.byte() % 8 : 7;
    std::vector<uint64_t> positions = {source_.number(4), source_.number(4)};
    give(at,
         workers_[at].hello({.epoch = epoch, .live = live, .positions = positions, .membership = source_.below(2)}));
  }
  void greet(uint32_t epoch, uint64_t position) {
    for (uint32_t at = 0; at < kWorkers; ++at) {
      const uint64_t own = position + (source_.one_in(4) ? 1 : 0);
      give(at, workers_[at].hello({.epoch = epoch, .live = 7, .positions = {own, position}, .membership = 0}));
    }
  }

  /// Near what the aggregator expects, so that turns close.
  void contribution(uint32_t at) {
    MadeUpWorker::ContributionFields fields{.window_indices = kIndices};
    fields.slot = static_cast<uint16_t>(source_.below(kSlots));
    const Known& known = known_[fields.slot];
    fields.epoch = aggregator_.status()[0].epoch;
    fields.turn = known.turn + (source_.one_in(8) ? source_.number(3) : 1);
    fields.step = known.step;
    fields.window = known.window;
    if (source_.one_in(16)) fields.step = static_cast<uint32_t>(source_.number(4));
    if (source_.one_in(16)) fields.window = static_cast<uint32_t>(source_.number(8));
    fields.next = source_.one_in(2) ? protocol::kNoWindow : fields.window + kSlots * (1 + source_.below(2));
    fields.exponent = static_cast<int8_t>(source_.one_in(32) ? source_.byte() : 0);
    if (source_.one_in(8)) return give(at, workers_[at].empty(fields));
    if (source_.one_in(8)) fields.fragment = static_cast<uint8_t>(source_.below(3));
    if (source_.one_in(8)) fields.flags = source_.byte() & 0x7F;
    Entries entries;
    for (uint32_t count = 1 + source_.below(12); count > 0; --count) {
      const auto value = static_cast<int32_t>(source_.number(50)) << (source_.one_in(8) ? 24 : 0);
      entries[static_cast<uint16_t>(source_.byte() % kIndices)] = std::max(value, -INT32_MAX);
    }
    give(at, workers_[at].contribution(fields, entries));
  }
  void anything(uint32_t at) {
    DatagramHeader header = workers_[at].header(static_cast<DatagramType>(source_.byte() % 13));
    header.flags = source_.byte();
    header.fragment = source_.byte() % 17;
    header.turn = source_.number(4);
    header.epoch = static_cast<uint32_t>(source_.number(4));
    header.step = static_cast<uint32_t>(source_.number(4));
    header.window = static_cast<uint32_t>(source_.number(4));
    header.next = static_cast<uint32_t>(source_.number(4));
    header.slot = static_cast<uint16_t>(source_.number(4));
    header.entries = static_cast<uint16_t>(source_.number(20));
    header.index_codec = source_.byte() % 7;
    header.value_codec = source_.byte() % 7;
    ByteBuffer extension = source_.bytes(48);
    extension.resize(extension.size() / 8 * 8);
    const ByteBuffer payload = source_.bytes(100);
    give(at, workers_[at].sealed(header, extension, payload));
  }
  /// What was heard as a result, as a KEPT: true, or with a field changed.
  void kept(uint32_t at) {
    if (results_.empty()) return;
    auto chosen = results_.begin();
    std::advance(chosen, source_.below(static_cast<uint32_t>(std::min<size_t>(results_.size(), 200))));
    const auto result = protocol::parse_datagram(chosen->second);
    DatagramHeader header = result->header;
    const DatagramHeader own = workers_[at].header(DatagramType::kKept);
    header.type = own.type;
    header.life = own.life;
    header.worker = own.worker;
    header.epoch = aggregator_.status()[0].epoch;
    if (source_.one_in(4)) header.fragment = source_.byte() % 16;
    if (source_.one_in(4)) header.turn = source_.number(4);
    if (source_.one_in(8)) header.flags ^= source_.byte() & 0x7F;
    give(at, workers_[at].sealed(header, result->extension, result->payload));
  }

  void look(const KeepingSink& sink) {
    for (const Sent& packet : sink.sent) {
      const auto datagram = protocol::parse_datagram(packet.bytes);
      MILLRACE_CHECK(datagram.has_value());
      MILLRACE_CHECK(packet.bytes.size() <= 1200, packet.bytes.size());
      if (datagram->header.type == DatagramType::kResult) look_at_result(*datagram, packet.bytes);
      if (datagram->header.type == DatagramType::kWelcome) look_at_welcome(*datagram);
    }
  }
  /// What was told of a turn is told again byte by byte, but for who it is told and the number of the sending.
  void look_at_result(const Datagram& datagram, const ByteBuffer& packet) {
    const DatagramHeader& header = datagram.header;
    MILLRACE_CHECK(header.slot < kSlots && header.turn > 0, header.slot, header.turn);
    MILLRACE_CHECK(protocol::read_result_terms(datagram.extension).has_value());
    (void)entries_of(datagram, kIndices);
    const Key key{header.life, header.epoch, header.slot, header.turn, header.fragment};
    const auto [known, is_new] = results_.emplace(key, packet);
    ByteBuffer before = known->second;
    ByteBuffer after = packet;
    for (ByteBuffer* bytes : {&before, &after}) {
      std::fill_n(bytes->begin() + 16, 8, uint8_t{0});
      std::fill_n(bytes->begin() + 48, 2, uint8_t{0});
      bytes->resize(bytes->size() - 16);
    }
    MILLRACE_CHECK(before == after, header.turn);
    Known& slot = known_[header.slot];
    if (header.turn >= slot.turn) {
      slot.turn = header.turn;
      slot.step = header.next == protocol::kNoWindow ? header.step + 1 : header.step;
      slot.window = header.next == protocol::kNoWindow ? header.slot : header.next;
    }
  }
  void look_at_welcome(const Datagram& datagram) {
    const auto welcome = protocol::read_welcome(datagram.extension);
    MILLRACE_CHECK(welcome && welcome->slots == kSlots);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (welcome->turns[slot] == known_[slot].turn) continue;
      known_[slot] = {.turn = welcome->turns[slot], .step = known_[slot].step, .window = slot};
    }
  }

  struct Known {
    uint64_t turn = 0;
    uint32_t step = 0;
    uint32_t window = 0;
  };
  using Key = std::tuple<uint64_t, uint32_t, uint16_t, uint64_t, uint8_t>;

  ByteSource& source_;
  TimeNs now_ = kNsPerS;
  switch_agg::Aggregator aggregator_;
  std::vector<MadeUpWorker> workers_;
  std::array<Known, kSlots> known_{Known{0, 0, 0}, Known{0, 0, 1}};
  std::map<Key, ByteBuffer> results_;
  ByteBuffer last_;
  KeepingSink sink_;
};

}  // namespace
}  // namespace millrace::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::testing::ByteSource source(data, size);
  millrace::testing::SwitchFuzz(source).run();
  return 0;
}
