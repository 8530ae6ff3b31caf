#include "switch_agg/bench/aggregator_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "switch_agg/bench/traffic.h"
#include "switch_agg/bench/wire.h"
#include "switch_agg/process/packet_loop.h"

namespace millrace::switch_agg {
namespace {

/// Results of a piece of work stay on the wire until it is done: room for eight fragments to every worker.
constexpr size_t kFragmentsExpected = 8;

/// Processor time of this thread. The switch has its core for itself; a benchmark's machine may not be as quiet.
TimeNs processor_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Holds the measurements of one round.
struct Round {
  TimeNs switch_ns = 0;
  TimeNs read_ns = 0;
  uint64_t packets = 0;
  uint64_t bytes = 0;
  uint64_t result_bytes = 0;
};

class Bench {
 public:
  /// lane  the one that has the job: its number's.
  Bench(const BenchOptions& options, uint32_t window_indices, uint32_t lane, BenchWire& wire)
      : options_(options),
        job_(bench_job(options.workers, options.slots, window_indices, options.lcores + lane)),
        entries_(entries_in(window_indices, options.density)),
        wire_(wire),
        aggregator_({.slots_max = options.slots}, options.seed),
        workers_({job_, entries_, options.packet_bytes, options.seed}),
        indices_(protocol::kFragmentEntriesMax),
        values_(protocol::kFragmentEntriesMax) {}

  Status join() {
    const TimeNs now = monotonic_now_ns();
    if (const Status added = aggregator_.add_job(job_, now); !added) return added;
    return workers_.join(wire_, [&] {
      while (serve_burst(wire_.port(), aggregator_, now) != 0) {
      }
    });
  }

  Result<Round> round();

  uint32_t entries() const { return entries_; }
  uint64_t results() const { return results_; }
  uint64_t turns_checked() const { return turns_checked_; }

 private:
  Status pump(size_t first, size_t end, Round& round);
  Status read_only(size_t first, size_t end, Round& round);
  Status inject(size_t first, size_t end);
  Status check(uint64_t turns);

