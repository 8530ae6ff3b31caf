// Feeds packets of all kinds to a rack's aggregator (role combine): from its workers, the decider and any sender. The
// aggregator never aborts; its packets are well formed and signed. A group that it hands up is the sum of each unit
// that it took, once, of all of the rack's live workers. A repeated group is identical byte by byte. A unit that it
// hands up equals the worker's unit.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/base/check.h"
#include "switch_agg/aggregator/aggregator.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/counted.h"
#include "tests/fuzz/drawn_window.h"
#include "tests/fuzz/made_up_aggregator.h"
#include "tests/fuzz/sums_reckoned.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::NoticeCode;
using switch_agg::AggregatorEvent;
namespace flag = protocol::datagram_flag;

class RackFuzz {
 public:
  static constexpr uint32_t kWorkers = 3;  // of the rack; the job has a fourth
  static constexpr uint64_t kRack = 7;
  static constexpr uint32_t kSlots = 2;
  static constexpr uint32_t kIndices = 8192;
  static constexpr uint32_t kJob = 7;
  static constexpr uint32_t kPacketBytes = 1200;

  explicit RackFuzz(ByteSource& source)
      : source_(source),
        aggregator_({.jobs_max = 1, .slots_max = 2, .window_indices_max = kIndices, .packet_bytes_max = kPacketBytes},
                    1),
        decider_(kJob, key(), protocol::kRackWorkers + 1, 100) {
    switch_agg::SwitchJob job{.job = kJob, .name = "fuzz", .key = key(), .role = switch_agg::Role::kCombine};
    job.workers = kWorkers + 1;
    job.window_indices = kIndices;
    job.slots = kSlots;
    job.rack = kRack;
    job.rack_number = 1;
    job.shard.address[14] = 1;
    job.shard.port = 1;
    decider_endpoint_ = job.shard;
    if (source_.one_in(2)) job.reselect_k = 1 + source_.below(8);
    MILLRACE_CHECK(aggregator_.add_job(job, now_).has_value());
    for (uint16_t id = 0; id < kWorkers; ++id) workers_.emplace_back(kJob, job.key, id);
    for (uint32_t at = 0; at < kWorkers; ++at) shake_hands(at);
    if (source_.one_in(8)) return;
    for (uint32_t at = 0; at < kWorkers; ++at) hello(at, 1, 15, 0);
    challenge();
    welcome();
  }

  void run() {
    while (!source_.empty()) step();
  }

 private:
  static protocol::JobKey key() {
    protocol::JobKey key;
    key.fill(1);
    return key;
  }

  void step() {
    const uint32_t at = source_.below(kWorkers);
    switch (source_.below(24)) {
      case 0: return give(endpoint(at), source_.bytes(200));
      case 1: return shake_hands(at);
      case 2: return hello(at, static_cast<uint32_t>(source_.number(4)), drawn_live(), source_.below(2));
      case 3: return damaged();
      case 4: return tick();
      case 5: return anything(at);
      case 6: return challenge();
      case 7: return welcome();
      case 8: return lost();
      case 9: return notice();
      case 10: return anything_of_decider();
      case 11: return turn_over();
      case 12: return whole_turn();
      case 13: return restart();
      default: return contribution(at);
    }
  }
  uint64_t drawn_live() { return source_.one_in(4) ? source_.byte() % 16 : 15; }
  protocol::Endpoint endpoint(uint32_t at) const { return workers_[at].endpoint(); }

  KeepingSink& empty_sink() {
    sink_.sent.clear();
    sink_.rooms_left = source_.one_in(32) ? source_.below(4) : UINT64_MAX;
    has_room_ = sink_.rooms_left > 3;
    before_ = aggregator_.counters();
    return sink_;
  }
  void give(const protocol::Endpoint& from, ByteSpan packet) {
    last_ = ByteBuffer(packet.begin(), packet.end());
    aggregator_.receive({.bytes = last_, .from = from}, now_, empty_sink());
    reckon();
    look();
  }
  void tick() {
    now_ += source_.one_in(8) ? 11 * kNsPerS : kNsPerMs * source_.byte();
    aggregator_.tick(now_, empty_sink());
    note_life();
    look();
  }
  void damaged() {
    if (last_.empty()) return;
    ByteBuffer packet = last_;
    change_bytes(source_, packet);
    give(source_.one_in(2) ? decider_endpoint_ : endpoint(source_.below(kWorkers)), packet);
  }

