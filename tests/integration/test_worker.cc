// A worker of the integration tests: its gradients are a function of (worker, step), and its updates show who was counted.
//
//     test_worker SHARDS WORKER WORKERS STEPS [KEY=VALUE ...]
//
// SHARDS: addresses with commas between. Every worker w pushes, at step t, 2^w * level(t, i) at every index i, so
// that each entry of a
// sum over workers is level(t, i) times the set of its contributors as a bit mask. It prints a line for each thing it does:
//     log LINE | joined | pushed STEP | update STEP BEGIN MASK CONTRIBUTORS | weights HASH | finished | error CODE: SENTENCE
// and exits 0 when finished, 3 after an error of the job.
//
// job=NAME dimension=N dead_after_ms=N staleness=N parts=N seed=N save=PATH connect_timeout_ms=N start_timeout_ms=N codec=TEXT
// hold_at=STEP   after pushing that step: prints "holding" and waits for SIGUSR1
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "millrace/millrace.h"

namespace {

struct Settings {
  millrace::JobOptions job;
  uint64_t dimension = 20'000;
  uint64_t steps = 0;
  uint64_t hold_at = UINT64_MAX;
};

/// Small and never zero, so that no entry of a sum vanishes.
uint64_t level(uint64_t step, uint64_t index) { return 1 + (step * 7 + index * 3) % 5; }

bool apply_setting(Settings& settings, const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return false;
  const std::string key = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
  const auto small = static_cast<uint32_t>(number);
  const std::map<std::string, uint32_t*> numbers = {{"dead_after_ms", &settings.job.dead_after_ms},
                                                    {"heartbeat_ms", &settings.job.heartbeat_ms},
                                                    {"staleness", &settings.job.staleness},
                                                    {"parts", &settings.job.parts_per_shard},
                                                    {"connect_timeout_ms", &settings.job.connect_timeout_ms},
                                                    {"start_timeout_ms", &settings.job.start_timeout_ms},
                                                    {"shard_silence_ms", &settings.job.shard_silence_ms},
                                                    {"resend_after_ms", &settings.job.resend_after_ms},
                                                    {"workers_min", &settings.job.workers_min}};
  if (const auto found = numbers.find(key); found != numbers.end()) {
    *found->second = small;
  } else if (key == "job") {
    settings.job.name = value;
  } else if (key == "dimension") {
    settings.dimension = number;
  } else if (key == "save") {
    settings.job.save_path = value;
  } else if (key == "codec") {
    settings.job.codec_up = settings.job.codec_down = value;
  } else if (key == "hold_at") {
    settings.hold_at = number;
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

void train(const Settings& settings) {
  millrace::TensorOptions tensor;
  tensor.name = "w";
  tensor.dimension = settings.dimension;
  auto session = millrace::Session::connect(settings.job, {tensor});
  std::printf("joined\n");
  std::vector<float> weights(settings.dimension, 0.0f);
  session->attach_weights(0, weights, -1.0f, millrace::ApplyWhen::kOnAwait);
  std::vector<float> gradient(settings.dimension);
  const double own = std::ldexp(1.0, static_cast<int>(settings.job.worker));
  for (uint64_t step = 0; step < settings.steps; ++step) {
    for (uint64_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<float>(own * static_cast<double>(level(step, i)));
    session->push(0, gradient);
    std::printf("pushed %llu\n", static_cast<unsigned long long>(step));
    if (step == settings.hold_at) {
      std::printf("holding\n");
      sigset_t go_on;
      sigemptyset(&go_on);
      sigaddset(&go_on, SIGUSR1);
      int signal = 0;
      sigwait(&go_on, &signal);
    }
    if (step < settings.job.staleness) continue;
    const uint64_t due = step - settings.job.staleness;
    for (const auto& piece : session->await(0, due).pieces) print_piece(due, piece);
  }
  const uint64_t awaited = settings.steps > settings.job.staleness ? settings.steps - settings.job.staleness : 0;
  for (uint64_t step = awaited; step < settings.steps; ++step) {
    for (const auto& piece : session->await(0, step).pieces) print_piece(step, piece);
  }
  session->finish();
  std::printf("weights %016llx\n", static_cast<unsigned long long>(fnv(weights)));
  std::printf("finished\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 5) return 2;
  Settings settings;
  settings.job.name = "integration";
  settings.job.shards = split(argv[1]);
  settings.job.worker = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  settings.job.workers = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  settings.steps = std::strtoull(argv[4], nullptr, 10);
  settings.job.select = "none";
  // Nobody who lives is taken for dead or unreachable, however busy the machine is; who waits for a death sets it lower.
  settings.job.dead_after_ms = 60'000;
  settings.job.connect_timeout_ms = 60'000;
  settings.job.heartbeat_ms = 100;
  settings.job.log = [](millrace::LogLevel, std::string_view line) {
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
  try {
    train(settings);
  } catch (const millrace::JobError& error) {
    std::printf("error %s: %s\n", std::string(millrace::job_error_name(error.code())).c_str(), error.what());
    return 3;
  }
  return 0;
}
