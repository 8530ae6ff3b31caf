// Measures index codes on a training's selections, one after the other: index sets in, bytes and times out. The history
// is that of the updates among them, as a worker and its shard have it of a part.
//
//   millrace_history_replay --dimension N
//
// All numbers are little-endian; f64 are IEEE 754. In: records
//
// - u32 kind: 0 is a contribution; 1 is the update of the step, which advances the history
// - u32 count
// - u32 [count]: indices, strictly increasing, below N
//
// Out, for each contribution: three f64 for each of `rice`, `gap`, `adaptive`, `history`, in this order. They are
// bytes, and nanoseconds of coding and of decoding an index. Out, for each update: one f64, nanoseconds an index that
// the history takes. Everything is decoded and compared.
//
// One thread. Exit code 0: the input ended between two records. Exit code 1: it ended within a record, has invalid
// indices, or a decoded set differs from the encoded one. Exit code 2: usage.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/codec/codec_list.h"
#include "kernels/codec/history/history_code.h"

namespace millrace {
namespace {

constexpr uint32_t kUpdate = 1;

struct Cost {
  double bytes = 0;
  double encode_ns = 0;
  double decode_ns = 0;
};

double per_index(TimeNs begin, TimeNs end, size_t count) {
  return static_cast<double>(end - begin) / static_cast<double>(std::max<size_t>(count, 1));
}

class HistoryReplay {
 public:
  explicit HistoryReplay(uint64_t dimension) : history_(dimension) {}

  bool valid(IndexSpan indices) const {
    for (size_t j = 1; j < indices.size(); ++j) {
      if (indices[j - 1] >= indices[j]) return false;
    }
    return indices.empty() || indices.back() < history_.dimension();
  }

  double advance(IndexSpan indices) {
    const TimeNs begin = monotonic_now_ns();
    history_.advance(indices);
    return per_index(begin, monotonic_now_ns(), indices.size());
  }

  /// Returns false if a decoded set differs.
  bool contribute(IndexSpan indices, std::array<Cost, 4>& costs) {
    const uint64_t n = history_.dimension();
    size_t at = 0;
    for (const IndexCodec* codec : {&rice_index_codec(), &gap_index_codec(), &adaptive_index_codec()}) {
      const auto encode = [&](ByteBuffer& out) { return codec->encode(indices, n, {}, out, nullptr).has_value(); };
      const auto decode = [&](ByteSpan bytes, IndexBuffer& out) {
        return codec->decode(bytes, n, indices.size(), out).has_value();
      };
      if (!measure(indices, encode, decode, costs[at++])) return false;
    }
    const auto encode = [&](ByteBuffer& out) {
      history_encode(history_, indices, out);
      return true;
    };
    const auto decode = [&](ByteSpan bytes, IndexBuffer& out) {
      return history_decode(bytes, history_, indices.size(), out).has_value();
    };
    return measure(indices, encode, decode, costs[at]);
  }

 private:
  template <typename Encode, typename Decode>
  bool measure(IndexSpan indices, const Encode& encode, const Decode& decode, Cost& cost) {
    bytes_.clear();
    const TimeNs begin = monotonic_now_ns();
    const bool coded = encode(bytes_);
    const TimeNs middle = monotonic_now_ns();
    const bool back = coded && decode(bytes_, decoded_);
    const TimeNs end = monotonic_now_ns();
    cost = {static_cast<double>(bytes_.size()), per_index(begin, middle, indices.size()),
            per_index(middle, end, indices.size())};
    return back && std::ranges::equal(decoded_, indices);
  }

  IndexHistory history_;
  ByteBuffer bytes_;
  IndexBuffer decoded_;
};

int failed(const std::string& sentence, int code) {
  fmt::print(stderr, "millrace_history_replay: {}\n", sentence);
  return code;
}

template <typename T>
bool read(std::span<T> out) {
  return std::fread(out.data(), sizeof(T), out.size(), stdin) == out.size();
}

template <typename T>
bool write(std::span<const T> values) {
  return std::fwrite(values.data(), sizeof(T), values.size(), stdout) == values.size();
}

int run(uint64_t dimension) {
  HistoryReplay replay(dimension);
  IndexBuffer indices;
  while (true) {
    std::array<uint32_t, 2> head{};
    const size_t got = std::fread(head.data(), 1, sizeof(head), stdin);
    if (got == 0 && std::feof(stdin) != 0) return 0;
    if (got != sizeof(head) || head[0] > kUpdate || head[1] > dimension) return failed("not a record", 1);
    indices.resize(head[1]);
    if (!read(std::span(indices))) return failed("the input ends within a record", 1);
    if (!replay.valid(indices)) return failed("indices are not increasing, or not below --dimension", 1);
    bool written = false;
    if (head[0] == kUpdate) {
      const std::array<double, 1> cost{replay.advance(indices)};
      written = write(std::span<const double>(cost));
    } else {
      std::array<Cost, 4> costs;
      if (!replay.contribute(indices, costs)) return failed("a code does not decode to its indices", 1);
      written = write(std::span<const Cost>(costs));
    }
    if (!written || std::fflush(stdout) != 0) return failed("the output cannot be written", 1);
  }
}

int parse_and_run(int argc, char** argv) {
  uint64_t dimension = 0;
  CLI::App app("index sets in, what codes of them take out (tests/bench/history_replay.cc has the bytes)");
  app.add_option("--dimension", dimension, "dimension")
      ->required()
      ->check(CLI::Range(uint64_t{1}, kHistoryDimensionMax));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return failed(error.what(), 2);
  }
  return run(dimension);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::parse_and_run(argc, argv); }
