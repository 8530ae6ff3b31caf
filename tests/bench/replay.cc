// Runs one selection and one codec as a filter: reads vectors, writes the vectors that a receiver decodes. Training
// loops in other languages compress by it with the kernels that the product runs (tests/bench/papers/).
//
//   millrace_replay --dimension N [--select TEXT] [--codec TEXT] [--unbiased] [--seed S] [--check]
//
// - TEXT is as in a job's specification (kernels/select/select.h, kernels/codec/codec.h).
// - --select dense: no selection, the vector goes whole as a dense stream. --select none: its non-zero entries go.
// - --unbiased: the selection draws (Selector::draw), and there is no residual.
// - --check: reports whether the texts are valid, and reads nothing.
//
// All numbers are little-endian; f64 are IEEE 754. In: any number of steps, each a vector [N] f32. Out, a step:
//
//   | offset | bytes | type | field |
//   |      0 |     8 |  u64 | entries selected |
//   |      8 |     8 |  u64 | entries that are decoded |
//   |     16 |     8 |  u64 | bytes of the container |
//   |     24 |     8 |  u64 | bytes of it that are index code |
//   |     32 |     8 |  u64 | bytes of it that are value code |
//   |     40 |     8 |  f64 | nanoseconds of the selection |
//   |     48 |     8 |  f64 | of the encoder: index and value code, container, checksum |
//   |     56 |     8 |  f64 | of the decoder: the checks, both codes |
//   |     64 |     8 |  u64 | 0, or the number of an ErrorCode (see below) |
//   |     72 |   4 N |  f32 | the decoded values; entries that are not sent are 0 |
//
// After an error all fields before its code are 0, the message is on stderr, and the next step may follow.
//
// One thread. Exit code 0: the input ended between two vectors. Exit code 1: it ended within a vector, or a read or a
// write failed. Exit code 2: usage (a text that this build does not know).
#include <fmt/core.h>
#include <tbb/global_control.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "protocol/container/container.h"
#include "protocol/job/step_sends.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kReplayDimensionMax = uint64_t{1} << 28;

struct Flags {
  uint64_t n = 0;
  std::string select = "none";
  std::string codec = "raw+raw";
  bool unbiased = false;
  uint64_t seed = 1;
  bool check = false;
};

struct Report {
  uint64_t selected = 0;
  uint64_t decoded = 0;
  uint64_t container_bytes = 0;
  uint64_t index_bytes = 0;
  uint64_t value_bytes = 0;
  double select_ns = 0;
  double encode_ns = 0;
  double decode_ns = 0;
  uint64_t error = 0;
};
static_assert(sizeof(Report) == 72);

/// One worker's side of a tensor, and a receiver of its contributions.
class Replay {
 public:
  /// Errors  invalid_argument: texts that cannot be, or not together.
  static Result<std::unique_ptr<Replay>> create(const Flags& flags) {
    auto made = std::unique_ptr<Replay>(new Replay(flags));
    auto codec = codec_from_text(flags.codec);
    if (!codec) return std::unexpected(codec.error());
    if (auto valid = validate(*codec); !valid) return std::unexpected(valid.error());
    if (codec->automatic) return fail(ErrorCode::kInvalidArgument, "automatic choice is the job's: name a codec");
    made->codec_ = *codec;
    if (flags.select == "dense") return made;
    auto spec = selection_from_text(flags.select);
    if (!spec) return std::unexpected(spec.error());
    auto selector = make_selector(*spec, flags.n);
    if (!selector) return std::unexpected(selector.error());
    const SelectionInfo* info = find_selection(spec->selection);
    const SelectionUse unfit = flags.unbiased ? SelectionUse::kWithResidual : SelectionUse::kUnbiased;
    if (info->use == unfit) {
      return fail(ErrorCode::kInvalidArgument,
                  flags.select + (flags.unbiased ? " is not unbiased" : " needs --unbiased"));
    }
    made->selector_ = std::move(*selector);
    made->selection_ = *spec;
    made->draws_ = flags.unbiased && spec->selection != SelectionId::kNone;
    return made;
  }

  /// values   [n]; the input of the selection.
  /// decoded  [n]; the values that a receiver decodes.
  Result<Report> step(std::span<const float> values, std::span<float> decoded) {
    Report report;
    const StreamView accumulator{values.size(), true, {}, values};
    const uint64_t step = step_++;
    const TimeNs begin = monotonic_now_ns();
    auto selected = select(accumulator, step);
    if (!selected) return std::unexpected(selected.error());
    const TimeNs at_encode = monotonic_now_ns();
    report.select_ns = static_cast<double>(at_encode - begin);
    const StreamView nothing;
    const bool uncompressed = protocol::step_sends(selection_, flags_.n, step) == protocol::StepSends::kUncompressed;
    const EncodeOptions options{.spec = uncompressed ? without_loss(codec_) : codec_,
                                .random = random_key(flags_.seed, 0, step, 1)};
    auto coded = encode_container(*selected, flags_.unbiased ? nothing : accumulator, options);
    if (!coded) return std::unexpected(coded.error());
    const TimeNs at_decode = monotonic_now_ns();
    report.encode_ns = static_cast<double>(at_decode - at_encode);
    auto stream = read_container(coded->bytes, {.dimension = flags_.n});
    if (!stream) return std::unexpected(stream.error());
    report.decode_ns = static_cast<double>(monotonic_now_ns() - at_decode);
    const auto header = read_container_header(coded->bytes);
    MILLRACE_CHECK(header.has_value());
    report.selected = selected->count();
    report.decoded = stream->count();
    report.container_bytes = coded->bytes.size();
    report.index_bytes = header->index_bytes;
    report.value_bytes = header->value_bytes;
    check_sent_is_decoded(*selected, *coded, *stream);
    spread(*stream, decoded);
    return report;
  }

