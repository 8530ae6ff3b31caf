// Feeds packets of all kinds to a switch's client. They come from an aggregator and a rack that have the right keys and
// keep no rule, and from any sender. The client never aborts. Its packets are well formed, signed, and of a turn always
// the same bytes. A turn completes once, an entry once a step. Applied and returned values add up to the offered ones.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/drawn_window.h"
#include "tests/fuzz/made_up_aggregator.h"
#include "tests/switch_agg/made_up_worker.h"
#include "worker/switch/switch_client.h"
#include "worker/switch/switch_handover.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::NoticeCode;
using worker::SwitchClient;
namespace flag = protocol::datagram_flag;

constexpr uint32_t kJob = 5;
constexpr uint16_t kWorker = 1;
constexpr uint32_t kIndices = 1024;
constexpr uint32_t kWindows = 5;
constexpr uint32_t kDimension = kIndices * kWindows - 100;

protocol::JobKey job_key() {
  protocol::JobKey key;
  key.fill(1);
  return key;
}

protocol::Endpoint endpoint(uint16_t port) {
  protocol::Endpoint out;
  out.address[15] = 1;
  out.port = port;
  return out;
}

/// The owner of a client: the offers of a step, and the client's reports about them.
class Ledger : public worker::SwitchOutcome {
 public:
  explicit Ledger(uint32_t slots) : last_pass_(slots) {}

  void begin(uint32_t step, std::vector<uint32_t> indices, std::vector<float> values) {
    step_ = step;
    indices_ = std::move(indices);
    values_ = std::move(values);
    settled_.assign(values_.size(), false);
  }
  void refused() { step_.reset(); }
  /// Reports that follow concern turns that are given up: several windows of a slot in one turn, or none.
  void abandon() { abandons_ = true; }
  bool done() const { return !step_; }
  uint64_t turns() const { return turns_; }

  void on_completed(const worker::CompletedWindow& window) override {
    MILLRACE_CHECK(window.window < kWindows && window.slot == window.window % last_pass_.size(), window.window,
                   window.slot);
    MILLRACE_CHECK(window.begin == window.window * kIndices);
    if (!abandons_) {
      MILLRACE_CHECK(window.turn > last_pass_[window.slot], window.slot, window.turn, last_pass_[window.slot]);
      last_pass_[window.slot] = window.turn;
      ++turns_;
    }
    MILLRACE_CHECK(window.indices.size() == window.sums.size());
    check_increase(window.indices);
    check_increase(window.applied);
    MILLRACE_CHECK(std::ranges::includes(window.indices, window.applied));
    const bool counts = (window.contributors >> kWorker & 1) != 0;
    MILLRACE_CHECK(counts || window.applied.empty(), window.contributors);
    for (const worker::RackSelection& rack : window.racks)
      MILLRACE_CHECK(rack.kept.size() == window.indices.size(), rack.kept.size());
    check_offered(window);
  }
  void step_done(uint32_t step) override {
    // One that has finished gives up a step that it only answered.
    MILLRACE_CHECK(step_ == step || (abandons_ && !step_), step);
    MILLRACE_CHECK(abandons_ || std::ranges::find(settled_, false) == settled_.end(), step);
    step_.reset();
  }

