#include "switch_agg/bench/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "protocol/datagram/extensions.h"

namespace millrace::switch_agg {
namespace {

using protocol::DatagramHeader;
using protocol::DatagramKey;
using protocol::DatagramType;
using protocol::KeyScope;
using protocol::KeyUse;

constexpr uint32_t kEpoch = 1;
constexpr protocol::WindowCodecs kCodecs = {protocol::WindowIndexCodec::kGap, protocol::WindowValueCodec::kFixed16};

/// `count` different indices below `window`, increasing, and values from 1 to `value_max` with either sign.
void draw_entries(RandomKey key, uint32_t window, uint32_t count, int32_t value_max, std::vector<uint64_t>& bits,
                  std::vector<uint16_t>& indices, std::vector<int32_t>& values) {
  MILLRACE_CHECK(count <= window, count, window);
  RandomSequence random(key);
  bits.assign((window + 63) / 64, 0);
  for (uint32_t drawn = 0; drawn < count;) {
    const auto index = static_cast<uint32_t>(random.next_below(window));
    const uint64_t bit = uint64_t{1} << (index % 64);
    if ((bits[index / 64] & bit) != 0) continue;
    bits[index / 64] |= bit;
    ++drawn;
  }
  indices.clear();
  values.clear();
  for (size_t word = 0; word < bits.size(); ++word) {
    for (uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      indices.push_back(static_cast<uint16_t>(word * 64 + static_cast<size_t>(std::countr_zero(rest))));
      const auto size = static_cast<int32_t>(1 + random.next_below(static_cast<uint64_t>(value_max)));
      values.push_back(random.next_u32() % 2 == 0 ? size : -size);
    }
  }
}

}  // namespace

SwitchJob bench_job(uint32_t workers, uint32_t slots, uint32_t window_indices, uint32_t number) {
  SwitchJob job;
  job.job = number;
  job.name = "bench";
  for (size_t i = 0; i < job.key.size(); ++i) job.key[i] = static_cast<uint8_t>(i);
  job.workers = workers;
  job.slots = slots;
  job.window_indices = window_indices;
  return job;
}

uint32_t entries_in(uint32_t window_indices, double density) {
  return std::max(1u, static_cast<uint32_t>(density * window_indices));
}

uint32_t filling_window(double density, size_t packet_bytes, uint64_t seed) {
  constexpr size_t kFrame = protocol::kDatagramHeaderBytes + protocol::kDatagramMacBytes;
  constexpr int kSamples = 8;
  std::vector<uint64_t> bits;
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;
  std::vector<uint8_t> payload(packet_bytes - kFrame);
  uint32_t fits = 64;
  uint32_t beyond = protocol::kWindowIndicesMax + 64;
  while (beyond - fits > 64) {
    const uint32_t window = (fits + beyond) / 128 * 64;
    const uint32_t count = entries_in(window, density);
    bool whole = true;
    for (int sample = 0; whole && sample < kSamples; ++sample) {
      draw_entries(random_key(seed, window, static_cast<uint64_t>(sample)), window, count, 0x7FFF, bits, indices,
                   values);
      DatagramHeader header;
      whole = encode_window({indices, values}, kCodecs, window, header, payload, values) == count;
    }
    (whole ? fits : beyond) = window;
  }
  return fits;
}

std::span<uint8_t> PacketList::room(size_t bytes_max) {
  if (bytes_.size() < used_ + bytes_max) bytes_.resize(std::max(used_ + bytes_max, bytes_.size() * 3 / 2));
  return std::span(bytes_).subspan(used_, bytes_max);
}

void PacketList::keep(size_t bytes, uint16_t worker) {
  packets_.push_back({used_, bytes, worker});
  used_ += bytes;
}

BenchWorkers::BenchWorkers(const Options& options)
    : options_(options),
      workers_(options.job.workers),
      decoded_(options.entries),
      sums_(options.job.window_indices),
      touched_(options.job.window_indices) {
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    const std::array<uint32_t, 4> words = random_words(RandomKey::from(options.seed), worker, 1);
    workers_[worker].nonce = std::bit_cast<protocol::Nonce>(words);
  }
}

void BenchWorkers::draw(uint16_t worker, uint64_t turn, uint16_t slot) {
  const bool same = options_.draw == BenchDraw::kSame;
  // Sums of all workers' values have 16 bits again.
  const auto value_max = static_cast<int32_t>(0x7FFF / workers_.size());
  draw_entries(random_key(options_.seed, turn, slot, same ? 0 : worker), options_.job.window_indices, options_.entries,
               value_max, drawn_bits_, indices_, values_);
}

DatagramHeader BenchWorkers::header_of(uint64_t turn, uint16_t slot) const {
  const auto place = static_cast<uint32_t>((turn - 1) % kTurnsPerStep);
  DatagramHeader header;
  header.type = DatagramType::kContribution;
  header.job = options_.job.job;
  header.incarnation = incarnation_;
  header.turn = turn;
  header.epoch = kEpoch;
  header.step = static_cast<uint32_t>((turn - 1) / kTurnsPerStep);
  header.window = slot + options_.job.slots * place;
  header.slot = slot;
  if (place + 1 < kTurnsPerStep) header.next = header.window + options_.job.slots;
  return header;
}

size_t BenchWorkers::seal(DatagramHeader header, std::span<uint8_t> packet) {
  Worker& worker = workers_[header.worker];
  header.sequence = ++worker.sequence;
  return worker.key->seal(header, packet);
}

