// protocol/vectors/datagrams.json: every kind of datagram between workers, racks and a software switch, signed.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>
#include <utility>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/window/window_code.h"
#include "switch_agg/slot/kept_result.h"
#include "tests/protocol/datagram/window_cases.h"
#include "tests/protocol/vectors/vector_file.h"
#include "tests/support/isa.h"

namespace millrace::testing {
namespace {

using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::KeyScope;
using protocol::KeyUse;
using protocol::Nonce;
using protocol::WindowCodecs;
namespace flag = protocol::datagram_flag;

const VectorFile kDatagramFile{
    .name = "datagrams.json",
    .format = "datagrams",
    .version = protocol::kDatagramMagic & 15,
    .change = "Raise the low half of kDatagramMagic in protocol/datagram/header.h (protocol/wire/versions.md).",
};

constexpr uint32_t kJobOfVectors = 7;
constexpr uint64_t kLifeOfVectors = 0x1122334455667788;
constexpr uint16_t kWorkerOfVectors = 3;
constexpr uint32_t kWindowOfVectors = 1'024;

template <size_t kBytes>
std::array<uint8_t, kBytes> counted_from(uint8_t first) {
  std::array<uint8_t, kBytes> bytes;
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

const protocol::JobKey kKeyOfVectors = counted_from<32>(0);
const Nonce kWorkerNonce = counted_from<16>(0x20);
const Nonce kAggregatorNonce = counted_from<16>(0x40);

KeyScope session_scope(KeyUse use, uint16_t worker = kWorkerOfVectors) {
  return {.use = use,
          .job = kJobOfVectors,
          .incarnation = kLifeOfVectors,
          .worker = worker,
          .worker_nonce = kWorkerNonce,
          .aggregator_nonce = kAggregatorNonce};
}

/// A header with something in every field that its type has.
DatagramHeader header_of(DatagramType type, uint64_t sequence) {
  DatagramHeader header;
  header.type = type;
  header.job = kJobOfVectors;
  header.incarnation = kLifeOfVectors;
  header.sequence = sequence;
  header.turn = 5;
  header.epoch = 1;
  header.step = 4;
  header.window = 2;
  header.next = 6;
  header.worker = kWorkerOfVectors;
  header.slot = 2;
  header.exponent = -20;
  return header;
}

/// A header of the handshake: it is of no slot.
DatagramHeader greeting_of(DatagramType type, uint64_t incarnation, uint64_t sequence) {
  DatagramHeader header;
  header.type = type;
  header.job = kJobOfVectors;
  header.incarnation = incarnation;
  header.sequence = sequence;
  header.epoch = sequence == 0 ? 0 : 1;
  header.worker = kWorkerOfVectors;
  return header;
}

/// A datagram that is made: extension and payload lie in the packet, header and MAC do not yet.
struct MadeDatagram {
  std::string name;
  DatagramHeader header;
  KeyScope scope;
  protocol::Entries selected = {};
  ByteBuffer packet = ByteBuffer(2'048);

  MadeDatagram(std::string name_, const DatagramHeader& header_, const KeyScope& scope_)
      : name(std::move(name_)), header(header_), scope(scope_) {}

  std::span<uint8_t> room() { return std::span(packet).subspan(protocol::kDatagramHeaderBytes); }
  MadeDatagram& extend(size_t bytes) {
    header.extension_words = static_cast<uint8_t>(bytes / 8);
    return *this;
  }
  MadeDatagram& carry(const protocol::Entries& entries, const WindowCodecs& codecs) {
    selected = entries;
    std::vector<int32_t> decoded(entries.indices.size());
    const uint32_t taken = encode_window(entries.view(), codecs, kWindowOfVectors, header,
                                         room().subspan(size_t{header.extension_words} * 8), decoded);
    EXPECT_EQ(taken, entries.indices.size()) << name;
    return *this;
  }
};

const protocol::Entries kEntriesOfVectors{{100, 109, 300}, {5, -2, 7}};

std::vector<MadeDatagram> handshake_datagrams() {
  const KeyScope hands = KeyScope::handshake(kJobOfVectors, kWorkerOfVectors);
  std::vector<MadeDatagram> made;
  MadeDatagram& request = made.emplace_back("CHALREQ", greeting_of(DatagramType::kChallengeRequest, 0, 0), hands);
  request.extend(put_challenge_request(protocol::ChallengeRequest{kWorkerNonce}, request.room()));
  const Nonce answer =
      protocol::challenge_nonce(kKeyOfVectors, kJobOfVectors, kLifeOfVectors, kWorkerOfVectors, kWorkerNonce, 1);
  MadeDatagram& challenge = made.emplace_back("CHALLENGE, the worker's second session",
                                              greeting_of(DatagramType::kChallenge, kLifeOfVectors, 0), hands);
  challenge.extend(put_challenge(protocol::Challenge{kWorkerNonce, answer}, challenge.room()));
  protocol::HelloTerms hello{.membership_hash = 0x1111, .live = 0x0b, .worker_nonce = kWorkerNonce, .slots = 2};
  hello.positions[0] = 1'000;
  hello.positions[1] = 1'001;
  MadeDatagram& greeting = made.emplace_back("HELLO", greeting_of(DatagramType::kHello, kLifeOfVectors, 1),
                                             session_scope(KeyUse::kWorkerToAggregator));
  greeting.extend(put_hello(hello, greeting.room()));
  protocol::WelcomeTerms welcome{.slots = 2, .window_indices = kWindowOfVectors};
  welcome.turns[0] = 999;
  welcome.turns[1] = 1'000;
  MadeDatagram& answered = made.emplace_back("WELCOME", greeting_of(DatagramType::kWelcome, kLifeOfVectors, 1),
                                             session_scope(KeyUse::kAggregatorToWorker));
  answered.extend(put_welcome(welcome, answered.room()));
  return made;
}

void add_notices(std::vector<MadeDatagram>& made) {
  for (uint32_t code = 1; code <= 7; ++code) {
    protocol::Notice notice{.code = protocol::NoticeCode{code}, .epoch = 2, .incarnation = kLifeOfVectors};
    const bool by_handshake_key =
        notice.code == protocol::NoticeCode::kUnknownIncarnation || notice.code == protocol::NoticeCode::kNoSlots;
    if (notice.code == protocol::NoticeCode::kNoSlots) notice.worker_nonce = kWorkerNonce;
    if (notice.code == protocol::NoticeCode::kLost)
      notice.worker_nonce = put_lost(protocol::LostSequences{.first = 9, .others = 5});
    const uint64_t sequence = by_handshake_key ? 0 : 20 + code;
    MadeDatagram& said = made.emplace_back("NOTICE " + std::to_string(code),
                                           greeting_of(DatagramType::kNotice, kLifeOfVectors, sequence),
                                           by_handshake_key ? KeyScope::handshake(kJobOfVectors, kWorkerOfVectors)
                                                            : session_scope(KeyUse::kAggregatorToWorker));
    said.extend(put_notice(notice, said.room()));
  }
}

/// A RESULT of which a rack cut its sum, as the slot machine encodes it.
MadeDatagram reselected_result() {
  DatagramHeader header = header_of(DatagramType::kResult, 31);
  header.worker = protocol::kAllWorkers;
  header.flags = flag::kReselected;
  MadeDatagram made("RESULT to all, a rack cut its sum", header, KeyScope::to_all(kJobOfVectors, kLifeOfVectors));
  made.selected = kEntriesOfVectors;
  std::vector<uint64_t> kept(kWindowOfVectors / 64);
  for (const uint16_t index : {uint16_t{100}, uint16_t{300}}) kept[index / 64] |= uint64_t{1} << index % 64;
  const std::array<switch_agg::RackEntries, 1> racks = {{{.workers = 0x0c, .indices = kept}}};
  constexpr size_t kFragmentBytes = 512;
  ByteBuffer memory(protocol::kFragmentsMax * kFragmentBytes);
  switch_agg::KeptResult result(memory, kFragmentBytes);
  std::vector<int32_t> decoded(kEntriesOfVectors.indices.size());
  const uint32_t left_out = result.encode(
      header, {.contributors = 0x0f, .selected = 0x0c, .decided_epoch = 1}, {}, kWindowOfVectors,
      {.indices = kEntriesOfVectors.indices, .values = kEntriesOfVectors.values, .decoded = decoded, .racks = racks});
  EXPECT_EQ(left_out, 0U);
  EXPECT_EQ(result.fragments(), 1U);
  made.header = result.header(0);
  const auto packet = result.packet(0);
  std::copy(packet.begin(), packet.end(), made.packet.begin());
  return made;
}

void add_results(std::vector<MadeDatagram>& made) {
  const protocol::ResultTerms terms{.contributors = 0x0b, .decided_epoch = 1};
  DatagramHeader to_all = header_of(DatagramType::kResult, 30);
  to_all.worker = protocol::kAllWorkers;
  to_all.flags = flag::kLast | flag::kFin;
  MadeDatagram& all = made.emplace_back("RESULT to all", to_all, KeyScope::to_all(kJobOfVectors, kLifeOfVectors));
  all.extend(put_result_terms(terms, all.room())).carry(kEntriesOfVectors, {});
  DatagramHeader to_one = header_of(DatagramType::kResult, 32);
  to_one.flags = flag::kLast | flag::kVoid | flag::kEmpty;
  MadeDatagram& one =
      made.emplace_back("RESULT to one worker, void", to_one, session_scope(KeyUse::kAggregatorToWorker));
  one.extend(put_result_terms(terms, one.room()));
  made.push_back(reselected_result());
  DatagramHeader kept = header_of(DatagramType::kKept, 33);
  kept.flags = flag::kLast;
  MadeDatagram& uploaded = made.emplace_back("KEPT", kept, session_scope(KeyUse::kWorkerToAggregator));
  uploaded.extend(put_result_terms(terms, uploaded.room())).carry(kEntriesOfVectors, {});
  made.emplace_back("FETCH", header_of(DatagramType::kFetch, 34), session_scope(KeyUse::kAggregatorToWorker));
}

void add_partials(std::vector<MadeDatagram>& made) {
  DatagramHeader unit = header_of(DatagramType::kPartial, 40);
  unit.worker = protocol::kRackWorkers | 1;
  unit.flags = flag::kLast;
  const KeyScope rack = session_scope(KeyUse::kWorkerToAggregator, protocol::kRackWorkers | 1);
  MadeDatagram& raw = made.emplace_back("PARTIAL of one unit", unit, rack);
  raw.extend(put_partial_terms(protocol::PartialTerms{.have = 8, .last = 8, .hash = 0}, raw.room()))
      .carry(kEntriesOfVectors, {});
  DatagramHeader part = unit;
  part.sequence = 41;
  part.flags = flag::kLast | flag::kReselected;
  MadeDatagram& group = made.emplace_back("PARTIAL, part of a group", part, rack);
  group
      .extend(put_partial_terms(protocol::PartialTerms{.have = 0x0c, .last = 0x04, .hash = 0x0123456789abcdef},
                                group.room()))
      .carry(kEntriesOfVectors, {});
}

void add_contributions(std::vector<MadeDatagram>& made) {
  const KeyScope scope = session_scope(KeyUse::kWorkerToAggregator);
  DatagramHeader documented = header_of(DatagramType::kContribution, 9);
  documented.flags = flag::kLast;
  documented.fragment = 1;
  made.emplace_back("CONTRIB, the document's", documented, scope).carry(kEntriesOfVectors, {});
  DatagramHeader empty = header_of(DatagramType::kContribution, 10);
  empty.flags = flag::kLast | flag::kEmpty | flag::kFlush;
  empty.next = protocol::kNoWindow;
  made.emplace_back("CONTRIB, empty, to flush", empty, scope);
  RandomSequence random(RandomKey::from(1));
  // A unit of the QSGD codecs is of 64 values.
  const protocol::Entries two_units = protocol::some_entries(70, 1'000, 3'000, random);
  const protocol::Entries few = protocol::some_entries(20, 1'000, 3'000, random);
  uint64_t sequence = 100;
  for (const auto index : protocol::kIndexCodecs) {
    for (const auto value : protocol::kValueCodecs) {
      const WindowCodecs codecs{.index = index, .value = value};
      if (protocol::is_refused(codecs)) continue;
      const bool has_units = value == protocol::WindowValueCodec::kQsgd8 || value == protocol::WindowValueCodec::kQsgd4;
      protocol::Entries entries = has_units ? two_units : few;
      if (index == protocol::WindowIndexCodec::kDense) std::iota(entries.indices.begin(), entries.indices.end(), 40);
      made.emplace_back("CONTRIB, " + protocol::text(codecs), header_of(DatagramType::kContribution, sequence++), scope)
          .carry(entries, codecs);
    }
  }
  const WindowCodecs drawn{.value = protocol::WindowValueCodec::kQsgd8,
                           .rounding = protocol::WindowRounding::kRandom,
                           .random = random_key(1, 2, 3, 4)};
  made.emplace_back("CONTRIB, rounded at random", header_of(DatagramType::kContribution, sequence), scope)
      .carry(two_units, drawn);
}

template <typename Bytes>
std::string hex_of_array(const Bytes& bytes) {
  return hex_text(ByteSpan(bytes.data(), bytes.size()));
}

VectorJson datagram_header_json(const DatagramHeader& header) {
  return {{"magic", header.magic},
          {"type", header.type},
          {"flags", header.flags},
          {"fragment", header.fragment},
          {"job", header.job},
          {"incarnation", hex_number(header.incarnation)},
          {"sequence", header.sequence},
          {"turn", header.turn},
          {"epoch", header.epoch},
          {"step", header.step},
          {"window", header.window},
          {"next", header.next},
          {"worker", header.worker},
          {"slot", header.slot},
          {"entries", header.entries},
          {"payload_bytes", header.payload_bytes},
          {"index_codec", header.index_codec},
          {"value_codec", header.value_codec},
          {"exponent", header.exponent},
          {"extension_words", header.extension_words}};
}

VectorJson result_json(ByteSpan extension, uint32_t entries) {
  const auto terms = protocol::read_result_terms(extension).value();
  VectorJson json = {{"contributors", hex_number(terms.contributors)},
                     {"selected", hex_number(terms.selected)},
                     {"decided_epoch", terms.decided_epoch}};
  json["racks"] = VectorJson::array();
  const auto marks = protocol::RetainedMarks::read(extension, entries);
  for (size_t rack = 0; marks && terms.selected != 0 && rack < marks->racks(); ++rack) {
    std::vector<bool> kept;
    for (uint32_t entry = 0; entry < entries; ++entry) kept.push_back(marks->is_retained(rack, entry));
    json["racks"].push_back({{"workers", hex_number(marks->workers(rack))}, {"kept", kept}});
  }
  return json;
}

/// Reads the extension as its type has it.
VectorJson extension_json(const protocol::Datagram& datagram, uint32_t entries) {
  const ByteSpan bytes = datagram.extension;
  switch (datagram.header.type) {
    case DatagramType::kChallengeRequest:
      return {{"worker_nonce", hex_of_array(protocol::read_challenge_request(bytes).value().worker_nonce)}};
    case DatagramType::kChallenge: {
      const auto challenge = protocol::read_challenge(bytes).value();
      return {{"worker_nonce", hex_of_array(challenge.worker_nonce)},
              {"aggregator_nonce", hex_of_array(challenge.aggregator_nonce)}};
    }
    case DatagramType::kHello: {
      const auto hello = protocol::read_hello(bytes).value();
      return {{"membership", hex_number(hello.membership_hash)},
              {"live", hex_number(hello.live)},
              {"worker_nonce", hex_of_array(hello.worker_nonce)},
              {"turns", std::vector<uint64_t>(hello.positions.begin(), hello.positions.begin() + hello.slots)}};
    }
    case DatagramType::kWelcome: {
      const auto welcome = protocol::read_welcome(bytes).value();
      return {{"window_indices", welcome.window_indices},
              {"turns", std::vector<uint64_t>(welcome.turns.begin(), welcome.turns.begin() + welcome.slots)}};
    }
    case DatagramType::kKept:
    case DatagramType::kResult: return result_json(bytes, entries);
    case DatagramType::kPartial: {
      const auto terms = protocol::read_partial_terms(bytes).value();
      return {{"have", hex_number(terms.have)}, {"last", hex_number(terms.last)}, {"hash", hex_number(terms.hash)}};
    }
    case DatagramType::kNotice: {
      const auto notice = protocol::read_notice(bytes).value();
      VectorJson json = {
          {"code", notice.code}, {"epoch", notice.epoch}, {"incarnation", hex_number(notice.incarnation)}};
      json["worker_nonce"] = hex_of_array(notice.worker_nonce);
      if (notice.code == protocol::NoticeCode::kLost) {
        json["first"] = protocol::lost_of(notice).first;
        json["others"] = hex_number(protocol::lost_of(notice).others);
      }
      return json;
    }
    default: return VectorJson::object();  // FETCH, CONTRIB
  }
}

VectorJson scope_json(const KeyScope& scope) {
  return {{"use", scope.use},
          {"job", scope.job},
          {"incarnation", hex_number(scope.incarnation)},
          {"worker", scope.worker},
          {"worker_nonce", hex_of_array(scope.worker_nonce)},
          {"aggregator_nonce", hex_of_array(scope.aggregator_nonce)}};
}

/// Returns the fields that a reader decodes from the datagram, except its MAC.
VectorJson decoded_json(ByteSpan packet) {
  const auto datagram = protocol::parse_datagram(packet);
  EXPECT_TRUE(datagram);
  if (!datagram) return nullptr;
  const auto entries = protocol::Decoder().decode(datagram->header, datagram->payload, kWindowOfVectors);
  EXPECT_TRUE(entries);
  if (!entries) return nullptr;
  VectorJson json = {{"header", datagram_header_json(datagram->header)}};
  json["extension"] = extension_json(*datagram, static_cast<uint32_t>(entries->indices.size()));
  json["indices"] = entries->indices;
  json["values"] = entries->values;
  return json;
}

VectorJson datagram_vectors() {
  std::vector<MadeDatagram> made = handshake_datagrams();
  add_contributions(made);
  add_results(made);
  add_partials(made);
  add_notices(made);
  VectorJson json = vector_file_head(kDatagramFile);
  json["job_key"] = hex_of_array(kKeyOfVectors);
  json["window_indices"] = kWindowOfVectors;
  json["vectors"] = VectorJson::array();
  for (MadeDatagram& datagram : made) {
    const protocol::DatagramKey key(kKeyOfVectors, datagram.scope);
    datagram.packet.resize(key.seal(datagram.header, datagram.packet));
    VectorJson vector = {{"name", datagram.name}, {"key", scope_json(datagram.scope)}};
    vector["selected"] = {{"indices", datagram.selected.indices}, {"values", datagram.selected.values}};
    vector["bytes"] = hex_text(datagram.packet);
    vector["decoded"] = decoded_json(datagram.packet);
    json["vectors"].push_back(std::move(vector));
  }
  return json;
}

template <size_t kBytes>
std::array<uint8_t, kBytes> array_of(const VectorJson& hex) {
  const ByteBuffer bytes = bytes_of(hex);
  std::array<uint8_t, kBytes> array{};
  EXPECT_EQ(bytes.size(), kBytes);
  if (bytes.size() == kBytes) std::copy(bytes.begin(), bytes.end(), array.begin());
  return array;
}

KeyScope scope_of(const VectorJson& json) {
  return {.use = json.at("use").get<KeyUse>(),
          .job = json.at("job"),
          .incarnation = number_of(json.at("incarnation")),
          .worker = json.at("worker"),
          .worker_nonce = array_of<16>(json.at("worker_nonce")),
          .aggregator_nonce = array_of<16>(json.at("aggregator_nonce"))};
}

TEST(DatagramVectors, EveryInstructionSetReproducesTheVectors) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_vectors(kDatagramFile, datagram_vectors());
  });
}

TEST(DatagramVectors, VerifyAndDecodeAsTheySayAndNoTruncationIsRead) {
  const VectorJson file = read_vectors(kDatagramFile);
  const auto job_key = array_of<32>(file.at("job_key"));
  std::set<DatagramType> types;
  std::set<std::pair<uint32_t, uint32_t>> codecs;
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const ByteBuffer bytes = bytes_of(vector.at("bytes"));
    const auto datagram = protocol::parse_datagram(bytes);
    ASSERT_TRUE(datagram);
    EXPECT_TRUE(protocol::DatagramKey(job_key, scope_of(vector.at("key"))).verify(*datagram));
    EXPECT_EQ(decoded_json(bytes), vector.at("decoded"));
    types.insert(datagram->header.type);
    codecs.emplace(datagram->header.index_codec, datagram->header.value_codec);
    expect_truncations_refused(bytes, [](const ByteBuffer& cut) { return !protocol::parse_datagram(cut).has_value(); });
  }
  EXPECT_EQ(types.size(), 10U) << "a type of datagram has no vector";
  for (const auto index : protocol::kIndexCodecs) {
    for (const auto value : protocol::kValueCodecs) {
      const bool taken = codecs.contains({std::to_underlying(index), std::to_underlying(value)});
      EXPECT_EQ(taken, !protocol::is_refused({.index = index, .value = value}))
          << protocol::text({.index = index, .value = value});
    }
  }
}

}  // namespace
}  // namespace millrace::testing
