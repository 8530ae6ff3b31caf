// A worker of the integration tests: its gradients are a function of (worker, step). Its updates show the contributors.
//
//     test_worker SHARDS WORKER WORKERS STEPS [KEY=VALUE ...]
//
// SHARDS: addresses with commas between. At step t every worker w pushes 2^w * level(t, i) at every index i. Each entry
// of a sum over workers is thus level(t, i) times the set of its contributors as a bit mask. It prints a line for each
// thing it does:
//     - log LINE
//     - joined
//     - begins STEP
//     - pushed STEP
//     - saved
//     - update STEP BEGIN MASK CONTRIBUTORS
//     - weights HASH
//     - finished
//     - error CODE: SENTENCE
// It exits with 0 when finished, with 3 after an error of the job. Keys and values:
//
// - job=NAME dimension=N dead_after_ms=N staleness=N parts=N seed=N save=PATH connect_timeout_ms=N start_timeout_ms=N
// - codec=bitmap+qsgd8
// - hold_at=STEP: after pushing that step, prints "holding" and waits for SIGUSR1
// - weights=1: gives its weights to connect(): it may join a job that runs, and rejoins. It trains from the job's
//   step on to STEPS, and prints "begins STEP" where that is not 0
// - quiet_from=STEP: prints no pushes and updates from that step on, for a test that does not read to the end
// - state=PATH: takes the place of an earlier process of this worker, with that one's saved state, if it exists. With
//   save_every=N it saves its own state every N pushes and prints "saved"
// - begin=VALUE: every weight's first value; initial=own|first
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/millrace.h"

namespace {

struct Settings {
  millrace::JobConfig job;
  millrace::WorkerConfig me;
  uint32_t staleness = 0;
  uint64_t dimension = 20'000;
  uint64_t steps = 0;
  uint64_t hold_at = UINT64_MAX;
  uint64_t quiet_from = UINT64_MAX;
  bool gives_weights = false;
  uint32_t save_every = 0;
  float begin = 0;
};

/// Small and never zero, so that no entry of a sum vanishes.
uint64_t level(uint64_t step, uint64_t index) { return 1 + (step * 7 + index * 3) % 5; }

/// Returns the codec that the tests name so; empty: none of them does.
std::optional<millrace::Codec> codec_of(const std::string& text) {
  if (text != "bitmap+qsgd8") return std::nullopt;
  return millrace::Codec(millrace::index::bitmap, millrace::value::qsgd(8));
}

bool apply_setting(Settings& settings, const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return false;
  const std::string key = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
  const auto small = static_cast<uint32_t>(number);
  const std::map<std::string, uint32_t*> numbers = {{"parts", &settings.job.layout.parts_per_shard},
                                                    {"staleness", &settings.staleness},
                                                    {"save_every", &settings.save_every},
                                                    {"workers_min", &settings.job.workers_min}};
  const std::map<std::string, std::chrono::milliseconds*> times = {
      {"dead_after_ms", &settings.job.liveness.dead_after}, {"heartbeat_ms", &settings.job.liveness.heartbeat},
      {"connect_timeout_ms", &settings.me.connect_timeout}, {"start_timeout_ms", &settings.me.start_timeout},
      {"shard_silence_ms", &settings.me.shard_silence},     {"resend_after_ms", &settings.me.resend_after}};
  if (const auto found = numbers.find(key); found != numbers.end()) {
    *found->second = small;
  } else if (const auto time = times.find(key); time != times.end()) {
    *time->second = std::chrono::milliseconds(small);
  } else if (key == "job") {
    settings.job.name = value;
  } else if (key == "dimension") {
    settings.dimension = number;
  } else if (key == "save") {
    settings.me.save_path = value;
  } else if (key == "codec" && codec_of(value)) {
    settings.job.codec_up = settings.job.codec_down = *codec_of(value);
  } else if (key == "hold_at") {
    settings.hold_at = number;
  } else if (key == "quiet_from") {
    settings.quiet_from = number;
  } else if (key == "weights") {
    settings.gives_weights = number == 1;
  } else if (key == "state") {
    settings.me.load_path = settings.me.save_path = value;
    settings.me.returns = settings.gives_weights = true;
  } else if (key == "begin") {
    settings.begin = static_cast<float>(number);
  } else if (key == "initial" && (value == "own" || value == "first")) {
    settings.job.updates.initial_weights =
        value == "own" ? millrace::InitialWeights::kOwn : millrace::InitialWeights::kFirst;
  } else {
    return false;
  }
  return true;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    pieces.push_back(text.substr(from, comma - from));
    from = comma + 1;
  }
  return pieces;
}