  // Workers.
  void shake_hands(uint32_t at) {
    give(endpoint(at), workers_[at].challenge_request());
    for (const Sent& packet : sink_.sent) workers_[at].take_challenge(packet.bytes);
  }
  void hello(uint32_t at, uint32_t epoch, uint64_t live, uint64_t membership_hash) {
    if (workers_[at].incarnation() == 0) return;
    std::vector<uint64_t> positions;
    if (source_.one_in(32)) positions = {1, 1};
    give(endpoint(at), workers_[at].hello(
                           {.epoch = epoch, .live = live, .positions = positions, .membership_hash = membership_hash}));
  }
  void turn_over() {
    Turn& turn = turns_[source_.below(kSlots)];
    turn.turn += source_.one_in(8) ? source_.byte() : 1;
    turn.step += source_.below(2);
    turn.window = static_cast<uint32_t>(&turn - turns_.data()) + kSlots * source_.below(3);
    turn.exponent = static_cast<int8_t>(source_.below(3));
  }
  MadeUpWorker::ContributionFields expected_fields() {
    MadeUpWorker::ContributionFields fields{.window_indices = kIndices};
    fields.slot = static_cast<uint16_t>(source_.below(kSlots));
    const Turn& turn = turns_[fields.slot];
    fields.epoch = aggregator_.status()[0].epoch;
    fields.turn = turn.turn;
    fields.step = turn.step;
    fields.window = turn.window;
    fields.exponent = turn.exponent;
    fields.next = source_.one_in(2) ? protocol::kNoWindow : fields.window + kSlots * (1 + source_.below(2));
    fields.codecs = drawn_codecs(source_);
    return fields;
  }
  ByteBuffer unit(uint32_t at, MadeUpWorker::ContributionFields fields) {
    if (source_.one_in(8)) {
      if (source_.one_in(2)) {
        fields.flags |= flag::kFin;
        fields.next = protocol::kNoWindow;
      }
      return workers_[at].empty(fields);
    }
    return workers_[at].contribution(fields, source_.one_in(16) ? many() : drawn_entries(source_, kIndices));
  }
  /// Returns so large a number of large entries that a group takes several parts.
  Entries many() {
    Entries entries;
    const uint32_t stride = 1 + source_.below(4);
    for (uint32_t index = source_.below(8); index < 1024; index += stride)
      entries[static_cast<uint16_t>(index)] = static_cast<int32_t>(index << 12);
    return entries;
  }
  void contribution(uint32_t at) {
    if (workers_[at].incarnation() == 0) return;
    MadeUpWorker::ContributionFields fields = expected_fields();
    if (source_.one_in(8)) fields.fragment = static_cast<uint8_t>(source_.below(3));
    if (source_.one_in(8)) fields.flags = source_.byte() & 0x7F;
    if (source_.one_in(8)) fields.flags |= flag::kFlush;
    const ByteBuffer packet = unit(at, fields);
    if (!source_.one_in(8)) return give(endpoint(at), packet);
    const Datagram datagram = *protocol::parse_datagram(packet);
    DatagramHeader header = datagram.header;
    ByteBuffer payload(datagram.payload.begin(), datagram.payload.end());
    source_.one_in(2) ? change_field(source_, header) : change_bytes(source_, payload);
    give(endpoint(at), workers_[at].sealed(header, {}, payload));
  }
  /// All that a turn takes, one after the other: a group goes up, or it is too long for that.
  void whole_turn() {
    turn_over();
    MadeUpWorker::ContributionFields fields = expected_fields();
    const bool is_long = source_.one_in(16);
    if (is_long) fields.codecs = {protocol::WindowIndexCodec::kGap, protocol::WindowValueCodec::kFixed32};
    for (uint32_t at = 0; at < kWorkers; ++at) {
      if (workers_[at].incarnation() == 0 || source_.one_in(16)) continue;
      give(endpoint(at), is_long ? workers_[at].contribution(fields, run_of(at)) : unit(at, fields));
    }
  }
  /// Of all three workers together more than 16 parts hold.
  static Entries run_of(uint32_t at) {
    Entries entries;
    for (uint32_t index = 0; index < 1700; ++index) entries[static_cast<uint16_t>(at * 1700 + index)] = 1 << 24;
    return entries;
  }
  void anything(uint32_t at) {
    if (workers_[at].incarnation() == 0) return;
    const DatagramHeader header = drawn_header(workers_[at].header(static_cast<DatagramType>(source_.byte() % 13)));
    ByteBuffer extension = source_.bytes(48);
    extension.resize(extension.size() / 8 * 8);
    give(endpoint(at), workers_[at].sealed(header, extension, source_.bytes(100)));
  }
  DatagramHeader drawn_header(DatagramHeader header) {
    header.epoch = aggregator_.status()[0].epoch;
    header.slot = static_cast<uint16_t>(source_.below(kSlots));
    header.turn = turns_[header.slot].turn;
    for (uint32_t changes = source_.below(6); changes > 0; --changes) change_field(source_, header);
    return header;
  }