 private:
  static void check_increase(std::span<const uint16_t> indices) {
    MILLRACE_CHECK(std::ranges::adjacent_find(indices, std::ranges::greater_equal()) == indices.end());
    MILLRACE_CHECK(indices.empty() || indices.back() < kIndices);
  }
  /// applied + returned = offered, each entry once.
  void check_offered(const worker::CompletedWindow& window) {
    MILLRACE_CHECK(step_ == window.step || window.offered.empty(), window.step);
    const size_t count = window.offered.size();
    MILLRACE_CHECK(window.values.size() == count && window.sent.size() == count);
    const Buffer<int32_t> taken = window.taken();
    std::vector<std::pair<uint32_t, float>> returned;
    window.each_returned([&](uint32_t index, float value) { returned.emplace_back(index, value); });
    auto told = returned.begin();
    for (size_t at = 0; at < count; ++at) {
      const uint32_t index = window.offered[at];
      const size_t of_step = window.first + at;
      MILLRACE_CHECK(index == indices_[of_step] && window.values[at] == values_[of_step], index);
      MILLRACE_CHECK(index / kIndices == window.window, index);
      MILLRACE_CHECK(!settled_[of_step], index);
      settled_[of_step] = true;
      const bool is_applied = std::ranges::binary_search(window.applied, static_cast<uint16_t>(index - window.begin));
      MILLRACE_CHECK(taken[at] == (is_applied ? window.sent[at] : 0), index, taken[at], window.sent[at]);
      const auto back = static_cast<float>(double{window.values[at]} - std::ldexp(double(taken[at]), window.exponent));
      if (back == 0) continue;
      MILLRACE_CHECK(told != returned.end() && *told == std::pair(index, back), index, back);
      ++told;
    }
    MILLRACE_CHECK(told == returned.end());
  }

  std::vector<uint64_t> last_pass_;
  uint64_t turns_ = 0;
  std::optional<uint32_t> step_;  ///< under way
  std::vector<uint32_t> indices_;
  std::vector<float> values_;
  std::vector<bool> settled_;
  bool abandons_ = false;
};

class ClientFuzz {
 public:
  explicit ClientFuzz(ByteSource& source)
      : source_(source),
        options_(drawn_options(source)),
        ledger_(options_.slots),
        client_(std::make_unique<SwitchClient>(options_, ledger_)),
        decider_(kJob, job_key(), kWorker, 1000),
        rack_(kJob, job_key(), kWorker, 2000),
        out_(options_.slots) {
    epoch_.live = 7;
    epoch_.decider = endpoint(1000);
    epoch_.rack = endpoint(2000);
    new_epoch();
    if (source_.one_in(8)) return;
    settle_session();
    if (source_.one_in(2)) welcome_rack();
    begin_step();
  }

  void run() {
    while (!source_.empty() && !left_) step();
  }

 private:
  static worker::SwitchClientOptions drawn_options(ByteSource& source) {
    worker::SwitchClientOptions options;
    options.job = kJob;
    options.key = job_key();
    options.worker = kWorker;
    options.workers = 3;
    options.dimension = kDimension;
    options.window_indices = kIndices;
    options.slots = 1 + source.below(3);
    options.packet_bytes_max = 1232;
    options.codecs = drawn_codecs(source);
    options.exponent_initial = static_cast<int>(source.below(16)) - 8;
    options.through_racks = source.one_in(2);
    options.sums = source.one_in(2) ? worker::SwitchSums::kInI32 : worker::SwitchSums::kExactInF32;
    if (source.one_in(2)) options.tensor_windows = {0, 2};
    options.nonce_seed = 9;
    return options;
  }

  void step() {
    switch (source_.below(28)) {
      case 0: return give(drawn_endpoint(), source_.bytes(200));
      case 1: return damaged();
      case 2: return tick();
      case 3: return challenge(source_.one_in(4) ? rack_ : decider_);
      case 4: return welcome();
      case 5: return welcome_rack();
      case 6: return fetch();
      case 7: return notice();
      case 8: return lost();
      case 9: return anything();
      case 10: return settle_session();
      case 11: return source_.one_in(4) ? new_epoch() : settle_session();
      case 12: return source_.one_in(4) ? (source_.one_in(2) ? rack_ : decider_).restart() : tick();
      case 13: return source_.one_in(8) ? leave() : begin_step();
      case 14: return source_.one_in(8) ? client_->pause() : begin_step();
      case 15: return source_.one_in(8) ? mark_next() : begin_step();
      default: return result(static_cast<uint16_t>(source_.below(options_.slots)));
    }
  }
  protocol::Endpoint drawn_endpoint() { return source_.one_in(2) ? epoch_.rack : epoch_.decider; }

