#include "worker/bench/rounds/session_core_bench.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/magnitude/value_chunks.h"
#include "kernels/reduce/slice_kernels.h"
#include "protocol/container/container.h"
#include "worker/bench/kernels/measure.h"
#include "worker/bench/rounds/serve_input.h"
#include "worker/core/session_core.h"

namespace millrace::bench {
namespace {

constexpr uint64_t kJob = 1;
constexpr uint64_t kNonce = 1;
/// Until as many entries return as are carried: the deviation from it halves in every round.
constexpr uint32_t kWarmupRounds = 12;

enum class Carried : uint8_t { kAll = 1, kHalf = 2 };
/// Says how the tensor is pushed: sparse, and all is sent; or dense, and top-k selects the density.
enum class Pushed : uint8_t { kSparse = 1, kDense = 2 };

double ms_between(TimeNs begin, TimeNs end) { return static_cast<double>(end - begin) / static_cast<double>(kNsPerMs); }

struct RoundTimes {
  double push_ms = 0;
  double code_ms = 0;
  double update_ms = 0;
  double settle_ms = 0;
  double round_ms() const { return push_ms + code_ms + update_ms + settle_ms; }
};

/// A worker alone in its job, and the one shard it speaks with.
class LoneWorker {
 public:
  LoneWorker(const WorkerBenchOptions& options, Pushed pushed, Carried carried)
      : carried_(carried), core_(config(options, pushed, carried)) {
    membership_.job = kJob;
    membership_.epoch = 1;
    membership_.started = true;
    membership_.members = {{0, 1, kNonce}};
    membership_.shards = {{"tcp://none:1", 1}};
    core_.start(monotonic_now_ns(), actions_);
    core_.on_connected(0, monotonic_now_ns(), actions_);
    protocol::Welcome welcome;
    welcome.membership = membership_;
    hear(welcome, {});
    MILLRACE_CHECK(core_.phase() == worker::Phase::kRunning);
    actions_.clear();
  }

  RoundTimes round(const StreamView& gradient) {
    RoundTimes times;
    const TimeNs begin = monotonic_now_ns();
    const auto pushed = gradient.dense ? core_.push_dense(0, gradient.values, 1, begin)
                                       : core_.push_sparse(0, gradient.indices, gradient.values, 1, begin);
    MILLRACE_CHECK(pushed.has_value());
    const TimeNs filled = monotonic_now_ns();
    while (core_.work(filled, actions_)) {
    }
    const TimeNs coded = monotonic_now_ns();
    std::vector<std::pair<protocol::Update, SharedBytes>> updates = answers();
    const TimeNs answered = monotonic_now_ns();
    for (auto& [update, payload] : updates) hear(std::move(update), std::move(payload));
    core_.end_pass(answered, actions_);
    MILLRACE_CHECK(actions_.delivered.size() == updates.size(), actions_.delivered.size(), updates.size());
    const TimeNs applied = monotonic_now_ns();
    while (core_.resolve_one_deferred()) {
    }
    times.push_ms = ms_between(begin, filled);
    times.code_ms = ms_between(filled, coded);
    times.update_ms = ms_between(answered, applied);
    times.settle_ms = ms_between(applied, monotonic_now_ns());
    actions_.clear();
    return times;
  }

  uint64_t entries_sent_last() const { return entries_sent_last_; }

 private:
  static worker::CoreConfig config(const WorkerBenchOptions& options, Pushed pushed, Carried carried) {
    worker::CoreConfig config;
    config.nonce = kNonce;
    config.spec.name = "bench";
    config.spec.workers = 1;
    config.spec.tensors = {{.name = "w", .dimension = options.n}};
    if (pushed == Pushed::kDense) config.spec.select = {.selection = SelectionId::kTopK, .density = options.density};
    if (carried == Carried::kHalf)
      config.spec.reselect = {.reselect = protocol::Reselect::kTopK, .density = options.density};
    config.spec.codec_up = {.index = IndexCodecId::kRaw, .value = ValueCodecId::kRaw};
    config.spec.codec_down = config.spec.codec_up;
    config.spec.parts_per_shard = options.parts;
    config.shard_addresses = {"tcp://none:1"};
    MILLRACE_CHECK(protocol::validate(config.spec).has_value());
    return config;
  }

  void hear(protocol::Body body, SharedBytes payload) {
    protocol::Message message;
    message.header = {kJob, membership_.epoch, 0, 1, 0, 1};
    message.body = std::move(body);
    message.payload = std::move(payload);
    core_.on_message(0, std::move(message), monotonic_now_ns(), actions_);
  }

  /// Returns the shard's updates for the contributions to send.
  std::vector<std::pair<protocol::Update, SharedBytes>> answers() {
    std::vector<std::pair<protocol::Update, SharedBytes>> updates;
    entries_sent_last_ = 0;
    for (const worker::SendAction& send : actions_.sends) {
      const auto* contribution = std::get_if<protocol::Contribution>(&send.message.body);
      if (contribution == nullptr) continue;
      protocol::Update update;
      update.part = contribution->part;
      update.step = contribution->step;
      update.decided_in = membership_.epoch;
      update.contributors = {{0, 1}};
      update.weight_sum = 1;
      update.whole_sum = carried_ == Carried::kAll;
      const Result<StreamView> sent = view_container(send.message.payload.bytes, {});
      MILLRACE_CHECK(sent.has_value());
      entries_sent_last_ += sent->count();
      updates.emplace_back(std::move(update), carried_ == Carried::kAll ? send.message.payload : half_of(*sent));
    }
    actions_.clear();
    return updates;
  }