  // The decider.
  void challenge() {
    if (decider_.may_challenge()) give(decider_endpoint_, decider_.challenge());
  }
  void restart() {
    decider_.restart();
    if (source_.one_in(2)) challenge();
  }
  void welcome() {
    protocol::WelcomeTerms said{.slots = 0, .window_indices = kIndices, .turns = {}};
    if (source_.one_in(16)) said.window_indices = 64 * source_.byte();
    if (source_.one_in(16)) said.slots = source_.below(protocol::kSlotsMax + 1);
    ByteBuffer extension(protocol::kExtensionBytesMax);
    extension.resize(protocol::put_welcome(said, extension));
    give(decider_endpoint_, decider_.sealed(header_of(DatagramType::kWelcome), extension, {}));
  }
  /// Sends NOTICE kLost about packets that went up lately, about more, or about anything.
  void lost() {
    protocol::LostSequences lost{.first = sent_up_ - std::min<uint64_t>(sent_up_, source_.below(20)),
                                 .others = source_.number(16)};
    if (source_.one_in(8)) lost.first = source_.number(4);
    say({.code = NoticeCode::kLost,
         .epoch = 1,
         .incarnation = decider_.incarnation(),
         .worker_nonce = protocol::put_lost(lost)});
  }
  void notice() {
    protocol::Notice said{
        .code = static_cast<NoticeCode>(source_.below(9)), .epoch = 0, .incarnation = 0, .worker_nonce = {}};
    said.epoch = static_cast<uint32_t>(source_.number(4));
    said.incarnation = source_.number(4);
    said.worker_nonce[0] = source_.byte();
    say(said);
  }
  void say(const protocol::Notice& said) {
    ByteBuffer extension(protocol::kExtensionBytesMax);
    extension.resize(protocol::put_notice(said, extension));
    const DatagramHeader header = header_of(DatagramType::kNotice);
    give(decider_endpoint_,
         source_.one_in(8) ? decider_.as_hint(header, extension, {}) : decider_.sealed(header, extension, {}));
  }
  /// RESULT, KEPT, FETCH and the rest, which no rack is sent.
  void anything_of_decider() {
    const DatagramHeader header = drawn_header(decider_.header(static_cast<DatagramType>(source_.byte() % 13)));
    ByteBuffer extension = source_.bytes(48);
    extension.resize(extension.size() / 8 * 8);
    const ByteBuffer payload = source_.bytes(100);
    give(decider_endpoint_,
         source_.one_in(2) ? decider_.sealed(header, extension, payload) : decider_.to_all(header, extension, payload));
  }
  DatagramHeader header_of(DatagramType type) {
    DatagramHeader header = decider_.header(type);
    header.epoch = 1;
    if (source_.one_in(16)) change_field(source_, header);
    return header;
  }

  // Counts the aggregator's actions.
  uint64_t counted(AggregatorEvent event) const { return aggregator_.counters()[event] - before_[event]; }
  void note_life() {
    if (std::exchange(incarnation_, aggregator_.status()[0].incarnation) != aggregator_.status()[0].incarnation)
      forget();
  }
  void forget() {
    sums_.forget();
    flushed_.clear();
  }
  void reckon() {
    MILLRACE_CHECK(counted(AggregatorEvent::kReceived) == 1);
    note_life();
    const auto datagram = protocol::parse_datagram(last_);
    const uint64_t dropped = dropped_packets(aggregator_.counters()) - dropped_packets(before_);
    const uint64_t added = counted(AggregatorEvent::kAdded);
    MILLRACE_CHECK(added + dropped <= 1, added, dropped);
    MILLRACE_CHECK(datagram || dropped == 1);
    if (!datagram) return;
    const DatagramHeader& header = datagram->header;
    const uint64_t whole = counted(AggregatorEvent::kForwarded) + counted(AggregatorEvent::kNoRoom);
    MILLRACE_CHECK(header.type != DatagramType::kContribution || added + dropped + whole >= 1);
    if (header.type == DatagramType::kHello) reckon_hello(*datagram);
    const std::pair<uint16_t, uint64_t> at{header.slot, header.turn};
    if (added != 0) {
      MILLRACE_CHECK(!flushed_.contains(at), header.slot, header.turn);
      sums_.unit(header.slot, header.turn, header.worker, header.fragment, entries_of(*datagram, kIndices));
    }
    if (counted(AggregatorEvent::kFlushed) != 0) flushed_.insert(at);
    if (counted(AggregatorEvent::kGroupSent) != 0) reckon_group(header);
  }
  /// Of another process: every sum is thrown away.
  void reckon_hello(const Datagram& datagram) {
    const auto said = protocol::read_hello(datagram.extension);
    if (counted(AggregatorEvent::kHello) + counted(AggregatorEvent::kHelloAgain) == 0) return;
    const bool is_other = std::exchange(met_[datagram.header.worker], said->worker_nonce) != said->worker_nonce;
    if (is_other || counted(AggregatorEvent::kOpened) != 0) forget();
  }
  void reckon_group(const DatagramHeader& by) {
    MILLRACE_CHECK(!flushed_.contains({by.slot, by.turn}), by.slot, by.turn);
    if (!has_room_) return;
    Entries said;
    uint32_t parts = 0;
    bool is_cut = false;
    for (const Sent& packet : sink_.sent) {
      const Datagram datagram = *protocol::parse_datagram(packet.bytes);
      if (datagram.header.type != DatagramType::kPartial) continue;
      MILLRACE_CHECK(datagram.header.slot == by.slot && datagram.header.turn == by.turn);
      const Entries part = entries_of(datagram, kIndices);
      MILLRACE_CHECK(said.empty() || part.empty() || part.begin()->first > said.rbegin()->first);
      said.insert(part.begin(), part.end());
      MILLRACE_CHECK(datagram.header.fragment == parts, parts);
      ++parts;
      is_cut = (datagram.header.flags & flag::kReselected) != 0;
    }
    const size_t left = sums_.check(by.slot, by.turn, kRack & aggregator_.status()[0].live, said);
    MILLRACE_CHECK(is_cut == (left != 0), left);
    MILLRACE_CHECK(left == counted(AggregatorEvent::kEntriesNotSelected), left);
  }