  KeepingSink& empty_sink() {
    sink_.sent.clear();
    sink_.rooms_left = source_.one_in(32) ? source_.below(4) : UINT64_MAX;
    return sink_;
  }
  void give(const protocol::Endpoint& from, ByteSpan packet) {
    last_ = ByteBuffer(packet.begin(), packet.end());
    const uint64_t told = ledger_.turns();
    const uint64_t counted = client_->counters().results;
    const protocol::Ecn ecn = std::exchange(ecn_next_, protocol::Ecn::kEct0);
    client_->receive({.bytes = last_, .from = from, .ecn = ecn}, now_, empty_sink());
    MILLRACE_CHECK(ledger_.turns() - told == client_->counters().results - counted);
    MILLRACE_CHECK(ledger_.turns() - told <= 1);
    look();
  }
  void mark_next() { ecn_next_ = protocol::Ecn::kCe; }
  void tick() {
    now_ += source_.one_in(8) ? kNsPerS : kNsPerMs * source_.byte();
    client_->tick(now_, empty_sink());
    look();
    // Every due action has been done: a caller that waits until the deadline does not loop without progress.
    MILLRACE_CHECK(client_->next_deadline() > now_, now_, client_->next_deadline());
  }
  void damaged() {
    if (last_.empty()) return;
    ByteBuffer packet = last_;
    change_bytes(source_, packet);
    give(drawn_endpoint(), packet);
  }

  // What its owner does.
  void begin_step() {
    if (!ledger_.done()) return tick();
    switch (source_.below(16)) {
      case 0: return take_over();
      case 1: return finish();
      default: break;
    }
    std::vector<uint32_t> indices;
    std::vector<float> values;
    const uint32_t stride = source_.one_in(16) ? 3 : 20 + source_.byte();
    for (uint32_t index = source_.byte(); index < kDimension; index += stride) {
      indices.push_back(index);
      values.push_back(std::ldexp(static_cast<float>(static_cast<int>(index * stride % 509) - 254), drawn_scale_));
    }
    drawn_scale_ = static_cast<int>(source_.below(40)) - 20;
    ledger_.begin(step_, indices, values);
    const Status begun = client_->begin_step(step_, indices, values, now_, empty_sink());
    if (!begun) return ledger_.refused();
    ++step_;
    look();
  }
  void finish() {
    (void)client_->finish(now_, empty_sink());
    look();
  }
  void new_epoch() {
    ++epoch_.epoch;
    epoch_.live = source_.one_in(4) ? source_.byte() % 8 : 7;
    epoch_.membership_hash = source_.byte();
    epoch_.role = source_.one_in(2) ? worker::SwitchRole::kCombine : worker::SwitchRole::kReduce;
    if (source_.one_in(8)) epoch_.decider = endpoint(static_cast<uint16_t>(1000 + source_.below(2)));
    for (uint16_t worker = 0; worker < 3; ++worker) epoch_.incarnations[worker] = source_.below(2);
    client_->set_epoch(epoch_, now_, empty_sink());
    look();
  }
  /// Replaces the client by another one, which continues from its state.
  void take_over() {
    if (!client_->at_rest() || !ledger_.done()) return;
    const ByteBuffer bytes = encode_handover(client_->handover());
    const auto handover = worker::decode_handover(bytes, {.slots = options_.slots,
                                                          .groups = options_.tensor_windows.size(),
                                                          .packet_bytes_max = options_.packet_bytes_max});
    MILLRACE_CHECK(handover.has_value());
    MILLRACE_CHECK(encode_handover(*handover) == bytes);
    ++options_.nonce_seed;
    client_ = std::make_unique<SwitchClient>(options_, ledger_, *handover);
    step_ = handover->next_step;
    new_epoch();
  }
  void leave() {
    left_ = true;
    client_->leave();
    ledger_.abandon();
    worker::SwitchHandover known;
    std::vector<worker::SwitchRemoval>& removals = known.lanes.emplace_back().removals;
    removals.resize(source_.below(3));
    for (worker::SwitchRemoval& removal : removals) {
      removal.gone.emplace_back(kWorker, uint64_t{source_.below(2)});
      for (const Out& out : out_) {
        const uint64_t turn = out.turn + source_.below(3) - std::min<uint64_t>(out.turn, 1);
        removal.slots.push_back({.turn = turn, .result = out.result});
      }
    }
    for (uint64_t incarnation = 0; incarnation < 2; ++incarnation) client_->abandon_step(incarnation, known);
    MILLRACE_CHECK(client_->at_rest());
  }