/// Prints the piece's contributors, or that its entries disagree about them: then a contribution was counted in part.
void print_piece(uint64_t step, const millrace::UpdatePiece& piece) {
  uint64_t mask = 0;
  bool agree = true;
  for (size_t i = 0; i < piece.values.size(); ++i) {
    const uint64_t index = piece.begin + (piece.dense ? i : piece.indices[i]);
    const double share = static_cast<double>(piece.values[i]) / static_cast<double>(level(step, index));
    if (i == 0) mask = static_cast<uint64_t>(share);
    agree = agree && share == static_cast<double>(mask);
  }
  agree = agree && piece.values.size() == piece.dimension &&
          static_cast<uint32_t>(std::popcount(mask)) == piece.contributors;
  std::printf("update %llu %llu %llu %u%s\n", static_cast<unsigned long long>(step),
              static_cast<unsigned long long>(piece.begin), static_cast<unsigned long long>(mask), piece.contributors,
              agree ? "" : " BROKEN");
}

uint64_t fnv(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3u;
  return hash;
}

void hold() {
  std::printf("holding\n");
  sigset_t go_on;
  sigemptyset(&go_on);
  sigaddset(&go_on, SIGUSR1);
  int signal = 0;
  sigwait(&go_on, &signal);
}

class Training {
 public:
  explicit Training(const Settings& settings)
      : settings_(settings), weights_(settings.dimension, settings.begin), gradient_(settings.dimension) {
    millrace::TensorOptions tensor;
    tensor.name = "w";
    tensor.dimension = settings.dimension;
    if (settings.gives_weights) {
      tensor.weights = millrace::Weights(weights_, -1);
    }
    session_ = millrace::Session::connect(settings.job, settings.me, {tensor});
    std::printf("joined\n");
    if (!settings.gives_weights) session_->attach_weights(0, weights_, -1.0f, millrace::ApplyWhen::kOnAwait);
  }

  void run() {
    step_ = session_->steps_applied(0);
    if (step_ > 0) std::printf("begins %llu\n", static_cast<unsigned long long>(step_));
    while (step_ < settings_.steps) {
      push();
      while (pushed_.size() > settings_.staleness) await();
    }
    while (!pushed_.empty()) await();
    session_->finish();
    std::printf("weights %016llx\n", static_cast<unsigned long long>(fnv(weights_)));
    std::printf("finished\n");
  }

 private:
  void push() {
    const double own = std::ldexp(1.0, static_cast<int>(settings_.me.worker));
    for (uint64_t i = 0; i < gradient_.size(); ++i)
      gradient_[i] = static_cast<float>(own * static_cast<double>(level(step_, i)));
    const uint64_t number = session_->push(0, gradient_);
    if (step_ < settings_.quiet_from) std::printf("pushed %llu\n", static_cast<unsigned long long>(step_));
    pushed_.emplace_back(number, step_);
    if (settings_.save_every != 0 && (number + 1) % settings_.save_every == 0) {
      session_->save(settings_.me.save_path);
      std::printf("saved\n");
    }
    if (step_ == settings_.hold_at) hold();
    ++step_;
  }

  void await() {
    const auto [number, step] = pushed_.front();
    pushed_.pop_front();
    const auto update = session_->await(0, number);
    if (step < settings_.quiet_from) {
      for (const auto& piece : update.pieces) print_piece(step, piece);
    }
    // Where the others continued without it, it does not make up for the steps that it missed.
    step_ = std::max(step_, session_->steps_applied(0));
  }

  const Settings& settings_;
  std::vector<float> weights_;
  std::vector<float> gradient_;
  std::unique_ptr<millrace::Session> session_;
  std::deque<std::pair<uint64_t, uint64_t>> pushed_;  ///< (push, step), not awaited yet
  uint64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 5) return 2;
  Settings settings;
  settings.job.name = "integration";
  settings.me.shards = split(argv[1]);
  settings.me.worker = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  settings.job.workers = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  settings.steps = std::strtoull(argv[4], nullptr, 10);
  settings.job.select = millrace::Selection::all();
  // No living worker is taken for dead or unreachable, however busy the machine is. A test that waits for a death sets
  // a lower limit.
  settings.job.liveness.dead_after = std::chrono::minutes(1);
  settings.me.connect_timeout = std::chrono::minutes(1);
  settings.job.liveness.heartbeat = std::chrono::milliseconds(100);
  settings.me.log = [](millrace::LogLevel, std::string_view line) {
    std::printf("log %.*s\n", static_cast<int>(line.size()), line.data());
  };
  // Blocked before the session's threads start, so that only sigwait() takes it.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  for (int i = 5; i < argc; ++i) {
    if (!apply_setting(settings, argv[i])) return 2;
  }
  settings.job.consistency = millrace::Synchronous{settings.staleness};
  try {
    Training(settings).run();
  } catch (const millrace::JobError& error) {
    std::printf("error %s: %s\n", std::string(millrace::job_error_name(error.code())).c_str(), error.what());
    return 3;
  }
  return 0;
}