  void look() {
    uint64_t partials = 0;
    for (const Sent& packet : sink_.sent) {
      const auto datagram = protocol::parse_datagram(packet.bytes);
      MILLRACE_CHECK(datagram.has_value());
      MILLRACE_CHECK(packet.bytes.size() <= kPacketBytes, packet.bytes.size());
      if (datagram->header.worker != protocol::kRackWorkers + 1) continue;
      MILLRACE_CHECK(packet.to == decider_endpoint_ && decider_.verifies(*datagram));
      decider_.hear(*datagram);
      if (datagram->header.type != DatagramType::kPartial) continue;
      ++partials;
      sent_up_ = datagram->header.sequence;
      look_at_partial(*datagram);
    }
    MILLRACE_CHECK(counted(AggregatorEvent::kSentUp) == partials, partials);
  }
  void look_at_partial(const Datagram& datagram) {
    const auto terms = protocol::read_partial_terms(datagram.extension);
    MILLRACE_CHECK(terms.has_value());
    MILLRACE_CHECK((datagram.header.flags & flag::kFlush) == 0);
    if (terms->hash == 0) {
      const Datagram unit = *protocol::parse_datagram(last_);
      MILLRACE_CHECK(terms->have == uint64_t{1} << unit.header.worker, terms->have, unit.header.worker);
      MILLRACE_CHECK(std::ranges::equal(unit.payload, datagram.payload));
      return;
    }
    const DatagramHeader& header = datagram.header;
    MILLRACE_CHECK(terms->have == (kRack & aggregator_.status()[0].live), terms->have);
    const Key key{aggregator_.status()[0].incarnation, header.slot, header.turn, terms->hash, header.fragment};
    const ByteBuffer payload(datagram.payload.begin(), datagram.payload.end());
    MILLRACE_CHECK(groups_.emplace(key, payload).first->second == payload, header.turn);
  }

  struct Turn {
    uint64_t turn = 1;
    uint32_t step = 0;
    uint32_t window = 0;
    int8_t exponent = 0;
  };
  using Key = std::tuple<uint64_t, uint16_t, uint64_t, uint64_t, uint8_t>;

  ByteSource& source_;
  TimeNs now_ = kNsPerS;
  switch_agg::Aggregator aggregator_;
  MadeUpAggregator decider_;
  protocol::Endpoint decider_endpoint_;
  std::vector<MadeUpWorker> workers_;
  std::array<Turn, kSlots> turns_{Turn{.window = 0}, Turn{.window = 1}};
  KeepingSink sink_;
  bool has_room_ = true;
  ByteBuffer last_;
  uint64_t sent_up_ = 0;  ///< the last PARTIAL's sequence number
  // Reckoned by the packets and the counters.
  switch_agg::AggregatorCounters before_;
  SumsReckoned sums_;
  std::set<std::pair<uint16_t, uint64_t>> flushed_;  ///< slots' turns whose sum was thrown away
  std::array<protocol::Nonce, kWorkers> met_{};
  std::map<Key, ByteBuffer> groups_;
  uint64_t incarnation_ = 0;
};

}  // namespace
}  // namespace millrace::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::testing::ByteSource source(data, size);
  millrace::testing::RackFuzz(source).run();
  return 0;
}
