#include "worker/bench/rounds/serve_racks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "protocol/datagram/window/window_code.h"
#include "worker/bench/rounds/serve_input.h"
#include "worker/cluster_status/fetch_status.h"

namespace millrace::bench {
namespace {

constexpr double kServeRacksErrorMax = 1e-3;      ///< as judge_switch_update()'s
constexpr double kServeRacksWellOver = 1.2;       ///< of a threshold
constexpr double kServeRacksMissingShare = 0.01;  ///< of the entries well over both
constexpr double kServeRacksSizeOff = 0.25;       ///< of k
constexpr int kStatusTimeoutMs = 10'000;

/// The sum of these workers' inputs.
Stream sum_of(const ServeJob& job, const std::vector<uint32_t>& workers, uint32_t round) {
  std::vector<std::pair<uint32_t, float>> entries;
  for (const uint32_t worker : workers) {
    const Stream input = serve_input(job.n, job.pushed, job.seed, worker, round);
    for (size_t i = 0; i < input.indices.size(); ++i) entries.emplace_back(input.indices[i], input.values[i]);
  }
  std::ranges::stable_sort(entries, {}, &std::pair<uint32_t, float>::first);
  Stream sum = Stream::empty(job.n);
  for (const auto& [index, value] : entries) {
    if (!sum.indices.empty() && sum.indices.back() == index) {
      sum.values.back() += value;
      continue;
    }
    sum.indices.push_back(index);
    sum.values.push_back(value);
  }
  return sum;
}

/// Code of one window's entries, in as few pieces as the longest packet allows.
uint64_t coded_bytes(std::span<const uint16_t> indices, std::span<const int32_t> values, uint32_t window_indices) {
  const bool fits =
      std::ranges::all_of(values, [](int32_t value) { return std::abs(value) <= std::numeric_limits<int16_t>::max(); });
  const protocol::WindowCodecs codecs{
      .index = protocol::WindowIndexCodec::kGap,
      .value = fits ? protocol::WindowValueCodec::kFixed16 : protocol::WindowValueCodec::kFixed32};
  std::vector<uint8_t> payload(protocol::kDatagramBytesMax);
  std::vector<int32_t> decoded(indices.size());
  uint64_t bytes = 0;
  for (size_t at = 0; at < indices.size();) {
    protocol::DatagramHeader header;
    at += protocol::encode_window({indices.subspan(at), values.subspan(at)}, codecs, window_indices, header, payload,
                                  decoded);
    bytes += header.payload_bytes;
  }
  return bytes;
}

double threshold_of(const Stream& sum, uint64_t k) {
  std::vector<float> magnitudes;
  for (const float value : sum.values) magnitudes.push_back(std::fabs(value));
  if (magnitudes.empty()) return 0;
  const auto place = static_cast<std::ptrdiff_t>(std::min<uint64_t>(k, magnitudes.size()) - 1);
  std::ranges::nth_element(magnitudes, magnitudes.begin() + place, std::greater<>());
  return static_cast<double>(magnitudes[static_cast<size_t>(place)]);
}

float value_at(const Stream& sum, uint32_t index) {
  const auto at = std::ranges::lower_bound(sum.indices, index);
  if (at == sum.indices.end() || *at != index) return 0;
  return sum.values[static_cast<size_t>(at - sum.indices.begin())];
}

/// Of the sums of some of `parts`, the one that is nearest to `value`. Few parts are not 0.
double nearest_partial(std::vector<float> parts, double value) {
  std::erase(parts, 0.0f);
  double nearest = std::numeric_limits<double>::infinity();
  for (uint64_t some = 1; some < uint64_t{1} << parts.size(); ++some) {
    double sum = 0;
    for (size_t i = 0; i < parts.size(); ++i) sum += (some >> i & 1) != 0 ? static_cast<double>(parts[i]) : 0;
    if (std::fabs(sum - value) < std::fabs(nearest - value)) nearest = sum;
  }
  return nearest;
}

}  // namespace

std::vector<std::vector<uint32_t>> rack_members(uint32_t workers, uint32_t racks) {
  std::vector<std::vector<uint32_t>> members(racks);
  for (uint32_t worker = 0; worker < workers; ++worker)
    members[static_cast<size_t>(uint64_t{worker} * racks / workers)].push_back(worker);
  return members;
}

CodedUnion coded_union(const ServeJob& job, const std::vector<std::vector<uint32_t>>& racks, uint32_t round,
                       uint32_t window_indices, int grid_exponent) {
  CodedUnion all;
  for (const std::vector<uint32_t>& rack : racks) {
    const Stream sum = sum_of(job, rack, round);
    all.entries += sum.indices.size();
    std::vector<uint16_t> indices;
    std::vector<int32_t> values;
    for (size_t i = 0; i < sum.indices.size(); ++i) {
      const uint32_t window = sum.indices[i] / window_indices;
      indices.push_back(static_cast<uint16_t>(sum.indices[i] % window_indices));
      values.push_back(
          static_cast<int32_t>(std::lround(std::ldexp(static_cast<double>(sum.values[i]), -grid_exponent))));
      if (i + 1 < sum.indices.size() && sum.indices[i + 1] / window_indices == window) continue;
      all.bytes += coded_bytes(indices, values, window_indices);
      indices.clear();
      values.clear();
    }
  }
  return all;
}

ServeVerdict judge_selected_update(const ServeJob& job, const std::vector<std::vector<uint32_t>>& racks, uint64_t share,
                                   uint32_t round, const StreamView& update) {
  std::vector<Stream> sums;
  std::vector<double> least;
  for (const std::vector<uint32_t>& rack : racks) {
    sums.push_back(sum_of(job, rack, round));
    least.push_back(kServeRacksWellOver * threshold_of(sums.back(), share));
  }
  ServeVerdict verdict;
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < update.values.size(); ++i) {
    std::vector<float> parts;
    for (const Stream& sum : sums) parts.push_back(value_at(sum, update.indices[i]));
    const auto value = static_cast<double>(update.values[i]);
    const double wanted = nearest_partial(parts, value);
    if (std::isinf(wanted)) {
      verdict.reason = "index " + std::to_string(update.indices[i]) + " is in no worker's contribution";
      return verdict;
    }
    error += std::pow(value - wanted, 2);
    norm += wanted * wanted;
  }
  verdict.relative_error = norm > 0 ? std::sqrt(error / norm) : 0;
  if (verdict.relative_error > kServeRacksErrorMax) {
    verdict.reason =
        "its entries are not sums of racks' sums: a relative error of " + std::to_string(verdict.relative_error);
    return verdict;
  }
  if (static_cast<double>(update.values.size()) > (1 + kServeRacksSizeOff) * static_cast<double>(job.k)) {
    verdict.reason = std::to_string(update.values.size()) + " entries, and k is " + std::to_string(job.k);
    return verdict;
  }
  const double global = kServeRacksWellOver * threshold_of(serve_sum(job, round), job.k);
  size_t large = 0;
  size_t missing = 0;
  for (size_t rack = 0; rack < sums.size(); ++rack) {
    for (size_t i = 0; i < sums[rack].indices.size(); ++i) {
      if (static_cast<double>(std::fabs(sums[rack].values[i])) < std::max(least[rack], global)) continue;
      ++large;
      missing += std::ranges::binary_search(update.indices, sums[rack].indices[i]) ? 0 : 1;
    }
  }
  verdict.agrees = large > 0 && static_cast<double>(missing) <= kServeRacksMissingShare * static_cast<double>(large);
  if (!verdict.agrees)
    verdict.reason =
        std::to_string(missing) + " of the " + std::to_string(large) + " largest entries of racks are missing";
  return verdict;
}

Result<uint64_t> datagram_bytes(const std::string& http_address) {
  const Result<nlohmann::json> status = cluster_status::fetch_status(http_address, kStatusTimeoutMs);
  if (!status) return std::unexpected(status.error());
  for (const nlohmann::json& job : status->value("jobs", nlohmann::json::array())) {
    const auto bytes = job.find("switch_path");
    if (bytes != job.end() && bytes->contains("aggregator")) return (*bytes)["aggregator"].value("bytes", uint64_t{0});
  }
  return fail(ErrorCode::kMalformed, "shard 0 at " + http_address + " says nothing of a job's datagrams");
}

}  // namespace millrace::bench