  // The decider, and the rack.
  void challenge(MadeUpAggregator& by) {
    if (by.may_challenge()) give(&by == &rack_ ? epoch_.rack : epoch_.decider, by.challenge());
  }
  /// From wherever it stands to running, mostly.
  void settle_session() {
    if (client_->phase() == worker::SwitchPhase::kAsking) challenge(decider_);
    if (client_->phase() == worker::SwitchPhase::kHello) welcome();
  }
  void welcome() {
    protocol::WelcomeTerms said{.slots = options_.slots, .window_indices = kIndices, .turns = {}};
    for (uint32_t slot = 0; slot < said.slots; ++slot) {
      said.turns[slot] = positions_[slot] - (source_.one_in(4) ? 0 : std::min<uint64_t>(positions_[slot], 1));
      if (source_.one_in(32)) said.turns[slot] = source_.number(4);
    }
    say_welcome(decider_, said);
  }
  void welcome_rack() {
    if (!source_.one_in(4)) challenge(rack_);
    say_welcome(rack_, {.slots = options_.slots, .window_indices = kIndices, .turns = {}});
  }
  void say_welcome(MadeUpAggregator& by, protocol::WelcomeTerms said) {
    if (source_.one_in(32)) said.slots = source_.below(protocol::kSlotsMax + 1);
    if (source_.one_in(32)) said.window_indices = 64 * source_.byte();
    ByteBuffer extension(protocol::kExtensionBytesMax);
    extension.resize(protocol::put_welcome(said, extension));
    say(by, header_of(by, DatagramType::kWelcome), extension, {});
  }
  void fetch() {
    DatagramHeader header = header_of(decider_, DatagramType::kFetch);
    header.slot = static_cast<uint16_t>(source_.below(options_.slots + (source_.one_in(8) ? 1 : 0)));
    header.turn = header.slot < out_.size() ? out_[header.slot].turn - source_.below(3) : 1;
    say(decider_, header, {}, {});
  }
  void notice() {
    protocol::Notice said{
        .code = static_cast<NoticeCode>(source_.below(9)), .epoch = 0, .incarnation = 0, .worker_nonce = {}};
    said.epoch = static_cast<uint32_t>(source_.number(4));
    said.incarnation = source_.number(4);
    said.worker_nonce[0] = source_.byte();
    say_notice(said);
  }
  void lost() {
    protocol::LostSequences lost{.first = sequence_ - std::min<uint64_t>(sequence_, source_.below(20)),
                                 .others = source_.number(16)};
    if (source_.one_in(8)) lost.first = source_.number(4);
    say_notice(
        {.code = NoticeCode::kLost, .epoch = epoch_.epoch, .incarnation = 0, .worker_nonce = protocol::put_lost(lost)});
  }
  void say_notice(const protocol::Notice& said) {
    MadeUpAggregator& by = source_.one_in(4) ? rack_ : decider_;
    ByteBuffer extension(protocol::kExtensionBytesMax);
    extension.resize(protocol::put_notice(said, extension));
    say(by, header_of(by, DatagramType::kNotice), extension, {});
  }
  void anything() {
    MadeUpAggregator& by = source_.one_in(4) ? rack_ : decider_;
    DatagramHeader header = header_of(by, static_cast<DatagramType>(source_.byte() % 13));
    for (uint32_t changes = source_.below(6); changes > 0; --changes) change_field(source_, header);
    ByteBuffer extension = source_.bytes(48);
    extension.resize(extension.size() / 8 * 8);
    say(by, header, extension, source_.bytes(100));
  }
  DatagramHeader header_of(const MadeUpAggregator& by, DatagramType type) {
    DatagramHeader header = by.header(type);
    header.epoch = epoch_.epoch;
    if (source_.one_in(16)) change_field(source_, header);
    return header;
  }
  void say(MadeUpAggregator& by, const DatagramHeader& header, ByteSpan extension, ByteSpan payload) {
    const protocol::Endpoint from = &by == &rack_ ? epoch_.rack : epoch_.decider;
    const uint32_t way = source_.below(16);
    if (way == 0) return give(from, by.as_hint(header, extension, payload));
    if (way == 1) return give(from, by.to_all(header, extension, payload));
    give(from, by.sealed(header, extension, payload));
  }

