#include "tests/sim/switch/switch_reference.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"

namespace millrace::testing {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramKey;
using protocol::DatagramType;
using protocol::Endpoint;
using protocol::PacketSink;

namespace flag = protocol::datagram_flag;

namespace {

constexpr uint64_t bit(uint16_t worker) { return uint64_t{1} << worker; }

DatagramHeader header_of(DatagramType type) {
  DatagramHeader header;
  header.type = type;
  return header;
}

}  // namespace

void SwitchReference::add_job(const Job& job, TimeNs now) {
  JobState& state = jobs_[job.job];
  state.job = job;
  state.heard_at = now;
  new_life(state);
}

void SwitchReference::new_life(JobState& job) {
  ++lives_;
  JobState fresh;
  fresh.job = job.job;
  fresh.heard_at = job.heard_at;
  fresh.incarnation = random_.next_u64();
  fresh.slots.resize(job.job.slots);
  job = std::move(fresh);
}

void SwitchReference::tick(TimeNs now, PacketSink&) {
  for (auto& [number, job] : jobs_) {
    if (!job.has_epoch || now - job.heard_at < job.job.lease_ns) continue;
    job.heard_at = now;
    new_life(job);
  }
}

void SwitchReference::write(const DatagramHeader& header, ByteSpan extension, ByteSpan payload, const DatagramKey& key,
                            const Endpoint& to, PacketSink& sink, size_t bytes_least) const {
  DatagramHeader full = header;
  full.extension_words = static_cast<uint8_t>(extension.size() / 8);
  full.payload_bytes = static_cast<uint16_t>(payload.size());
  const std::span<uint8_t> room = sink.room();
  if (room.empty()) return;
  uint8_t* const body = room.data() + protocol::kDatagramHeaderBytes;
  if (!extension.empty()) std::memcpy(body, extension.data(), extension.size());
  if (!payload.empty()) std::memcpy(body + extension.size(), payload.data(), payload.size());
  const size_t sealed = key.seal(full, room);
  const size_t bytes = std::max(sealed, bytes_least);
  std::ranges::fill(room.subspan(sealed, bytes - sealed), uint8_t{0});
  sink.send(bytes, to);
}

void SwitchReference::to_worker(JobState& job, uint16_t worker, DatagramHeader header, ByteSpan extension,
                                ByteSpan payload, PacketSink& sink) {
  const auto session = job.sessions.find(worker);
  if (session == job.sessions.end()) return;
  header.job = job.job.job;
  header.incarnation = job.incarnation;
  header.epoch = job.epoch;
  header.worker = worker;
  header.sequence = ++session->second.sequence;
  write(header, extension, payload, session->second.down, session->second.at, sink);
}

void SwitchReference::notice(JobState& job, uint16_t worker, protocol::NoticeCode code, const Endpoint& to,
                             PacketSink& sink) {
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes = protocol::put_notice({.code = code, .epoch = job.epoch, .incarnation = job.incarnation}, room);
  const ByteSpan extension = ByteSpan(room).first(bytes);
  DatagramHeader header = header_of(DatagramType::kNotice);
  if (code != protocol::NoticeCode::kUnknownIncarnation) return to_worker(job, worker, header, extension, {}, sink);
  header.job = job.job.job;
  header.worker = worker;
  header.incarnation = job.incarnation;
  header.sequence = 0;
  const DatagramKey key(job.job.key, protocol::KeyScope::handshake(job.job.job, worker));
  write(header, extension, {}, key, to, sink);
}

void SwitchReference::receive(const protocol::ReceivedPacket& packet, TimeNs now, PacketSink& sink) {
  const auto datagram = protocol::parse_datagram(packet.bytes);
  if (!datagram) return;
  const auto found = jobs_.find(datagram->header.job);
  if (found == jobs_.end() || datagram->header.worker >= protocol::kSwitchWorkersMax) return;
  JobState& job = found->second;
  const DatagramHeader& header = datagram->header;
  if (header.type == DatagramType::kChallengeRequest) return on_challenge_request(job, *datagram, packet, sink);
  if (header.incarnation != job.incarnation) {
    return notice(job, header.worker, protocol::NoticeCode::kUnknownIncarnation, packet.from, sink);
  }
  if (!authentic(job, *datagram, packet.from)) return;
  job.heard_at = now;
  if (header.type == DatagramType::kHello) return on_hello(job, *datagram, sink);
  if (header.epoch < job.epoch) return notice(job, header.worker, protocol::NoticeCode::kOldEpoch, packet.from, sink);
  if (header.type == DatagramType::kKept) return on_retained(job, *datagram, sink);
  if (header.type != DatagramType::kContribution) return;
  if (header.epoch > job.epoch || job.phase != Phase::kOpen) {
    return notice(job, header.worker, protocol::NoticeCode::kSayHello, packet.from, sink);
  }
  if ((job.live & bit(header.worker)) == 0 || header.slot >= job.slots.size()) return;
  on_contribution(job, *datagram, sink);
}

void SwitchReference::on_challenge_request(JobState& job, const Datagram& datagram,
                                           const protocol::ReceivedPacket& packet, PacketSink& sink) {
  const auto request = protocol::read_challenge_request(datagram.extension);
  const uint16_t worker = datagram.header.worker;
  const DatagramKey key(job.job.key, protocol::KeyScope::handshake(job.job.job, worker));
  if (!request || datagram.header.sequence != 0 || !key.verify(datagram)) return;
  const protocol::Nonce own = protocol::challenge_nonce(job.job.key, job.job.job, job.incarnation, worker,
                                                        request->worker_nonce, job.sessions_accepted[worker]);
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes = protocol::put_challenge({.worker_nonce = request->worker_nonce, .aggregator_nonce = own}, room);
  DatagramHeader header = header_of(DatagramType::kChallenge);
  header.job = job.job.job;
  header.incarnation = job.incarnation;
  header.worker = worker;
  header.sequence = 0;
  write(header, ByteSpan(room).first(bytes), {}, key, packet.from, sink, packet.bytes.size());
}

bool SwitchReference::authentic(JobState& job, const Datagram& datagram, const Endpoint& from) {
  const uint16_t worker = datagram.header.worker;
  const auto session = job.sessions.find(worker);
  if (session != job.sessions.end() && session->second.up.verify(datagram)) {
    const bool is_latest = datagram.header.sequence > session->second.seen.highest();
    if (!session->second.seen.accept(datagram.header.sequence)) return false;
    if (is_latest && datagram.header.type == DatagramType::kHello) session->second.at = from;
    return true;
  }
  if (datagram.header.type != DatagramType::kHello) return false;
  const auto hello = protocol::read_hello(datagram.extension);
  if (!hello) return false;
  protocol::KeyScope scope{.use = protocol::KeyUse::kWorkerToAggregator,
                           .job = job.job.job,
                           .incarnation = job.incarnation,
                           .worker = worker,
                           .worker_nonce = hello->worker_nonce};
  scope.aggregator_nonce = protocol::challenge_nonce(job.job.key, job.job.job, job.incarnation, worker,
                                                     hello->worker_nonce, job.sessions_accepted[worker]);
  DatagramKey up(job.job.key, scope);
  if (!up.verify(datagram)) return false;
  scope.use = protocol::KeyUse::kAggregatorToWorker;
  Session fresh{.nonce = hello->worker_nonce,
                .up = std::move(up),
                .down = DatagramKey(job.job.key, scope),
                .seen = {},
                .at = from,
                .sequence = 0};
  fresh.seen.accept(datagram.header.sequence);
  job.sessions.erase(worker);
  job.sessions.emplace(worker, std::move(fresh));
  ++job.sessions_accepted[worker];
  return true;
}

void SwitchReference::on_hello(JobState& job, const Datagram& datagram, PacketSink& sink) {
  const uint16_t worker = datagram.header.worker;
  const auto hello = protocol::read_hello(datagram.extension);
  if (!hello || (hello->live & bit(worker)) == 0) return;
  if (job.has_epoch && datagram.header.epoch < job.epoch) return;
  const bool is_new = !job.has_epoch || datagram.header.epoch > job.epoch;
  if (is_new ? hello->slots > job.job.slots : hello->slots != job.slots.size()) return;
  if (is_new) {
    job.has_epoch = true;
    job.epoch = datagram.header.epoch;
    job.live = hello->live;
    job.membership_hash = hello->membership_hash;
    job.phase = Phase::kCollecting;
    job.hellos.clear();
    job.fetched.clear();
    if (mutation_ != SwitchMutation::kKeepSumsOverEpochs) job.slots.clear();
    job.slots.resize(hello->slots);
  }
  if (hello->membership_hash != job.membership_hash || hello->live != job.live) {
    return notice(job, worker, protocol::NoticeCode::kOtherMembership, {}, sink);
  }
  if (job.phase == Phase::kOpen) return welcome(job, worker, sink);
  job.hellos[worker] = *hello;
  look_at_hellos(job, sink);
}

void SwitchReference::look_at_hellos(JobState& job, PacketSink& sink) {
  uint32_t missing = 0;
  for (uint16_t worker = 0; worker < protocol::kSwitchWorkersMax; ++worker) {
    if ((job.live & bit(worker)) != 0 && !job.hellos.contains(worker)) ++missing;
  }
  const bool enough =
      missing == 0 || (mutation_ == SwitchMutation::kOpenWithoutAll && missing == 1 && job.hellos.size() > 1);
  if (!enough) return;
  job.opening.assign(job.slots.size(), 0);
  for (size_t number = 0; number < job.slots.size(); ++number) {
    uint64_t most = 0;
    uint64_t least = std::numeric_limits<uint64_t>::max();
    for (const auto& [worker, hello] : job.hellos) {
      most = std::max(most, hello.positions[number]);
      least = std::min(least, hello.positions[number]);
    }
    if (most - least > 1) {
      ++impossible_;
      return;
    }
    job.opening[number] = most - 1;
  }
  job.phase = Phase::kFetching;
  if (!lacks_results(job)) return open(job, sink);
  ask_for_results(job, sink);
}

/// Whether a worker stands before the opening's turn, and its result has not come yet.
bool SwitchReference::lacks_results(const JobState& job) const {
  if (mutation_ == SwitchMutation::kNoFetch) return false;
  for (uint16_t number = 0; number < static_cast<uint16_t>(job.slots.size()); ++number) {
    const bool apart = std::ranges::any_of(
        job.hellos, [&](const auto& hello) { return hello.second.positions[number] == job.opening[number]; });
    if (!apart) continue;
    const auto found = job.fetched.find(number);
    if (found == job.fetched.end()) return true;
    const auto& fragments = found->second;
    const bool has_last = (fragments.rbegin()->second.header.flags & flag::kLast) != 0;
    if (!has_last || fragments.size() != fragments.rbegin()->first + size_t{1}) return true;
  }
  return false;
}

void SwitchReference::ask_for_results(JobState& job, PacketSink& sink) {
  for (uint16_t number = 0; number < static_cast<uint16_t>(job.slots.size()); ++number) {
    for (const auto& [worker, hello] : job.hellos) {
      if (hello.positions[number] != job.opening[number] + 1 || job.opening[number] == 0) continue;
      DatagramHeader header = header_of(DatagramType::kFetch);
      header.slot = number;
      header.turn = job.opening[number];
      to_worker(job, worker, header, {}, {}, sink);
      break;
    }
  }
}

void SwitchReference::on_retained(JobState& job, const Datagram& datagram, PacketSink& sink) {
  const DatagramHeader& header = datagram.header;
  if (job.phase != Phase::kFetching || header.epoch != job.epoch || header.slot >= job.slots.size()) return;
  if (header.turn != job.opening[header.slot]) return;
  ++fetched_;
  job.fetched[header.slot][header.fragment] = {header, ByteBuffer(datagram.extension.begin(), datagram.extension.end()),
                                               ByteBuffer(datagram.payload.begin(), datagram.payload.end())};
  if (!lacks_results(job)) open(job, sink);
}

void SwitchReference::open(JobState& job, PacketSink& sink) {
  job.phase = Phase::kOpen;
  for (uint16_t number = 0; number < static_cast<uint16_t>(job.slots.size()); ++number) {
    Slot& slot = job.slots[number];
    slot.current = job.opening[number];
    Turn& turn = slot.turns[slot.current];
    turn.closed = true;
    if (mutation_ == SwitchMutation::kNoFetch) {
      const bool apart = std::ranges::any_of(
          job.hellos, [&](const auto& hello) { return hello.second.positions[number] == job.opening[number]; });
      if (apart) slot.current = job.opening[number] - 1;
      slot.turns.clear();
      slot.turns[slot.current].closed = true;
      continue;
    }
    for (auto& [fragment, packet] : job.fetched[number]) {
      packet.header.type = DatagramType::kResult;
      turn.result.push_back(packet);
    }
  }
  for (const auto& [worker, hello] : job.hellos) welcome(job, worker, sink);
}

void SwitchReference::welcome(JobState& job, uint16_t worker, PacketSink& sink) {
  protocol::WelcomeTerms welcome;
  welcome.slots = static_cast<uint32_t>(job.slots.size());
  welcome.window_indices = job.job.window_indices;
  std::ranges::copy(job.opening, welcome.turns.begin());
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes = protocol::put_welcome(welcome, room);
  to_worker(job, worker, header_of(DatagramType::kWelcome), ByteSpan(room).first(bytes), {}, sink);
}

void SwitchReference::on_contribution(JobState& job, const Datagram& datagram, PacketSink& sink) {
  const DatagramHeader& header = datagram.header;
  Slot& slot = job.slots[header.slot];
  Turn& current = slot.turns[slot.current];
  if (header.turn + 1 < slot.current) return;
  if (header.turn < slot.current || (header.turn == slot.current && current.closed)) {
    if (mutation_ == SwitchMutation::kNoKeptResult) return;
    const auto closed = slot.turns.find(header.turn);
    if (closed == slot.turns.end()) return;
    const bool answers =
        mutation_ != SwitchMutation::kSeldomKeptResult || ++closed->second.asked[header.worker] % 32 == 0;
    if (answers) send_result(job, closed->second, header.worker, sink);
    return;
  }
  const bool claims = header.turn == slot.current + 1 && current.closed;
  if (header.turn > slot.current && !claims) {
    ++impossible_;
    return;
  }
  if (claims) {
    if (!current.result.empty()) {  // its successor, and nothing else
      const DatagramHeader& last = current.result.front().header;
      const bool over = last.next == protocol::kNoWindow;
      const bool right = over ? header.step == last.step + 1 && header.window == header.slot
                              : header.step == last.step && header.window == last.next;
      if (!right) {
        ++impossible_;
        return;
      }
    }
    slot.current = header.turn;
    slot.turns.erase(header.turn - 2);
  }
  add(job, slot, datagram, sink);
}

void SwitchReference::add(JobState& job, Slot& slot, const Datagram& datagram, PacketSink& sink) {
  const DatagramHeader& header = datagram.header;
  Turn& turn = slot.turns[slot.current];
  if (!turn.binding) turn.binding = header;
  const DatagramHeader& binding = *turn.binding;
  if (header.step != binding.step || header.window != binding.window || header.exponent != binding.exponent) {
    ++impossible_;
    return;
  }
  auto& pieces = turn.pieces[header.worker];
  const bool known = pieces.contains(header.fragment);
  if (known && mutation_ != SwitchMutation::kAddTwice) return;
  Piece piece;
  piece.indices.resize(protocol::kFragmentEntriesMax);
  piece.values.resize(protocol::kFragmentEntriesMax);
  const auto count =
      protocol::decode_window(header, datagram.payload, job.job.window_indices, {piece.indices, piece.values});
  if (!count) {
    ++impossible_;
    return;
  }
  piece.indices.resize(*count);
  piece.values.resize(*count);
  if (known) {
    for (int32_t& value : piece.values) value *= 2;
  }
  pieces[header.fragment] = std::move(piece);
  if ((header.flags & flag::kLast) != 0 || mutation_ == SwitchMutation::kIgnoreFragments)
    turn.last[header.worker] = header.fragment;
  turn.next[header.worker] = header.next;
  turn.fin[header.worker] = (header.flags & flag::kFin) != 0;
  if (whole(job, turn)) close(job, header.slot, slot.current, sink);
}

bool SwitchReference::whole(const JobState& job, const Turn& turn) const {
  for (uint16_t worker = 0; worker < protocol::kSwitchWorkersMax; ++worker) {
    if ((job.live & bit(worker)) == 0) continue;
    const auto last = turn.last.find(worker);
    if (last == turn.last.end()) return false;
    if (mutation_ == SwitchMutation::kIgnoreFragments) continue;
    if (turn.pieces.at(worker).size() != last->second + size_t{1}) return false;
  }
  return true;
}

void SwitchReference::close(JobState& job, uint16_t number, uint64_t at, PacketSink& sink) {
  Turn& turn = job.slots[number].turns[at];
  turn.closed = true;
  ++closed_;
  turn.result = encode(job, turn);
  send_result(job, turn, protocol::kAllWorkers, sink);
}

std::vector<SwitchReference::Packet> SwitchReference::encode(const JobState& job, const Turn& turn) const {
  std::map<uint16_t, int64_t> sums;
  uint64_t contributors = job.live;
  for (const auto& [worker, pieces] : turn.pieces) {
    contributors |= bit(worker);
    for (const auto& [fragment, piece] : pieces) {
      for (size_t i = 0; i < piece.indices.size(); ++i) sums[piece.indices[i]] += piece.values[i];
    }
  }
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;
  for (const auto& [index, sum] : sums) {
    if (sum > INT32_MAX || sum < -INT32_MAX) continue;  // omitted: it goes back everywhere
    indices.push_back(index);
    values.push_back(static_cast<int32_t>(sum));
  }
  DatagramHeader header = *turn.binding;
  header.type = DatagramType::kResult;
  header.flags = 0;
  header.entries = 0;
  header.index_codec = 0;
  header.value_codec = 0;
  header.next = protocol::kNoWindow;
  for (const auto& [worker, next] : turn.next) header.next = std::min(header.next, next);
  if (std::ranges::all_of(turn.fin, [](const auto& fin) { return fin.second; })) header.flags |= flag::kFin;
  if (indices.empty()) header.flags |= flag::kVoid;
  std::array<uint8_t, protocol::kExtensionBytesMax> room;
  const size_t bytes = protocol::put_result_terms({.contributors = contributors, .decided_epoch = job.epoch}, room);
  std::vector<Packet> out;
  const protocol::WindowCodecs codecs{.index = protocol::WindowIndexCodec::kRaw,
                                      .value = protocol::WindowValueCodec::kFixed32};
  std::span<const uint16_t> rest_indices(indices);
  std::span<const int32_t> rest(values);
  std::vector<int32_t> decoded(values.size());
  while (!rest.empty() || out.empty()) {
    MILLRACE_CHECK(out.size() < protocol::kFragmentsMax);
    Packet packet{header, ByteBuffer(room.begin(), room.begin() + bytes), {}};
    packet.header.fragment = static_cast<uint8_t>(out.size());
    if (!rest.empty()) {
      packet.payload.resize(packet_bytes_max_ - protocol::kDatagramHeaderBytes - bytes - protocol::kDatagramMacBytes);
      const uint32_t taken = protocol::encode_window({rest_indices, rest}, codecs, job.job.window_indices,
                                                     packet.header, packet.payload, decoded);
      packet.payload.resize(packet.header.payload_bytes);
      rest = rest.subspan(taken);
      rest_indices = rest_indices.subspan(taken);
    }
    out.push_back(std::move(packet));
  }
  out.back().header.flags |= flag::kLast;
  return out;
}

/// worker  kAllWorkers: to all live ones, under the key of all.
void SwitchReference::send_result(JobState& job, const Turn& turn, uint16_t worker, PacketSink& sink) {
  const DatagramKey all(job.job.key, protocol::KeyScope::to_all(job.job.job, job.incarnation));
  for (const Packet& packet : turn.result) {
    if (worker != protocol::kAllWorkers) {
      to_worker(job, worker, packet.header, packet.extension, packet.payload, sink);
      continue;
    }
    DatagramHeader header = packet.header;
    header.incarnation = job.incarnation;
    header.epoch = job.epoch;
    header.worker = protocol::kAllWorkers;
    header.sequence = ++job.sequence;
    for (const auto& [receiver, session] : job.sessions) {
      if ((job.live & bit(receiver)) != 0) write(header, packet.extension, packet.payload, all, session.at, sink);
    }
  }
}

}  // namespace millrace::testing
