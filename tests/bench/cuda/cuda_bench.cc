// Measures the kernels of kernels/cuda on the first card, in passes over the array (see README.md). Prints JSON.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/cuda/accumulator.h"
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/bloom.h"
#include "kernels/cuda/bucket_top_k.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/queue/device_queue.h"
#include "kernels/cuda/thresholds.h"
#include "kernels/select/top_k.h"
#include "tests/bench/cuda/bench_kernels.h"

namespace millrace::cuda {
namespace {

/// Ends the program where a step of the benchmark fails.
template <class T>
void require(const Result<T>& result, const char* what) {
  if (result) return;
  std::cerr << "cuda_bench: " << what << ": " << result.error().message << "\n";
  std::exit(1);
}

struct Bench {
  DeviceQueue& queue;
  uint64_t n;
  int repeats;
  double read_ms = 0;
  double add_ms = 0;
  std::string json = {};

  double median_ms(const std::function<void()>& work) {
    std::vector<double> times;
    for (int i = 0; i < repeats + 2; ++i) {
      DeviceEvent begin, end;
      queue.record(begin);
      work();
      queue.record(end);
      require(queue.finish(), "work");
      if (i >= 2) times.push_back(double{end.milliseconds_since(begin).value()});
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void put(const std::string& name, double value) {
    json += ",\n  \"" + name + "\": " + std::to_string(value);
    std::cerr << name << " " << value << "\n";
  }

  /// The time of a work, in milliseconds and in passes.
  double put_time(const std::string& name, const std::function<void()>& work) {
    const double ms = median_ms(work);
    put(name + "_ms", ms);
    put(name + "_read_passes", ms / read_ms);
    return ms;
  }
};

void measure_passes(Bench& bench, const float* values, float* sums, uint32_t* sink) {
  bench.read_ms =
      bench.median_ms([&] { bench.queue.launch(ReadPass{values, sink}, bench.n / ReadPass::kBlockEntries); });
  bench.put("read_pass_ms", bench.read_ms);
  bench.put("read_pass_gb_per_s", static_cast<double>(bench.n) * 4e-6 / bench.read_ms);
  bench.add_ms = bench.median_ms([&] { bench.queue.launch(AddPass{values, sums}, bench.n / AddPass::kBlockEntries); });
  bench.put("two_reads_one_write_ms", bench.add_ms);
}

void measure_top_k(Bench& bench, const float* values, uint64_t k, const std::string& name, bool compares) {
  DeviceQueue& queue = bench.queue;
  std::vector<uint32_t> found;
  if (compares) {
    const auto selected = top_k(queue, values, bench.n, k, Zeros::kSelected);
    require(selected, "top_k");
    found.resize(selected->count);
    queue.download(std::span(found), static_cast<const uint32_t*>(selected->positions.data()));
    std::vector<float> all(bench.n);
    queue.download(std::span(all), values);
    IndexBuffer wanted;
    require(select_top_k(all, k, wanted), "select_top_k");
    bench.put(name + "_equals_host", std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()) ? 1 : 0);
  }
  bench.put_time(name, [&] { require(top_k(queue, values, bench.n, k, Zeros::kSelected), "top_k"); });
}

void measure_quantizers(Bench& bench, const float* values) {
  DeviceQueue& queue = bench.queue;
  auto out = queue.allocate<uint8_t>(2 * bench.n + 1024);
  auto flag = queue.allocate<uint32_t>(1);
  for (const uint32_t bits : {2u, 4u, 8u}) {
    const QsgdOptions options{.bits = bits, .random = RandomKey::from(3)};
    const double ms = bench.put_time("qsgd" + std::to_string(bits), [&] {
      enqueue_qsgd(queue, values, bench.n, options, out.data(), nullptr, flag.data());
    });
    bench.put("qsgd" + std::to_string(bits) + "_share_of_read_pass", bench.read_ms / ms);
  }
  bench.put_time("terngrad", [&] {
    require(ternary(queue, values, bench.n, 512, words_of({}, 0), out.data(), nullptr), "terngrad");
  });
  bench.put_time("onebit", [&] { require(one_bit(queue, values, bench.n, 512, out.data(), nullptr), "onebit"); });
  auto halves = queue.allocate<uint16_t>(bench.n);
  bench.put_time("bf16",
                 [&] { require(bf16(queue, values, bench.n, words_of({}, 0), halves.data(), nullptr), "bf16"); });
  bench.put_time("f16", [&] { require(f16(queue, values, bench.n, words_of({}, 0), halves.data(), nullptr), "f16"); });
  const uint64_t k = bench.n / 100;
  bench.put_time("sign_mean_of_1_percent",
                 [&] { require(sign_mean(queue, values, k, out.data(), nullptr), "sign_mean"); });
}

void measure_buckets(Bench& bench, const float* gradient, float* residual) {
  for (const uint32_t bits : {0u, 2u}) {
    const BucketJob job{.residual = residual, .gradient = gradient, .kept = residual, .n = bench.n, .bits = bits};
    const std::string name = bits == 0 ? "bucket_64_of_4096" : "bucket_64_of_4096_qsgd2";
    const double ms = bench.put_time(name, [&] { require(bucket_top_k(bench.queue, job), "bucket_top_k"); });
    bench.put(name + "_over_two_reads_one_write", ms / bench.add_ms);
  }
}

void measure_bloom(Bench& bench, const float* values) {
  DeviceQueue& queue = bench.queue;
  const uint64_t k = bench.n / 100;
  const auto selected = top_k(queue, values, bench.n, k, Zeros::kSelected);
  require(selected, "top_k");
  const BloomShape shape = BloomShape::optimal(k, 0.01);
  const BloomHashes hashes = BloomHashes::from(5, static_cast<uint32_t>(shape.bits), shape.probes);
  auto words = queue.allocate<uint32_t>(shape.bits / 32);
  bench.put_time("bloom_insert", [&] {
    queue.clear(words.data(), shape.bits / 8);
    bloom_insert(queue, hashes, selected->positions.data(), k, words.data());
  });
  const double ms = bench.put_time("bloom_query", [&] {
    require(bloom_query(queue, hashes, words.data(), bench.n, k + bench.n / 90), "bloom_query");
  });
  bench.put("bloom_queries_g_per_s", static_cast<double>(bench.n) / ms * 1e-6);
}

/// Selections by thresholds and by draws. A reused threshold is measured in a step that reuses it.
void measure_thresholds(Bench& bench, const float* values) {
  DeviceQueue& queue = bench.queue;
  const uint64_t n = bench.n;
  const uint64_t k = n / 100;
  constexpr uint32_t kPeriod = 1000;
  bench.put_time("tail_sums", [&] { require(tail_sums(queue, values, n, kInfinityKey), "tail_sums"); });
  for (const uint64_t some : {n / 16, n / 4}) {
    bench.put("tail_sums_of_" + std::to_string(some) + "_ms",
              bench.median_ms([&] { require(tail_sums(queue, values, some, kInfinityKey), "tail_sums"); }));
  }
  bench.put_time("radix_1_percent", [&] { require(radix_top_k(queue, values, n, k), "radix"); });
  bench.put_time("k_to_2k_1_percent", [&] { require(k_to_2k(queue, values, n, k), "k_to_2k"); });
  ThresholdReuse<DeviceQueue> reuse(k, kPeriod);
  bench.put_time("threshold_reuse_1_percent", [&] { require(reuse.select(queue, values, n), "threshold_reuse"); });
  Sampled<DeviceQueue> sampled(k, kPeriod);
  bench.put_time("sampled_1_percent", [&] { require(sampled.select(queue, values, n), "sampled"); });
  bench.put_time("gaussian_1_percent", [&] { require(gaussian(queue, values, n, k), "gaussian"); });
  bench.put_time("gspar_1_percent", [&] { require(gspar(queue, values, n, k, 2, RandomKey::from(4)), "gspar"); });
  const auto sums = tail_sums(queue, values, n, kInfinityKey);
  require(sums, "tail_sums");
  const float magnitude = GsparMagnitude(sums->magnitude, k, 1).value();
  bench.put_time("draw_by_size",
                 [&] { require(draw_by_size(queue, values, n, magnitude, RandomKey::from(4), k), "draw_by_size"); });
}

/// A step of a worker: add a gradient, select 1 %, take it, code it; positions and codes cross the bus.
void measure_push(Bench& bench, const float* gradient, float* residual) {
  DeviceQueue& queue = bench.queue;
  const uint64_t k = bench.n / 100;
  const QsgdOptions options{.bits = 4, .random = RandomKey::from(3)};
  auto taken = queue.allocate<float>(k);
  auto code = queue.allocate<uint8_t>(qsgd_encoded_bytes(k, options.bits, options.bucket_size));
  std::vector<uint32_t> positions(k);
  std::vector<float> values(k);
  std::vector<uint8_t> codes(code.size());
  for (const bool is_coded : {false, true}) {
    const uint64_t before = queue.bytes_down() + queue.bytes_up();
    uint64_t pushes = 0;
    const std::string name = is_coded ? "push_1_percent_qsgd4" : "push_1_percent";
    bench.put_time(name, [&] {
      ++pushes;
      require(add(queue, gradient, residual, bench.n, 1.0F, nullptr), "add");
      const auto selected = top_k(queue, residual, bench.n, k, Zeros::kSkipped);
      require(selected, "top_k");
      take(queue, residual, selected->positions.data(), k, taken.data());
      queue.download(std::span(positions), static_cast<const uint32_t*>(selected->positions.data()));
      if (is_coded) {
        require(qsgd(queue, taken.data(), k, options, code.data(), nullptr), "qsgd");
        queue.download(std::span(codes), static_cast<const uint8_t*>(code.data()));
      } else {
        queue.download(std::span(values), static_cast<const float*>(taken.data()));
      }
    });
    const auto crossed = static_cast<double>(queue.bytes_down() + queue.bytes_up() - before);
    const uint64_t entries = k * sizeof(uint32_t) + (is_coded ? code.size() : k * sizeof(float));
    bench.put(name + "_bus_bytes_over_entries", crossed / static_cast<double>(pushes * entries));
  }
}

/// A whole push of a tensor whose residual is on the device: 1 % of the gradient crosses the bus.
void measure_accumulator(Bench& bench, const float* gradient) {
  DeviceQueue& queue = bench.queue;
  const uint64_t k = bench.n / 100;
  Accumulator<DeviceQueue> sum(queue, bench.n);
  for (const NonFiniteValues rule : {NonFiniteValues::kRefused, NonFiniteValues::kLeftOut}) {
    const std::string name = rule == NonFiniteValues::kRefused ? "accumulator_add_refusing" : "accumulator_add";
    bench.put_time(name, [&] { require(sum.add(gradient, 1, rule), "add"); });
  }
  bench.put_time("accumulator_norm", [&] { require(sum.norm(), "norm"); });
  require(sum.take_all(), "take_all");
  const uint64_t before = queue.bytes_down() + queue.bytes_up();
  uint64_t entries = 0;
  Stream arrays;  // of the push before, as Bucket has them
  bench.put_time("accumulator_push_1_percent", [&] {
    require(sum.add(gradient, 1, NonFiniteValues::kRefused), "add");
    const auto selected = sum.select_top_k(k);
    require(selected, "select");
    auto taken = sum.take_at(*selected, std::move(arrays));
    require(taken, "take");
    arrays = std::move(*taken);
    entries += arrays.count();
  });
  const auto crossed = static_cast<double>(queue.bytes_down() + queue.bytes_up() - before);
  bench.put("accumulator_push_bus_bytes_over_entries", crossed / static_cast<double>(entries * kPairBytes));
}

/// Times of the selections of [RedSync19, figure 1]: 0.1 % of uniform values, by size up to the paper's largest.
void measure_redsync(Bench& bench, float* values) {
  DeviceQueue& queue = bench.queue;
  queue.launch(FillUniform{values, bench.n, RoundKeys::of(3, 7)}, queue.filling_blocks(256));
  for (uint64_t n = 1 << 16; n <= std::min(bench.n, uint64_t{1} << 26); n *= 4) {
    const uint64_t k = n / 1000;
    const std::string size = "_0_1_percent_of_" + std::to_string(n);
    bench.put("radix" + size + "_ms", bench.median_ms([&] { require(radix_top_k(queue, values, n, k), "radix"); }));
    bench.put("top_k" + size + "_ms",
              bench.median_ms([&] { require(top_k(queue, values, n, k, Zeros::kSkipped), "top_k"); }));
    bench.put("k_to_2k" + size + "_ms", bench.median_ms([&] { require(k_to_2k(queue, values, n, k), "k_to_2k"); }));
    Sampled<DeviceQueue> sampled(k, 1000);
    bench.put("sampled" + size + "_ms", bench.median_ms([&] { require(sampled.select(queue, values, n), "sampled"); }));
  }
}

/// The device's part of [DeepReduce21, figure 10]: 1 % of 36,864 values, a Bloom filter with policy P0 and QSGD of
/// 7 bits.
void measure_deep_reduce(Bench& bench, float* values) {
  DeviceQueue& queue = bench.queue;
  constexpr uint64_t kCount = 36'864;
  constexpr uint64_t kSelected = kCount / 100;
  const BloomShape shape = BloomShape::optimal(kSelected, 0.001);
  const BloomHashes hashes = BloomHashes::from(5, static_cast<uint32_t>(shape.bits), shape.probes);
  auto words = queue.allocate<uint32_t>(shape.bits / 32);
  auto taken = queue.allocate<float>(kCount);
  auto code = queue.allocate<uint8_t>(qsgd_encoded_bytes(kCount, 7, 512));
  bench.put("top_k_1_percent_of_36864_ms",
            bench.median_ms([&] { require(top_k(queue, values, kCount, kSelected, Zeros::kSkipped), "top_k"); }));
  const auto selected = top_k(queue, values, kCount, kSelected, Zeros::kSkipped);
  require(selected, "top_k");
  bench.put("bloom_p0_qsgd7_of_36864_ms", bench.median_ms([&] {
    queue.clear(words.data(), shape.bits / 8);
    bloom_insert(queue, hashes, selected->positions.data(), kSelected, words.data());
    const auto known = bloom_query(queue, hashes, words.data(), kCount, kSelected);
    require(known, "bloom_query");
    take(queue, values, known->positions.data(), known->count, taken.data());
    scatter_add(queue, values, known->positions.data(), taken.data(), known->count);
    require(qsgd(queue, taken.data(), known->count, {.bits = 7}, code.data(), nullptr), "qsgd");
  }));
}

int run(int log2_n, int repeats) {
  auto made = DeviceQueue::make(0);
  require(made, "a device");
  DeviceQueue& queue = **made;
  Bench bench{queue, uint64_t{1} << log2_n, repeats};
  auto values = queue.allocate<float>(bench.n);
  auto sums = queue.allocate<float>(bench.n);
  auto sink = queue.allocate<uint32_t>(1);
  queue.launch(FillNormal{values.data(), bench.n, RoundKeys::of(1, 7)}, queue.filling_blocks(256));
  queue.launch(FillNormal{sums.data(), bench.n, RoundKeys::of(2, 7)}, queue.filling_blocks(256));
  require(queue.finish(), "fill");
  bench.json = "{\n  \"card\": \"" + device_name(0).value_or("?") + "\",\n  \"log2_n\": " + std::to_string(log2_n);
  measure_passes(bench, values.data(), sums.data(), sink.data());
  measure_top_k(bench, values.data(), bench.n / 100, "top_k_1_percent", true);
  measure_top_k(bench, values.data(), bench.n / 1000, "top_k_0_1_percent", false);
  auto bins = queue.allocate<uint64_t>(kBins);
  queue.clear(bins.data(), kBins * sizeof(uint64_t));
  bench.put_time("add", [&] { require(add(queue, values.data(), sums.data(), bench.n, 1.0F, nullptr), "add"); });
  bench.put_time("add_with_histogram",
                 [&] { require(add(queue, values.data(), sums.data(), bench.n, 1.0F, bins.data()), "add"); });
  queue.launch(FillNormal{sums.data(), bench.n, RoundKeys::of(2, 7)}, queue.filling_blocks(256));
  measure_buckets(bench, values.data(), sums.data());
  measure_quantizers(bench, values.data());
  measure_bloom(bench, values.data());
  measure_thresholds(bench, values.data());
  queue.launch(FillNormal{sums.data(), bench.n, RoundKeys::of(2, 7)}, queue.filling_blocks(256));
  measure_push(bench, values.data(), sums.data());
  measure_accumulator(bench, values.data());
  measure_deep_reduce(bench, values.data());
  measure_redsync(bench, values.data());
  std::cout << bench.json << "\n}\n";
  return 0;
}

}  // namespace
}  // namespace millrace::cuda

int main(int argc, char** argv) {
  return millrace::cuda::run(argc > 1 ? std::atoi(argv[1]) : 28, argc > 2 ? std::atoi(argv[2]) : 15);
}
