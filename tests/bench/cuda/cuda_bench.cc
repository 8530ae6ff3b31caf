// Measures the kernels of kernels/cuda on the first card, in passes over the array (see README.md). Prints JSON.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/bloom.h"
#include "kernels/cuda/bucket_top_k.h"
#include "kernels/cuda/device_queue.h"
#include "kernels/cuda/quantize.h"
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
  std::cout << bench.json << "\n}\n";
  return 0;
}

}  // namespace
}  // namespace millrace::cuda

int main(int argc, char** argv) {
  return millrace::cuda::run(argc > 1 ? std::atoi(argv[1]) : 28, argc > 2 ? std::atoi(argv[2]) : 15);
}