  BenchOptions options_;
  SwitchJob job_;
  uint32_t entries_;
  BenchWire& wire_;
  Aggregator aggregator_;
  BenchWorkers workers_;
  uint64_t next_turn_ = 1;
  PacketList packets_;            ///< of a round
  PacketList kept_;               ///< results to worker 0 of a round
  std::vector<uint64_t> copies_;  ///< by worker: sum of hashes of the results of a round
  uint64_t results_ = 0;
  uint64_t turns_checked_ = 0;
  uint64_t read_words_ = 0;  ///< keeps the reading loop from being left out
  std::vector<uint16_t> indices_;
  std::vector<int32_t> values_;
};

Status Bench::inject(size_t first, size_t end) {
  for (size_t at = first; at < end; ++at) {
    if (!wire_.inject(packets_[at], packets_.worker(at)))
      return fail(ErrorCode::kInternal, "the wire took no more packets");
  }
  return {};
}

Status Bench::pump(size_t first, size_t end, Round& round) {
  if (const Status injected = inject(first, end); !injected) return injected;
  const TimeNs now = monotonic_now_ns();
  const TimeNs begun = processor_ns();
  while (serve_burst(wire_.port(), aggregator_, now) != 0) {
  }
  aggregator_.tick(now, wire_.port());
  wire_.port().flush();
  round.switch_ns += processor_ns() - begun;
  wire_.take([&](ByteSpan packet, uint16_t worker) {
    if (worker >= copies_.size()) return;
    ++results_;
    round.result_bytes += packet.size();
    copies_[worker] += hash64(packet);
    if (worker != 0) return;
    std::ranges::copy(packet, kept_.room(packet.size()).begin());
    kept_.keep(packet.size(), 0);
  });
  for (size_t at = first; at < end; ++at) round.bytes += packets_[at].size();
  round.packets += end - first;
  return {};
}

Status Bench::read_only(size_t first, size_t end, Round& round) {
  if (const Status injected = inject(first, end); !injected) return injected;
  const TimeNs begun = processor_ns();
  uint64_t sum = 0;
  for (auto burst = wire_.port().receive(); !burst.empty(); burst = wire_.port().receive()) {
    for (const protocol::ReceivedPacket& packet : burst) {
      size_t at = 0;
      for (; at + 8 <= packet.bytes.size(); at += 8) {
        uint64_t word = 0;
        std::memcpy(&word, packet.bytes.data() + at, sizeof word);
        sum += word;
      }
      for (; at < packet.bytes.size(); ++at) sum += packet.bytes[at];
    }
  }
  round.read_ns += processor_ns() - begun;
  read_words_ += sum;
  return {};
}

Status Bench::check(uint64_t turns) {
  for (size_t worker = 1; worker < copies_.size(); ++worker) {
    if (copies_[worker] != copies_[0])
      return fail(ErrorCode::kInternal, fmt::format("worker {} was sent other results than worker 0", worker));
  }
  const uint64_t checked_before = turns_checked_;
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;
  for (size_t at = 0; at < kept_.size(); ++at) {
    const auto datagram = protocol::parse_datagram(kept_[at]);
    if (!datagram || datagram->header.type != protocol::DatagramType::kResult ||
        !workers_.results_key().verify(*datagram))
      return fail(ErrorCode::kInternal, "a datagram that is no authentic result was sent");
    const auto count = decode_window(datagram->header, datagram->payload, job_.window_indices, {indices_, values_});
    if (!count) return fail(ErrorCode::kInternal, "a result does not decode");
    indices.insert(indices.end(), indices_.begin(), indices_.begin() + *count);
    values.insert(values.end(), values_.begin(), values_.begin() + *count);
    if ((datagram->header.flags & protocol::datagram_flag::kLast) == 0) continue;
    if (!workers_.is_sum(datagram->header.turn, datagram->header.slot, indices, values)) {
      return fail(ErrorCode::kInternal,
                  fmt::format("the sum of turn {} of slot {} is wrong", datagram->header.turn, datagram->header.slot));
    }
    ++turns_checked_;
    indices.clear();
    values.clear();
  }
  const uint64_t expected = turns * options_.slots;
  if (turns_checked_ - checked_before == expected) return {};
  return fail(ErrorCode::kInternal,
              fmt::format("{} results instead of {} came", turns_checked_ - checked_before, expected));
}

Result<Round> Bench::round() {
  const uint64_t turns = std::max<uint64_t>(1, options_.packets / (uint64_t{options_.workers} * options_.slots));
  const size_t packets_at_once = std::min(PacketPort::kBurst, kBenchWirePackets / kFragmentsExpected);
  const size_t slots_at_once = std::clamp<size_t>(packets_at_once / options_.workers, 1, options_.slots);
  packets_.clear();
  kept_.clear();
  copies_.assign(options_.workers, 0);
  std::vector<size_t> pieces = {0};  // ends of the batches that go onto the wire
  for (uint64_t turn = next_turn_; turn < next_turn_ + turns; ++turn) {
    for (uint32_t slot = 0; slot < options_.slots; ++slot) {
      workers_.append(turn, static_cast<uint16_t>(slot), packets_);
      if ((slot + 1) % slots_at_once == 0 || slot + 1 == options_.slots) pieces.push_back(packets_.size());
    }
  }
  next_turn_ += turns;
  Round round;
  for (size_t piece = 1; piece < pieces.size(); ++piece) {
    if (const Status pumped = pump(pieces[piece - 1], pieces[piece], round); !pumped)
      return std::unexpected(pumped.error());
    if (const Status read = read_only(pieces[piece - 1], pieces[piece], round); !read)
      return std::unexpected(read.error());
  }
  if (const Status right = check(turns); !right) return std::unexpected(right.error());
  return round;
}

/// All rounds of one lane. Rates as in BenchReport.
Result<BenchReport> measure(Bench& bench, const BenchOptions& options) {
  BenchReport report;
  report.entries_each = bench.entries();
  const uint64_t results_before = bench.results();
  const uint64_t turns_before = bench.turns_checked();
  std::vector<double> rates;
  std::vector<double> reads;
  Round all;
  for (uint32_t number = 0; number < options.repeats; ++number) {
    const Result<Round> round = bench.round();
    if (!round) return std::unexpected(round.error());
    rates.push_back(8.0 * static_cast<double>(round->bytes) / static_cast<double>(round->switch_ns));
    reads.push_back(8.0 * static_cast<double>(round->bytes) / static_cast<double>(round->read_ns));
    all.packets += round->packets;
    all.bytes += round->bytes;
    all.result_bytes += round->result_bytes;
  }
  report.packets = all.packets;
  report.results = bench.results() - results_before;
  report.turns_checked = bench.turns_checked() - turns_before;
  report.packet_bytes_mean = static_cast<double>(all.bytes) / static_cast<double>(all.packets);
  report.gbit_s = median(rates);
  report.gbit_s_best = *std::ranges::max_element(rates);
  report.mpackets_s = report.gbit_s * 1e3 / 8 / report.packet_bytes_mean;
  const double contributions = static_cast<double>(report.turns_checked) * options.workers;
  report.mentries_s = report.mpackets_s * contributions * report.entries_each / static_cast<double>(all.packets);
  report.results_gbit_s = report.gbit_s * static_cast<double>(all.result_bytes) / static_cast<double>(all.bytes);
  report.read_gbit_s = median(reads);
  return report;
}

/// A lane of the benchmark on a thread of its own.
class BenchLane {
 public:
  BenchLane(const BenchOptions& options, uint32_t window_indices, uint32_t lane, BenchWire& wire)
      : options_(options), window_indices_(window_indices), lane_(lane), wire_(wire) {}