void BenchWorkers::append(uint64_t turn, uint16_t slot, PacketList& out) {
  constexpr size_t kFrame = protocol::kDatagramHeaderBytes + protocol::kDatagramMacBytes;
  DatagramHeader header = header_of(turn, slot);
  for (uint16_t id = 0; id < static_cast<uint16_t>(options_.job.workers); ++id) {
    draw(id, turn, slot);
    header.worker = id;
    header.fragment = 0;
    for (size_t taken = 0; taken < indices_.size(); ++header.fragment) {
      const std::span<uint8_t> packet = out.room(options_.packet_bytes);
      header.flags = 0;
      taken += encode_window({std::span(indices_).subspan(taken), std::span(values_).subspan(taken)}, kCodecs,
                             options_.job.window_indices, header,
                             packet.subspan(protocol::kDatagramHeaderBytes, packet.size() - kFrame), decoded_);
      if (taken == indices_.size()) header.flags |= protocol::datagram_flag::kLast;
      out.keep(seal(header, packet), id);
    }
  }
}

bool BenchWorkers::is_sum(uint64_t turn, uint16_t slot, std::span<const uint16_t> indices,
                          std::span<const int32_t> values) {
  std::ranges::fill(sums_, 0);
  std::ranges::fill(touched_, uint8_t{0});
  for (uint16_t worker = 0; worker < static_cast<uint16_t>(options_.job.workers); ++worker) {
    draw(worker, turn, slot);
    for (size_t i = 0; i < indices_.size(); ++i) {
      sums_[indices_[i]] += values_[i];
      touched_[indices_[i]] = 1;
    }
  }
  size_t at = 0;
  for (uint32_t index = 0; index < sums_.size(); ++index) {
    if (touched_[index] == 0) continue;
    if (at == indices.size() || indices[at] != index || values[at] != sums_[index]) return false;
    ++at;
  }
  return at == indices.size();
}

void BenchWorkers::ask(uint16_t id, BenchEnd& end) const {
  std::vector<uint8_t> packet(256);
  DatagramHeader header;
  header.type = DatagramType::kChallengeRequest;
  header.job = options_.job.job;
  header.worker = id;
  const std::span<uint8_t> extension = std::span(packet).subspan(protocol::kDatagramHeaderBytes, 128);
  header.extension_words = static_cast<uint8_t>(
      protocol::put_challenge_request(protocol::ChallengeRequest{workers_[id].nonce}, extension) / 8);
  const DatagramKey key(options_.job.key, KeyScope::handshake(options_.job.job, id));
  end.inject(ByteSpan(packet).first(key.seal(header, packet)), id);
}

void BenchWorkers::say_hello(uint16_t id, const protocol::Nonce& aggregator_nonce, BenchEnd& end) {
  Worker& worker = workers_[id];
  worker.key.emplace(options_.job.key, KeyScope{KeyUse::kWorkerToAggregator, options_.job.job, incarnation_, id,
                                                worker.nonce, aggregator_nonce});
  protocol::HelloTerms hello;
  hello.membership_hash = 1;
  hello.live = ~uint64_t{0} >> (64 - workers_.size());
  hello.worker_nonce = worker.nonce;
  hello.slots = options_.job.slots;
  std::fill_n(hello.positions.begin(), hello.slots, uint64_t{1});
  std::vector<uint8_t> packet(protocol::kDatagramHeaderBytes + protocol::kExtensionBytesMax +
                              protocol::kDatagramMacBytes);
  DatagramHeader header;
  header.type = DatagramType::kHello;
  header.job = options_.job.job;
  header.incarnation = incarnation_;
  header.epoch = kEpoch;
  header.worker = id;
  const std::span<uint8_t> extension =
      std::span(packet).subspan(protocol::kDatagramHeaderBytes, protocol::kExtensionBytesMax);
  header.extension_words = static_cast<uint8_t>(protocol::put_hello(hello, extension) / 8);
  end.inject(ByteSpan(packet).first(seal(header, packet)), id);
}

void BenchWorkers::sign_for_nobody() {
  for (uint16_t id = 0; id < static_cast<uint16_t>(options_.job.workers); ++id) {
    workers_[id].key.emplace(options_.job.key, KeyScope{KeyUse::kWorkerToAggregator, options_.job.job, incarnation_, id,
                                                        workers_[id].nonce, protocol::Nonce{}});
  }
}

Status BenchWorkers::join(BenchEnd& end, const std::function<void()>& wait) {
  for (uint16_t id = 0; id < static_cast<uint16_t>(options_.job.workers); ++id) ask(id, end);
  wait();
  std::vector<std::pair<uint16_t, protocol::Challenge>> challenges;
  end.take([&](ByteSpan packet, uint16_t) {
    const auto datagram = protocol::parse_datagram(packet);
    if (!datagram || datagram->header.type != DatagramType::kChallenge || datagram->header.worker >= workers_.size())
      return;
    incarnation_ = datagram->header.incarnation;
    if (const auto challenge = protocol::read_challenge(datagram->extension))
      challenges.emplace_back(datagram->header.worker, *challenge);
  });
  for (const auto& [worker, challenge] : challenges) say_hello(worker, challenge.aggregator_nonce, end);
  wait();
  size_t welcomes = 0;
  end.take([&](ByteSpan packet, uint16_t) {
    const auto datagram = protocol::parse_datagram(packet);
    if (datagram && datagram->header.type == DatagramType::kWelcome) ++welcomes;
  });
  if (welcomes < workers_.size()) {
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("of {} workers {} were challenged and {} welcomed: does the switch know job {} with this key, "
                    "as many workers and windows?",
                    workers_.size(), challenges.size(), welcomes, options_.job.job));
  }
  results_key_.emplace(options_.job.key, KeyScope::to_all(options_.job.job, incarnation_));
  return {};
}

}  // namespace millrace::switch_agg