  /// Delivers a result of the turn in flight, in up to three fragments, that is nearly right.
  void result(uint16_t number) {
    out_[number].result.clear();
    const Out out = out_[number];
    if (out.turn == 0) return settle_session();
    DatagramHeader header = decider_.header(DatagramType::kResult);
    header.epoch = epoch_.epoch;
    header.slot = number;
    header.turn = out.turn;
    header.step = out.step;
    header.window = out.window;
    header.exponent = out.exponent;
    header.next = out.next;
    const uint32_t sooner = out.window + options_.slots * (1 + source_.below(2));
    if (source_.one_in(4) && sooner < kWindows) header.next = std::min(out.next, sooner);
    if (source_.one_in(8)) header.flags = flag::kFin;
    protocol::ResultTerms terms{.contributors = 7, .selected = 0, .decided_epoch = epoch_.epoch};
    if (source_.one_in(8)) terms.contributors = source_.byte() % 8;
    racks_.clear();
    if (source_.one_in(4)) racks_ = source_.one_in(2) ? std::vector<uint64_t>{3} : std::vector<uint64_t>{3, 4};
    for (const uint64_t rack : racks_) terms.selected |= rack;
    fragments(header, terms, sums_of(out));
  }
  struct Out;
  /// Returns some of this worker's entries, and entries of others.
  Entries sums_of(const Out& out) {
    Entries sums = drawn_entries(source_, kIndices);
    const uint32_t leaves_out = 1 + source_.below(8);
    for (const auto& [index, value] : out.entries) {
      if ((index % 8u) + 1 != leaves_out) sums[index] = value;
    }
    return source_.one_in(16) ? Entries{} : sums;
  }
  void fragments(DatagramHeader header, const protocol::ResultTerms& terms, const Entries& sums) {
    const auto parts = static_cast<uint8_t>(1 + source_.below(3) + (sums.size() > 200 ? 5 : 0));
    std::vector<Entries> pieces(parts);
    for (const auto& [index, value] : sums) pieces[index * size_t{parts} / kIndices][index] = value;
    const uint8_t flags = header.flags;
    for (uint8_t part = 0; part < parts; ++part) {
      if (source_.one_in(32)) continue;
      header.fragment = part;
      header.flags = flags | (part + 1 == parts ? flag::kLast : uint8_t{0});
      fragment(header, terms, pieces[part]);
    }
  }
  void fragment(DatagramHeader header, const protocol::ResultTerms& terms, const Entries& entries) {
    std::vector<uint16_t> indices;
    std::vector<int32_t> values;
    for (const auto& [index, value] : entries) {
      indices.push_back(index);
      values.push_back(value);
    }
    ByteBuffer payload(8'000);
    header.entries = 0;
    if (!entries.empty()) {
      const auto index_codec = static_cast<protocol::WindowIndexCodec>(1 + source_.below(3));
      const uint32_t taken = protocol::encode_window(
          {indices, values}, {index_codec, protocol::WindowValueCodec::kFixed32}, kIndices, header, payload, values);
      MILLRACE_CHECK(taken == entries.size(), taken);
    }
    payload.resize(header.payload_bytes);
    ByteBuffer extension(protocol::kExtensionBytesMax);
    size_t bytes = protocol::put_result_terms(terms, extension);
    for (const uint64_t rack : racks_) {
      std::fill_n(extension.begin() + static_cast<std::ptrdiff_t>(bytes), 8, uint8_t{0});
      extension[bytes] = static_cast<uint8_t>(rack);
      const size_t marks = protocol::RetainedMarks::record_bytes(static_cast<uint32_t>(entries.size()));
      for (size_t at = 0; at < entries.size(); ++at)
        extension[bytes + 8 + at / 8] |= marks_ >> (at % 8) & 1 ? 1u << (at % 8) : 0;
      marks_ = source_.byte();
      bytes += marks;
    }
    extension.resize(bytes);
    if (source_.one_in(16)) change_field(source_, header);
    if (source_.one_in(16)) change_bytes(source_, payload);
    if (source_.one_in(16)) change_bytes(source_, extension);
    if (header.slot < out_.size()) out_[header.slot].result.push_back({header, extension, payload});
    if (source_.one_in(32)) return;  // lost
    give(epoch_.decider,
         source_.one_in(8) ? decider_.sealed(header, extension, payload) : decider_.to_all(header, extension, payload));
  }

  // Checks the packets that it sent.
  void look() {
    for (const Sent& packet : sink_.sent) {
      const auto datagram = protocol::parse_datagram(packet.bytes);
      MILLRACE_CHECK(datagram.has_value());
      MILLRACE_CHECK(packet.bytes.size() <= options_.packet_bytes_max, packet.bytes.size());
      MadeUpAggregator& to = packet.to == epoch_.rack ? rack_ : decider_;
      MILLRACE_CHECK(datagram->header.worker == kWorker && to.verifies(*datagram));
      to.hear(*datagram);
      if (datagram->header.type == DatagramType::kHello) look_at_hello(*datagram);
      if (datagram->header.type == DatagramType::kContribution) look_at_contribution(*datagram);
    }
  }
  void look_at_hello(const Datagram& datagram) {
    const auto hello = protocol::read_hello(datagram.extension);
    MILLRACE_CHECK(hello.has_value());
    std::copy_n(hello->positions.begin(), hello->slots, positions_.begin());
  }
  void look_at_contribution(const Datagram& datagram) {
    const DatagramHeader& header = datagram.header;
    MILLRACE_CHECK(header.epoch == epoch_.epoch && header.slot < options_.slots);
    sequence_ = header.sequence;
    Out& out = out_[header.slot];
    MILLRACE_CHECK(header.turn >= out.turn, header.turn, out.turn);
    if (header.turn > out.turn)
      out = {.turn = header.turn,
             .step = header.step,
             .window = header.window,
             .next = header.next,
             .exponent = header.exponent,
             .entries = {},
             .packets = {},
             .result = {}};
    // A retransmission is byte-identical, except for the receiver and the time of sending.
    ByteBuffer body(datagram.signed_bytes.begin() + 40, datagram.signed_bytes.end());
    body.push_back(header.flags & static_cast<uint8_t>(~flag::kFlush));
    const auto [first, is_new] = out.packets.emplace(header.fragment, body);
    MILLRACE_CHECK(first->second == body, header.turn, header.fragment);
    if (is_new) out.entries.merge(entries_of(datagram, kIndices));
  }

  struct Out {
    uint64_t turn = 0;  ///< sent last; 0: none
    uint32_t step = 0;
    uint32_t window = 0;
    uint32_t next = 0;
    int8_t exponent = 0;
    Entries entries;
    std::map<uint8_t, ByteBuffer> packets;
    std::vector<worker::SwitchFragment> result;  ///< the last one that it received
  };

  ByteSource& source_;
  worker::SwitchClientOptions options_;
  Ledger ledger_;
  std::unique_ptr<SwitchClient> client_;
  MadeUpAggregator decider_;
  MadeUpAggregator rack_;
  worker::SwitchEpoch epoch_;
  TimeNs now_ = kNsPerS;
  KeepingSink sink_;
  ByteBuffer last_;
  protocol::Ecn ecn_next_ = protocol::Ecn::kEct0;
  uint32_t step_ = 0;  ///< the next
  int drawn_scale_ = 0;
  bool left_ = false;
  std::vector<Out> out_;
  std::array<uint64_t, protocol::kSlotsMax> positions_{};  ///< of the last HELLO
  uint64_t sequence_ = 0;                                  ///< of the last CONTRIB
  std::vector<uint64_t> racks_;                            ///< of the result at hand: those that cut their sums
  uint8_t marks_ = 0xFF;
};

}  // namespace
}  // namespace millrace::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::testing::ByteSource source(data, size);
  millrace::testing::ClientFuzz(source).run();
  return 0;
}
