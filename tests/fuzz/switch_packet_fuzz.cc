// Feeds packets of all kinds to an aggregator that decides. They are raw bytes of any sender, and correctly signed
// packets of the job's workers and racks with arbitrary fields. The aggregator never aborts; its packets are well
// formed and signed. A closed turn has one result per epoch and incarnation, for all receivers and retransmissions.
// That result is the sum of the units that the aggregator reported as taken, of each unit once.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/base/check.h"
#include "switch_agg/aggregator/aggregator.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/counted.h"
#include "tests/fuzz/drawn_window.h"
#include "tests/fuzz/sums_reckoned.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::PartialTerms;
using switch_agg::AggregatorEvent;
namespace flag = protocol::datagram_flag;

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
    racks_ = std::array<std::vector<uint64_t>, 3>{{{}, {3}, {3, 4}}}[source_.below(3)];
    job.racks = racks_;
    MILLRACE_CHECK(aggregator_.add_job(job, now_).has_value());
    for (uint16_t id = 0; id < kWorkers; ++id) workers_.emplace_back(kJob, job.key, id);
    for (uint16_t rack = 0; rack < racks_.size(); ++rack)
      workers_.emplace_back(kJob, job.key, static_cast<uint16_t>(protocol::kRackWorkers + rack));
    for (uint32_t at = 0; at < workers_.size(); ++at) shake_hands(at);
    for (uint32_t rack = 0; rack < racks_.size(); ++rack) rack_hello(rack);
    if (!source_.one_in(8)) greet(1 + source_.below(2), 1);
  }

  void run() {
    while (!source_.empty()) step();
  }

 private:
  void step() {
    // Of a rack now and then where a worker's is meant.
    const uint32_t at = source_.below(source_.one_in(16) ? static_cast<uint32_t>(workers_.size()) : kWorkers);
    switch (source_.below(20)) {
      case 0: return give(at, source_.bytes(200));
      case 1: return shake_hands(at);
      case 2: return greet(static_cast<uint32_t>(source_.number(4)), source_.number(4));
      case 3: return hello(at, static_cast<uint32_t>(source_.number(4)));
      case 4: return anything(at);
      case 5: return kept(at);
      case 6: return damaged();
      case 7: return tick();
      case 8:
      case 9:
      case 10: return racks_.empty() ? contribution(at) : group();
      case 11:
      case 12: return racks_.empty() ? contribution(at) : rack_unit();
      case 13: return racks_.empty() ? contribution(at) : rack_hello(source_.below(rack_count()));
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
    last_ = ByteBuffer(packet.begin(), packet.end());
    KeepingSink& sink = empty_sink();
    if (source_.one_in(32)) sink.rooms_left = source_.below(3);
    has_room_ = sink.rooms_left > 3;
    before_ = aggregator_.counters();
    aggregator_.receive({.bytes = last_, .from = workers_[from].endpoint()}, now_, sink);
    reckon();
    look(sink);
  }
  void tick() {
    now_ += source_.one_in(8) ? 11 * kNsPerS : kNsPerMs * source_.byte();
    KeepingSink& sink = empty_sink();
    before_ = aggregator_.counters();
    aggregator_.tick(now_, sink);
    MILLRACE_CHECK(counted(AggregatorEvent::kSent) == sink.sent.size(), sink.sent.size());
    look(sink);
  }
  void damaged() {
    if (last_.empty()) return;
    ByteBuffer packet = last_;
    packet[source_.byte() % packet.size()] ^= source_.byte();
    give(source_.below(static_cast<uint32_t>(workers_.size())), packet);
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
    if (source_.one_in(16)) positions.resize(source_.below(4), 1);  // of another number of slots
    give(at, workers_[at].hello(
                 {.epoch = epoch, .live = live, .positions = positions, .membership_hash = source_.below(2)}));
  }
  void greet(uint32_t epoch, uint64_t position) {
    for (uint32_t at = 0; at < kWorkers; ++at) {
      const uint64_t own = position + (source_.one_in(4) ? 1 : 0);
      give(at, workers_[at].hello({.epoch = epoch, .live = 7, .positions = {own, position}, .membership_hash = 0}));
    }
  }

  /// Begins a rack's session: its HELLO does not state an epoch.
  void rack_hello(uint32_t rack) {
    shake_hands(kWorkers + rack);
    const uint32_t epoch = source_.one_in(4) ? static_cast<uint32_t>(source_.number(4)) : 1;
    give(kWorkers + rack, workers_[kWorkers + rack].hello({.epoch = epoch, .live = 7, .positions = {}}));
  }
  uint32_t rack_count() const { return static_cast<uint32_t>(racks_.size()); }

  /// Returns fields near those that the aggregator expects, so that turns close.
  MadeUpWorker::ContributionFields expected_fields() {
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
    fields.codecs = drawn_codecs(source_);
    return fields;
  }
  /// As a worker sends it.
  ByteBuffer unit(MadeUpWorker& worker) {
    MadeUpWorker::ContributionFields fields = expected_fields();
    if (source_.one_in(8)) {
      if (source_.one_in(2)) fields.flags |= flag::kFin;
      if (source_.one_in(2)) fields.next = protocol::kNoWindow;
      return worker.empty(fields);
    }
    if (source_.one_in(8)) fields.fragment = static_cast<uint8_t>(source_.below(3));
    if (source_.one_in(8)) fields.flags = source_.byte() & 0x7F;
    return worker.contribution(fields, drawn_entries(source_, kIndices));
  }
  void contribution(uint32_t at) {
    const ByteBuffer packet = unit(workers_[at]);
    if (!source_.one_in(4)) return give(at, packet);
    const Datagram datagram = *protocol::parse_datagram(packet);
    DatagramHeader header = datagram.header;
    ByteBuffer payload(datagram.payload.begin(), datagram.payload.end());
    source_.one_in(2) ? change_field(source_, header) : change_bytes(source_, payload);
    give(at, workers_[at].sealed(header, {}, payload));
  }

  /// A unit that a rack hands on.
  void rack_unit() {
    const uint32_t rack = source_.below(rack_count());
    const auto worker = static_cast<uint16_t>(source_.below(kWorkers));
    const Datagram datagram = *protocol::parse_datagram(keep(unit(workers_[worker])));
    const uint64_t have = uint64_t{1} << worker;
    const PartialTerms terms{.have = have, .last = (datagram.header.flags & flag::kLast) != 0 ? have : 0, .hash = 0};
    partial(rack, datagram.header, terms, datagram.payload);
  }
  /// A group of up to four parts, mostly all of them and in order.
  void group() {
    const uint32_t rack = source_.below(rack_count());
    MadeUpWorker::ContributionFields fields = expected_fields();
    const auto parts = static_cast<uint8_t>(1 + source_.below(source_.one_in(2) ? 4 : 1));
    const uint8_t flags = source_.one_in(2) ? flag::kReselected : uint8_t{0};
    const PartialTerms terms{.have = racks_[rack] & aggregator_.status()[0].live,
                             .last = source_.one_in(4) ? source_.byte() % uint64_t{8} : 0,
                             .hash = 1 + source_.below(3)};
    std::vector<Entries> pieces(parts);
    const bool is_right = !source_.one_in(4);  // else indices in any order, and some twice
    for (const auto& [index, value] : drawn_entries(source_, kIndices)) {
      pieces[is_right ? index * size_t{parts} / kIndices : source_.below(parts)][index] = value;
      if (!is_right && source_.one_in(4)) pieces[0][index] = value;
    }
    for (uint8_t part = 0; part < parts; ++part) {
      if (source_.one_in(16)) continue;
      fields.fragment = part;
      fields.flags = flags | (part + 1 == parts ? flag::kLast : uint8_t{0});
      if (pieces[part].empty() && part + 1 == parts) fields.flags |= flag::kEmpty;
      const Datagram datagram = *protocol::parse_datagram(keep(workers_[0].contribution(fields, pieces[part])));
      partial(rack, datagram.header, terms, datagram.payload);
    }
  }
  ByteSpan keep(ByteBuffer packet) { return kept_packet_ = std::move(packet); }
  /// header, payload  of a CONTRIB.
  void partial(uint32_t rack, DatagramHeader header, PartialTerms terms, ByteSpan payload) {
    MadeUpWorker& sender = workers_[kWorkers + rack];
    const DatagramHeader own = sender.header(DatagramType::kPartial);
    header.type = own.type;
    header.incarnation = own.incarnation;
    header.worker = own.worker;
    ByteBuffer body(payload.begin(), payload.end());
    if (source_.one_in(8)) change_field(source_, header);
    if (source_.one_in(16)) change_bytes(source_, body);
    if (source_.one_in(16)) terms.have = source_.number(9);
    if (source_.one_in(16)) terms.last = source_.number(9);
    if (source_.one_in(16)) terms.hash = source_.number(4);
    ByteBuffer extension(protocol::kPartialTermsBytes);
    protocol::put_partial_terms(terms, extension);
    if (source_.one_in(64)) extension.resize(source_.below(5) * size_t{8});
    give(kWorkers + rack, sender.sealed(header, extension, body));
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
  /// Sends a result that was heard as a KEPT: unchanged, or with a field changed.
  void kept(uint32_t at) {
    if (results_.empty()) return;
    auto chosen = results_.begin();
    std::advance(chosen, source_.below(static_cast<uint32_t>(std::min<size_t>(results_.size(), 200))));
    const auto result = protocol::parse_datagram(chosen->second);
    DatagramHeader header = result->header;
    const DatagramHeader own = workers_[at].header(DatagramType::kKept);
    header.type = own.type;
    header.incarnation = own.incarnation;
    header.worker = own.worker;
    header.epoch = aggregator_.status()[0].epoch;
    if (source_.one_in(4)) header.fragment = source_.byte() % 16;
    if (source_.one_in(4)) header.turn = source_.number(4);
    if (source_.one_in(8)) header.flags ^= source_.byte() & 0x7F;
    give(at, workers_[at].sealed(header, result->extension, result->payload));
  }

  uint64_t counted(AggregatorEvent event) const { return aggregator_.counters()[event] - before_[event]; }

  /// Checks the outcome of the last packet.
  void reckon() {
    MILLRACE_CHECK(counted(AggregatorEvent::kReceived) == 1);
    MILLRACE_CHECK(counted(AggregatorEvent::kSent) == sink_.sent.size(), sink_.sent.size());
    const switch_agg::SwitchJobStatus status = aggregator_.status()[0];
    if (std::exchange(incarnation_, status.incarnation) != status.incarnation ||
        std::exchange(epoch_, status.epoch) != status.epoch) {
      sums_.forget();
      groups_.clear();
      cut_.clear();
    }
    const auto datagram = protocol::parse_datagram(last_);
    const uint64_t taken = counted(AggregatorEvent::kAdded) + counted(AggregatorEvent::kGroupPart);
    const uint64_t dropped = dropped_packets(aggregator_.counters()) - dropped_packets(before_);
    // A group that is invalid is reported with its last part, which was taken.
    const bool is_wrong_group =
        counted(AggregatorEvent::kGroupPart) == 1 && counted(AggregatorEvent::kMalformedPayload) == 1;
    MILLRACE_CHECK(taken + dropped <= (is_wrong_group ? 2u : 1u), taken, dropped);
    MILLRACE_CHECK(datagram || dropped == 1);
    if (!datagram) return;
    const bool is_sum =
        datagram->header.type == DatagramType::kContribution || datagram->header.type == DatagramType::kPartial;
    MILLRACE_CHECK(!is_sum || taken + dropped >= 1);
    if (taken != 0) reckon_taken(*datagram);
    if (counted(AggregatorEvent::kClosed) != 0) reckon_closed(datagram->header);
  }
  void reckon_taken(const Datagram& datagram) {
    const DatagramHeader& header = datagram.header;
    const Entries entries = entries_of(datagram, kIndices);
    const auto terms = protocol::read_partial_terms(datagram.extension);
    if (counted(AggregatorEvent::kAdded) != 0) {
      const auto worker = terms ? static_cast<uint16_t>(std::countr_zero(terms->have)) : header.worker;
      return sums_.unit(header.slot, header.turn, worker, header.fragment, entries);
    }
    Group& group = groups_[{header.slot, header.worker}];
    if (group.turn != header.turn || group.hash != terms->hash) group = {header.turn, terms->hash, {}};
    MILLRACE_CHECK(group.parts.emplace(header.fragment, entries).second, header.fragment);
    if (counted(AggregatorEvent::kGroupAdded) != 0) {
      SumsReckoned::Sums sums;
      std::set<uint16_t>* kept = nullptr;
      if (std::exchange(cut_turns_[header.slot], header.turn) != header.turn) cut_[header.slot].clear();
      if ((header.flags & flag::kReselected) != 0) kept = &cut_[header.slot][terms->have];
      for (const auto& [part, said] : group.parts) {
        for (const auto& [index, value] : said) {
          MILLRACE_CHECK(sums.emplace(index, value).second, index);
          if (kept != nullptr) kept->insert(index);
        }
      }
      sums_.group(header.slot, header.turn, terms->have, sums);
    }
    if (counted(AggregatorEvent::kGroupAdded) + counted(AggregatorEvent::kMalformedPayload) != 0) group.parts.clear();
  }
  /// The turn of the packet that was given last is closed.
  void reckon_closed(const DatagramHeader& by) {
    if (!has_room_) return;
    Entries said;
    std::optional<protocol::ResultTerms> terms;
    for (const Sent& packet : sink_.sent) {
      const Datagram datagram = *protocol::parse_datagram(packet.bytes);
      const DatagramHeader& header = datagram.header;
      if (header.type != DatagramType::kResult || header.slot != by.slot || header.turn != by.turn) continue;
      terms = protocol::read_result_terms(datagram.extension);
      said.merge(entries_of(datagram, kIndices));
    }
    MILLRACE_CHECK(terms.has_value());
    const uint64_t left = sums_.check(by.slot, by.turn, terms->contributors, said);
    const uint64_t omitted = counted(AggregatorEvent::kOmittedOverflow) + counted(AggregatorEvent::kOmittedNoRoom);
    MILLRACE_CHECK(left >= omitted, left, omitted);
    MILLRACE_CHECK(left == omitted || counted(AggregatorEvent::kReselected) == 1, left, omitted);
    if (cut_turns_[by.slot] != by.turn) cut_[by.slot].clear();
    uint64_t selected = 0;
    for (const auto& [workers, indices] : cut_[by.slot]) selected |= workers;
    MILLRACE_CHECK(terms->selected == selected, terms->selected, selected);
  }
  /// Checks the entries that each rack retained: marks of each entry of a result of an open slot's last turn.
  void look_at_marks(const Datagram& datagram, const Entries& entries) {
    const auto marks = protocol::RetainedMarks::read(datagram.extension, static_cast<uint32_t>(entries.size()));
    MILLRACE_CHECK(marks.has_value());
    const auto cut = cut_.find(datagram.header.slot);
    if (counted(AggregatorEvent::kClosed) == 0 || cut == cut_.end()) return;
    for (size_t rack = 0; rack < marks->racks(); ++rack) {
      const auto kept = cut->second.find(marks->workers(rack));
      MILLRACE_CHECK(kept != cut->second.end(), marks->workers(rack));
      uint32_t at = 0;
      for (const auto& [index, value] : entries)
        MILLRACE_CHECK(marks->is_retained(rack, at++) == kept->second.contains(index), index);
    }
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
  /// Checks that a retransmitted result of a turn is identical byte by byte, except for its receiver and its sending
  /// number.
  void look_at_result(const Datagram& datagram, const ByteBuffer& packet) {
    const DatagramHeader& header = datagram.header;
    MILLRACE_CHECK(header.slot < kSlots && header.turn > 0, header.slot, header.turn);
    MILLRACE_CHECK(protocol::read_result_terms(datagram.extension).has_value());
    look_at_marks(datagram, entries_of(datagram, kIndices));
    const Key key{header.incarnation, header.epoch, header.slot, header.turn, header.fragment};
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
    const bool is_rack = datagram.header.worker >= protocol::kRackWorkers;
    MILLRACE_CHECK(welcome && (is_rack ? welcome->slots == 0 : welcome->slots >= 1 && welcome->slots <= kSlots));
    if (is_rack || counted(AggregatorEvent::kHelloRefused) != 0) return;
    for (uint32_t slot = 0; slot < welcome->slots; ++slot) {
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
  std::vector<uint64_t> racks_;
  // Reckoned by the packets and the counters.
  struct Group {
    uint64_t turn = 0;
    uint64_t hash = 0;
    std::map<uint8_t, Entries> parts;
  };
  SumsReckoned sums_;
  std::map<std::pair<uint16_t, uint16_t>, Group> groups_;  ///< by slot and rack
  std::map<uint16_t, std::map<uint64_t, std::set<uint16_t>>>
      cut_;  ///< by slot: racks that trimmed their sums, and their retained entries
  std::map<uint16_t, uint64_t> cut_turns_;
  switch_agg::AggregatorCounters before_;
  uint64_t incarnation_ = 0;
  uint32_t epoch_ = 0;
  bool has_room_ = true;
  ByteBuffer kept_packet_;
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