  /// All of it on the calling thread. All lanes pass `gate` together, one of them after rounds for itself.
  void run(std::barrier<>& gate, bool alone_first) {
    wire_.enter_thread();
    Bench bench(options_, window_indices_, lane_, wire_);
    if (const Status joined = bench.join(); !joined) together_ = std::unexpected(joined.error());
    if (together_ && alone_first) alone_ = measure(bench, options_);
    gate.arrive_and_wait();
    if (together_) together_ = measure(bench, options_);
  }

  const Result<BenchReport>& alone() const { return alone_; }
  const Result<BenchReport>& together() const { return together_; }

 private:
  BenchOptions options_;
  uint32_t window_indices_;
  uint32_t lane_;
  BenchWire& wire_;
  Result<BenchReport> alone_ = BenchReport{};
  Result<BenchReport> together_ = BenchReport{};
};

void add_lane(const BenchReport& lane, BenchReport& sum) {
  sum.entries_each = lane.entries_each;
  sum.packet_bytes_mean = lane.packet_bytes_mean;
  sum.packets += lane.packets;
  sum.results += lane.results;
  sum.turns_checked += lane.turns_checked;
  sum.gbit_s += lane.gbit_s;
  sum.gbit_s_best += lane.gbit_s_best;
  sum.mpackets_s += lane.mpackets_s;
  sum.mentries_s += lane.mentries_s;
  sum.results_gbit_s += lane.results_gbit_s;
  sum.read_gbit_s += lane.read_gbit_s;
}

}  // namespace

Result<BenchReport> run_bench(const BenchOptions& options) {
  const uint32_t window = options.window_indices != 0
                              ? options.window_indices / 64 * 64
                              : filling_window(options.density, options.packet_bytes, options.seed);
  if (window < 64) return fail(ErrorCode::kInvalidArgument, "--window-indices must be a multiple of 64");
  auto wires = open_bench_wires(options.pmd, std::max<size_t>(options.packet_bytes, 1472), options.lcores);
  if (!wires) return std::unexpected(wires.error());
  std::deque<BenchLane> lanes;
  for (uint32_t lane = 0; lane < options.lcores; ++lane) {
    BenchOptions own = options;
    own.seed += lane;
    lanes.emplace_back(own, window, lane, *(*wires)[lane]);
  }
  std::barrier<> gate(options.lcores);
  {
    std::vector<std::jthread> others;
    for (size_t lane = 1; lane < lanes.size(); ++lane)
      others.emplace_back([&gate, &lane = lanes[lane]] { lane.run(gate, false); });
    lanes.front().run(gate, options.lcores > 1);
  }
  BenchReport report;
  report.pmd = options.pmd;
  report.window_indices = window;
  for (const BenchLane& lane : lanes) {
    if (!lane.alone()) return std::unexpected(lane.alone().error());
    if (!lane.together()) return std::unexpected(lane.together().error());
    add_lane(*lane.together(), report);
  }
  report.read_ratio = report.gbit_s / report.read_gbit_s;
  report.one_lcore_gbit_s = options.lcores > 1 ? lanes.front().alone()->gbit_s : report.gbit_s;
  return report;
}

std::string bench_json(const BenchOptions& options, const BenchReport& report) {
  const nlohmann::ordered_json json = {{"pmd", report.pmd},
                                       {"lcores", options.lcores},
                                       {"one_lcore_gbit_s", report.one_lcore_gbit_s},
                                       {"lcores_ratio", report.gbit_s / report.one_lcore_gbit_s},
                                       {"workers", options.workers},
                                       {"slots", options.slots},
                                       {"window_indices", report.window_indices},
                                       {"density", options.density},
                                       {"entries_each", report.entries_each},
                                       {"packet_bytes_mean", report.packet_bytes_mean},
                                       {"packets", report.packets},
                                       {"rounds", options.repeats},
                                       {"results", report.results},
                                       {"turns_checked", report.turns_checked},
                                       {"mac_verified", true},
                                       {"mentries_s", report.mentries_s},
                                       {"mpackets_s", report.mpackets_s},
                                       {"gbit_s", report.gbit_s},
                                       {"gbit_s_best", report.gbit_s_best},
                                       {"results_gbit_s", report.results_gbit_s},
                                       {"read_gbit_s", report.read_gbit_s},
                                       {"read_ratio", report.read_ratio}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string bench_text(const BenchOptions& options, const BenchReport& report) {
  const std::string lcores =
      options.lcores == 1
          ? ""
          : fmt::format("  lcores   {:8.2f} times one of them alone ({:.2f} Gbit/s): {}\n",
                        report.gbit_s / report.one_lcore_gbit_s, report.one_lcore_gbit_s, options.lcores);
  return fmt::format(
      "{} workers, {} slots of {} indices, {} entries a contribution, {:.0f} bytes a packet, port {}\n{}"
      "  in       {:8.2f} Gbit/s   {:8.3f} Mpackets/s   {:8.1f} Mentries/s   (median of {} rounds; best {:.2f} "
      "Gbit/s)\n"
      "  out      {:8.2f} Gbit/s in the same time\n"
      "  reading  {:8.2f} Gbit/s: a loop that takes the same packets off the port and reads their bytes; ratio {:.2f}\n"
      "  {} packets in, {} out; every MAC verified, all {} sums right",
      options.workers, options.slots, report.window_indices, report.entries_each, report.packet_bytes_mean, report.pmd,
      lcores, report.gbit_s, report.mpackets_s, report.mentries_s, options.repeats, report.gbit_s_best,
      report.results_gbit_s, report.read_gbit_s, report.read_ratio, report.packets, report.results,
      report.turns_checked);
}

}  // namespace millrace::switch_agg
