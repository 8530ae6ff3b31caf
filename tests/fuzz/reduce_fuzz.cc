// Sums, settlement and conversion of streams made of fuzzed bytes, against maps.
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace {
namespace {

using testing::entries_of;
using testing::same_bits;
using testing::stream_of;

/// A stream of runs: each record skips some indices, then stores some, a step apart.
Stream read_stream(ByteReader& reader, uint64_t dimension) {
  testing::Entries entries;
  uint64_t at = 0;
  const uint32_t records = reader.get<uint8_t>().value_or(0) % 16;
  for (uint32_t i = 0; i < records; ++i) {
    at += uint64_t{reader.get<uint32_t>().value_or(0)} >> (reader.get<uint8_t>().value_or(0) % 32);
    const uint32_t length = reader.get<uint16_t>().value_or(0) % 600;
    const uint32_t step = 1 + reader.get<uint8_t>().value_or(0) % 70;
    const float value = static_cast<float>(reader.get<int8_t>().value_or(0)) / 3;
    for (uint32_t j = 0; j < length && at < dimension; ++j, at += step) {
      entries[static_cast<uint32_t>(at)] = value * static_cast<float>(j + 1);
    }
  }
  return stream_of(dimension, entries);
}

Stream oracle_sum(const std::vector<StreamView>& views, uint64_t dimension) {
  testing::Entries sum;
  for (const StreamView& view : views) {
    for (const auto& [index, value] : entries_of(view)) {
      const auto [entry, inserted] = sum.try_emplace(index, value);
      if (!inserted) entry->second += value;
    }
  }
  Stream out = stream_of(dimension, sum);
  return out.count() >= dense_from_count(dimension) ? to_dense(out.view()) : out;
}

void check_all(ByteSpan bytes) {
  ByteReader reader(bytes);
  const uint8_t shape = reader.get<uint8_t>().value_or(0);
  // Dense forms only where they are small.
  const uint64_t dimension = 1 + (uint64_t{reader.get<uint32_t>().value_or(0)} >> (shape % 32));
  std::vector<Stream> streams;
  std::vector<StreamView> views;
  for (uint32_t i = 0; i < 1u + shape / 32; ++i) {
    streams.push_back(read_stream(reader, dimension));
    if (dimension <= 4096 && reader.get<uint8_t>().value_or(0) % 4 == 0)
      streams.back() = to_dense(streams.back().view());
  }
  for (const Stream& stream : streams) {
    MILLRACE_CHECK(validate(stream.view()).has_value(), dimension);
    views.push_back(stream.view());
  }
  const Result<Stream> sum = sum_many(views);
  MILLRACE_CHECK(sum.has_value() && validate(sum->view()).has_value(), dimension);
  MILLRACE_CHECK(same_bits(sum->view(), oracle_sum(views, dimension).view()), dimension, views.size());
  // An edge that some sum lies on, where there is one.
  const float on_edge = sum->values.empty() ? 1 : std::fabs(sum->values[sum->values.size() / 2]);
  const float edge = on_edge > 0 && std::isfinite(on_edge) ? on_edge : 1;
  testing::Entries large = entries_of(sum->view());
  std::erase_if(large, [edge](const auto& entry) { return !(std::fabs(entry.second) >= edge); });
  MILLRACE_CHECK(same_bits(sum_at_least(views, edge)->view(), stream_of(dimension, large).view()), edge);
  const StreamView& first = views.front();
  const StreamView& last = views.back();
  MILLRACE_CHECK(same_bits(sum_two(first, last)->view(), oracle_sum({first, last}, dimension).view()), dimension);
  testing::Entries left = entries_of(to_sparse(first).view());
  for (const auto& [index, value] : entries_of(last)) left.erase(index);
  MILLRACE_CHECK(same_bits(not_carried(first, last).view(), stream_of(dimension, left).view()), dimension);
}

}  // namespace
}  // namespace millrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::check_all({data, size});
  return 0;
}