 private:
  explicit Replay(const Flags& flags) : flags_(flags) {}

  Result<StreamView> select(const StreamView& accumulator, uint64_t step) {
    if (selector_ == nullptr) return accumulator;
    const SelectContext context{step, random_key(flags_.seed, 0, step)};
    const Status done = draws_ ? selector_->draw(accumulator, context, positions_, values_)
                               : selector_->select(accumulator, context, positions_);
    if (!done) return std::unexpected(done.error());
    if (!draws_) {
      values_.resize(positions_.size());
      for (size_t j = 0; j < positions_.size(); ++j) values_[j] = accumulator.values[positions_[j]];
    }
    return StreamView{accumulator.dimension, false, positions_, values_};
  }

  static void check_sent_is_decoded(const StreamView& selected, const EncodedContainer& coded, const Stream& decoded) {
    const StreamView said = coded.exact ? selected : coded.decoded.view();
    MILLRACE_CHECK(said.dense == decoded.dense && std::ranges::equal(said.indices, decoded.indices),
                   said.indices.size(), decoded.indices.size());
    MILLRACE_CHECK(said.values.size() == decoded.values.size() &&
                       std::memcmp(said.values.data(), decoded.values.data(), said.values.size_bytes()) == 0,
                   said.values.size(), decoded.values.size());
  }

  static void spread(const Stream& stream, std::span<float> dense) {
    if (stream.dense) {
      std::ranges::copy(stream.values, dense.begin());
      return;
    }
    std::ranges::fill(dense, 0.0F);
    for (size_t j = 0; j < stream.indices.size(); ++j) dense[stream.indices[j]] = stream.values[j];
  }

  Flags flags_;
  CodecSpec codec_;
  SelectionSpec selection_;
  std::unique_ptr<Selector> selector_;  ///< none: the whole vector, dense
  bool draws_ = false;
  IndexBuffer positions_;
  Buffer<float> values_;
  uint64_t step_ = 0;
};

int failed(const std::string& sentence, int code) {
  fmt::print(stderr, "millrace_replay: {}\n", sentence);
  return code;
}

int run(const Flags& flags) {
  auto replay = Replay::create(flags);
  if (!replay) return failed(replay.error().message, 2);
  if (flags.check) return 0;
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  Buffer<float> values(flags.n);
  Buffer<float> decoded(flags.n);
  while (true) {
    const size_t got = std::fread(values.data(), 1, flags.n * sizeof(float), stdin);
    if (got == 0 && std::feof(stdin) != 0) return 0;
    if (got != flags.n * sizeof(float)) return failed("the input ends within a vector", 1);
    auto report = (*replay)->step(values, decoded);
    if (!report) {
      failed(report.error().message, 1);
      report = Report{.error = static_cast<uint64_t>(report.error().code)};
      std::ranges::fill(decoded, 0.0F);
    }
    const auto head = std::bit_cast<std::array<char, sizeof(Report)>>(*report);
    const bool written = std::fwrite(head.data(), 1, head.size(), stdout) == head.size() &&
                         std::fwrite(decoded.data(), sizeof(float), decoded.size(), stdout) == decoded.size() &&
                         std::fflush(stdout) == 0;
    if (!written) return failed("the output cannot be written", 1);
  }
}

int parse_and_run(int argc, char** argv) {
  Flags flags;
  CLI::App app("vectors in, the values that a receiver decodes out (tests/bench/replay.cc has the bytes)");
  app.add_option("--dimension", flags.n, "dimension")->required()->check(CLI::Range(uint64_t{1}, kReplayDimensionMax));
  app.add_option("--select", flags.select, "dense, " + selection_names())->capture_default_str();
  app.add_option("--codec", flags.codec, "INDEX+VALUE")->capture_default_str();
  app.add_flag("--unbiased", flags.unbiased, "the selection draws");
  app.add_option("--seed", flags.seed, "of the draws")->capture_default_str();
  app.add_flag("--check", flags.check, "says whether the texts can be, reads nothing");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    return failed(error.what(), 2);
  }
  return run(flags);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::parse_and_run(argc, argv); }