  static SharedBytes half_of(const StreamView& sent) {
    Stream half = Stream::empty(sent.dimension);
    for (size_t at = 0; at < sent.count(); at += 2) {
      half.indices.push_back(sent.indices[at]);
      half.values.push_back(sent.values[at]);
    }
    return plain_container(half.view(), 0, sent.dimension).bytes;
  }

  Carried carried_;
  protocol::Membership membership_;
  worker::SessionCore core_;
  worker::Actions actions_;
  uint64_t entries_sent_last_ = 0;
};

/// Times of the rounds of one row.
class RoundRow {
 public:
  void add(const RoundTimes& times, double pass_ms) {
    round_.push_back(times.round_ms());
    push_.push_back(times.push_ms);
    code_.push_back(times.code_ms);
    update_.push_back(times.update_ms);
    settle_.push_back(times.settle_ms);
    ratio_.push_back(times.round_ms() / pass_ms);
  }
  nlohmann::json report(const std::string& algorithm, uint64_t pushed, uint64_t sent) const {
    return {{"algorithm", algorithm},       {"entries_pushed", pushed},     {"entries_sent", sent},
            {"round_ms", median(round_)},   {"push_ms", median(push_)},     {"code_ms", median(code_)},
            {"update_ms", median(update_)}, {"settle_ms", median(settle_)}, {"ratio_to_memory_pass", median(ratio_)}};
  }

 private:
  std::vector<double> round_, push_, code_, update_, settle_, ratio_;
};

double memory_pass_ms(const Stream& stream) {
  const TimeNs begin = monotonic_now_ns();
  const double seen = memory_pass({&stream, 1});
  MILLRACE_CHECK(std::isfinite(seen), seen);
  return std::max(ms_between(begin, monotonic_now_ns()), 1e-6);
}

/// Adds values to sums, in the chunks and threads of a push that adds to a residual. Returns the time.
double addition_ms(std::span<float> sums, std::span<const float> values) {
  const TimeNs begin = monotonic_now_ns();
  const auto add_chunk = [&](size_t chunk) {
    const size_t at = chunk * kValueChunk;
    const size_t count = std::min(kValueChunk, sums.size() - at);
    add_scaled_dense(sums.subspan(at, count), values.subspan(at, count), 1);
  };
  for_chunks((sums.size() + kValueChunk - 1) / kValueChunk, add_chunk, kMemoryPass);
  return ms_between(begin, monotonic_now_ns());
}

nlohmann::json worker_row(const WorkerBenchOptions& options, const char* algorithm, Carried carried) {
  const auto pushed =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(options.density * static_cast<double>(options.n))));
  LoneWorker worker(options, Pushed::kSparse, carried);
  RoundRow row;
  for (uint32_t at = 0; at < kWarmupRounds + options.repeats; ++at) {
    const Stream gradient = serve_input(options.n, pushed, options.seed, 0, at);
    const double pass_ms = memory_pass_ms(gradient);
    const RoundTimes times = worker.round(gradient.view());
    if (at >= kWarmupRounds) row.add(times, pass_ms);
  }
  return row.report(algorithm, pushed, worker.entries_sent_last());
}

/// Dense pushes of one worker with one and with two threads in turns: disturbances of the machine meet both.
nlohmann::json dense_rows(const WorkerBenchOptions& options) {
  constexpr std::array<size_t, 2> kThreads = {1, 2};
  // Round r pushes the n normals from the r-th on: fresh ones would take longer than the measured work.
  const uint32_t rounds = kWarmupRounds + options.repeats * static_cast<uint32_t>(kThreads.size());
  Buffer<float> normals(options.n + rounds);
  RandomSequence random(random_key(options.seed));
  for (float& value : normals) value = static_cast<float>(random.next_normal());
  Stream all{normals.size(), true, {}, std::move(normals)};
  LoneWorker worker(options, Pushed::kDense, Carried::kAll);
  Buffer<float> sums(options.n);
  std::array<std::vector<double>, kThreads.size()> additions;
  std::array<RoundRow, kThreads.size()> rows;
  std::array<uint64_t, kThreads.size()> sent{};
  for (uint32_t at = 0; at < rounds; ++at) {
    const size_t turn = at % kThreads.size();
    const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, kThreads[turn]);
    const double pass_ms = memory_pass_ms(all);
    const std::span<const float> gradient = std::span<const float>(all.values).subspan(at, options.n);
    const RoundTimes times = worker.round({options.n, true, {}, gradient});
    sent[turn] = worker.entries_sent_last();
    if (at < kWarmupRounds) continue;
    rows[turn].add(times, pass_ms);
    additions[turn].push_back(addition_ms(sums, gradient));
  }
  nlohmann::json reports = {rows[0].report("dense_1_thread", options.n, sent[0]),
                            rows[1].report("dense_2_threads", options.n, sent[1])};
  for (size_t turn = 0; turn < kThreads.size(); ++turn) reports[turn]["addition_ms"] = median(additions[turn]);
  return reports;
}

}  // namespace

nlohmann::json bench_worker(const WorkerBenchOptions& options) {
  MILLRACE_CHECK(options.n >= 64 && options.n <= kDimensionMax && options.repeats >= 1, options.n, options.repeats);
  MILLRACE_CHECK(options.density > 0 && options.density <= 0.25, options.density);
  nlohmann::json rows = nlohmann::json::array();
  {
    const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
    rows.push_back(worker_row(options, "all_carried", Carried::kAll));
    rows.push_back(worker_row(options, "half_carried", Carried::kHalf));
  }
  for (nlohmann::json& row : dense_rows(options)) rows.push_back(std::move(row));
  return {{"bench", "worker"},          {"n", options.n},       {"density", options.density}, {"parts", options.parts},
          {"repeats", options.repeats}, {"seed", options.seed}, {"rows", std::move(rows)}};
}

}  // namespace millrace::bench
