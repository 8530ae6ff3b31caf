#include "switch_agg/bench_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "protocol/datagram/extensions.h"
#include "switch_agg/lane.h"

namespace millrace::switch_agg {
namespace {

using protocol::DatagramHeader;
using protocol::DatagramKey;
using protocol::DatagramType;
using protocol::KeyScope;
using protocol::KeyUse;

constexpr uint32_t kEpoch = 1;
constexpr protocol::WindowCodecs kCodecs = {protocol::WindowIndexCodec::kGap, protocol::WindowValueCodec::kFixed16};

/// `count` different indices below `window`, increasing, and values of 16 bits that are not 0.
void draw_entries(RandomKey key, uint32_t window, uint32_t count, std::vector<uint64_t>& bits,
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
      const auto value = static_cast<int32_t>(random.next_u32() & 0xFFFF) - 0x8000;
      values.push_back(value == 0 || value == -0x8000 ? 1 : value);
    }
  }
}

}  // namespace

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
      draw_entries(random_key(seed, window, static_cast<uint64_t>(sample)), window, count, bits, indices, values);
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
  draw_entries(random_key(options_.seed, turn, slot, worker), options_.job.window_indices, options_.entries,
               drawn_bits_, indices_, values_);
}

void BenchWorkers::append(uint64_t turn, uint16_t slot, PacketList& out) {
  const uint32_t place = static_cast<uint32_t>((turn - 1) % kTurnsPerStep);
  DatagramHeader header{.type = DatagramType::kContribution, .job = options_.job.job, .life = life_, .turn = turn,
                        .epoch = kEpoch, .step = static_cast<uint32_t>((turn - 1) / kTurnsPerStep),
                        .window = slot + options_.job.slots * place, .slot = slot};
  if (place + 1 < kTurnsPerStep) header.next = header.window + options_.job.slots;
  for (uint16_t id = 0; id < workers_.size(); ++id) {
    Worker& worker = workers_[id];
    draw(id, turn, slot);
    header.worker = id;
    header.fragment = 0;
    for (size_t taken = 0; taken < indices_.size(); ++header.fragment) {
      const std::span<uint8_t> packet = out.room(options_.packet_bytes);
      const std::span<uint8_t> payload = packet.subspan(
          protocol::kDatagramHeaderBytes, packet.size() - protocol::kDatagramHeaderBytes - protocol::kDatagramMacBytes);
      header.flags = 0;
      taken += encode_window({std::span(indices_).subspan(taken), std::span(values_).subspan(taken)}, kCodecs,
                             options_.job.window_indices, header, payload, decoded_);
      if (taken == indices_.size()) header.flags |= protocol::datagram_flag::kLast;
      header.sequence = ++worker.sequence;
      out.keep(worker.key->seal(header, packet), id);
    }
  }
}

bool BenchWorkers::is_sum(uint64_t turn, uint16_t slot, std::span<const uint16_t> indices,
                          std::span<const int32_t> values) {
  std::ranges::fill(sums_, 0);
  std::ranges::fill(touched_, uint8_t{0});
  for (uint16_t worker = 0; worker < workers_.size(); ++worker) {
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

void BenchWorkers::say_hello(uint16_t id, const protocol::Nonce& aggregator_nonce, uint64_t life, BenchWire& wire) {
  Worker& worker = workers_[id];
  worker.key.emplace(options_.job.key, KeyScope{KeyUse::kWorkerToAggregator, options_.job.job, life, id, worker.nonce,
                                                aggregator_nonce});
  protocol::Hello hello{.membership = 1, .live = 0, .worker_nonce = worker.nonce, .slots = options_.job.slots, .positions = {}};
  hello.live = workers_.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << workers_.size()) - 1;
  std::fill_n(hello.positions.begin(), hello.slots, uint64_t{1});
  std::vector<uint8_t> packet(protocol::kDatagramHeaderBytes + protocol::kExtensionBytesMax + protocol::kDatagramMacBytes);
  DatagramHeader header{.type = DatagramType::kHello, .job = options_.job.job, .life = life,
                        .sequence = ++worker.sequence, .epoch = kEpoch, .worker = id};
  header.extension_words = static_cast<uint8_t>(
      put_hello(hello, std::span(packet).subspan(protocol::kDatagramHeaderBytes, protocol::kExtensionBytesMax)) / 8);
  const size_t bytes = worker.key->seal(header, packet);
  wire.inject(ByteSpan(packet).first(bytes), id);
}

Status BenchWorkers::join(BenchWire& wire, Aggregator& aggregator, TimeNs now) {
  const auto serve = [&] {
    while (serve_burst(wire.port(), aggregator, now) != 0) {
    }
  };
  for (uint16_t id = 0; id < workers_.size(); ++id) {
    std::vector<uint8_t> packet(256);
    DatagramHeader header{.type = DatagramType::kChallengeRequest, .job = options_.job.job, .worker = id};
    header.extension_words = static_cast<uint8_t>(
        put_challenge_request({workers_[id].nonce}, std::span(packet).subspan(protocol::kDatagramHeaderBytes, 64)) / 8);
    const DatagramKey key(options_.job.key, KeyScope::handshake(options_.job.job, id));
    const size_t bytes = key.seal(header, packet);
    wire.inject(ByteSpan(packet).first(bytes), id);
  }
  serve();
  std::vector<std::pair<uint16_t, protocol::Challenge>> challenges;
  wire.take([&](ByteSpan packet, uint16_t worker) {
    const auto datagram = protocol::parse_datagram(packet);
    if (!datagram || datagram->header.type != DatagramType::kChallenge || worker >= workers_.size()) return;
    life_ = datagram->header.life;
    if (const auto challenge = protocol::read_challenge(datagram->extension)) challenges.emplace_back(worker, *challenge);
  });
  for (const auto& [worker, challenge] : challenges) say_hello(worker, challenge.aggregator_nonce, life_, wire);
  serve();
  size_t welcomes = 0;
  wire.take([&](ByteSpan packet, uint16_t) {
    const auto datagram = protocol::parse_datagram(packet);
    if (datagram && datagram->header.type == DatagramType::kWelcome) ++welcomes;
  });
  if (welcomes < workers_.size()) {
    return fail(ErrorCode::kInternal, fmt::format("{} of {} workers were challenged and {} welcomed", challenges.size(),
                                                  workers_.size(), welcomes));
  }
  results_key_.emplace(options_.job.key, KeyScope::to_all(options_.job.job, life_));
  return {};
}

}  // namespace millrace::switch_agg
