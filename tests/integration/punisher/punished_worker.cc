// A worker whose pushes stay distinguishable. Push p of the process with serial s puts 1.0 into one index of its own, s
// * CHUNK + p, and into no other. A weight therefore counts the updates that carried that push.
//
//     punished_worker SHARDS WORKER WORKERS SERIAL [KEY=VALUE ...]
//
// It pushes until the file `control` holds a step's number and the weights have that many steps. Then it writes its
// weights and leaves. state=PATH is loaded if it exists, and saved every `save_every` pushes. Lines of its output:
//
//     - holds N PUSHED INDEX*: the retained indices of a loaded state, and the number of this worker's earlier pushes
//     - joined STEPS: connect() has returned
//     - push P: printed before the push: no later one can be in any place
//     - at STEPS DIGEST: all parts have this number of steps; the digest of the weights
//     - replaced: the weights are another worker's now
//     - saved PUSHES: the state on the disk has this number of pushes of this process
//     - lost SAVE_TOO_OLD OFF_LOG CUT UNRETURNABLE VOID: the losses counted up to now
//     - kept INDEX*: the residual at the end
//     - finished STEPS PUSHES
//     - error CODE: SENTENCE: exit code 3
//
// job=NAME dimension=N chunk=N mode=M staleness=N quorum=N deadline_ms=N select=S reselect=S seed=N compute_ms=N
//
// state=PATH
//
// path=P switch_address=A switch_job=N switch_key_file=PATH grid=G
//
// save_every=N control=PATH dump=PATH dead_after_ms=N heartbeat_ms=N timeout_ms=N
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "millrace/millrace.h"
#include "worker/config/job_config.h"
#include "worker/config/option_table.h"
#include "worker/core/rejoin/saved_state.h"
#include "worker/session/state_file.h"

namespace {

struct Settings {
  millrace::worker::JobDraft draft;  ///< of the job: complete when all settings are read
  millrace::JobConfig job;
  millrace::WorkerConfig me;
  uint64_t dimension = uint64_t{1} << 22;
  uint64_t chunk = 16'384;  ///< pushes of one process that have an index
  uint64_t serial = 0;
  uint32_t compute_ms = 5;
  uint32_t save_every = 50;
  std::string control;
  std::string dump;
};

bool apply_setting(Settings& settings, const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return false;
  const std::string key = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  millrace::worker::JobDraft& draft = settings.draft;
  const auto number = static_cast<uint32_t>(std::strtoull(value.c_str(), nullptr, 10));
  const std::map<std::string, uint32_t*> numbers = {{"compute_ms", &settings.compute_ms},
                                                    {"save_every", &settings.save_every}};
  const std::map<std::string, std::string*> texts = {{"state", &settings.me.load_path},
                                                     {"switch_key_file", &settings.me.switch_key_file},
                                                     {"control", &settings.control},
                                                     {"dump", &settings.dump}};
  // Of the job, by the names of its options.
  const std::map<std::string, std::pair<std::string, std::string>> options = {
      {"job", {"name", ""}},
      {"mode", {"mode", ""}},
      {"staleness", {"staleness", ""}},
      {"quorum", {"quorum", ""}},
      {"deadline_ms", {"deadline", "ms"}},
      {"dead_after_ms", {"dead_after", "ms"}},
      {"heartbeat_ms", {"heartbeat", "ms"}},
      {"parts", {"parts_per_shard", ""}},
      {"select", {"select", ""}},
      {"reselect", {"reselect", ""}},
      {"initial", {"initial_weights", ""}},
      {"path", {"path", ""}},
      {"switch_address", {"switch_address", ""}},
      {"switch_job", {"switch_job", ""}},
      {"grid", {"grid", ""}},
      {"seed", {"seed", ""}}};
  if (const auto found = numbers.find(key); found != numbers.end()) {
    *found->second = number;
  } else if (const auto text = texts.find(key); text != texts.end()) {
    *text->second = value;
  } else if (const auto option = options.find(key); option != options.end()) {
    auto table = millrace::worker::options_of(draft);
    return millrace::worker::option_named(table, option->second.first).set(value + option->second.second).has_value();
  } else if (key == "dimension" || key == "chunk") {
    (key == "chunk" ? settings.chunk : settings.dimension) = std::strtoull(value.c_str(), nullptr, 10);
  } else if (key == "timeout_ms") {
    settings.me.connect_timeout = settings.me.start_timeout = settings.me.shard_silence =
        std::chrono::milliseconds(number);
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

unsigned long long shown(uint64_t number) { return number; }

void print_entries(const char* word, std::span<const uint32_t> indices, std::span<const float> values) {
  std::printf("%s", word);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 1.0f) {
      std::printf(" %u", indices[i]);
    } else if (values[i] != 0) {
      std::printf(" %u=%g", indices[i], static_cast<double>(values[i]));
    }
  }
  std::printf("\n");
}

/// Prints the contents of the file as lines that the punisher can parse. Prints nothing for a missing file.
void print_state(const std::string& path) {
  if (path.empty() || !std::filesystem::exists(path)) return;
  const auto bytes = millrace::worker::read_file(path);
  const auto state = bytes ? millrace::worker::decode_saved_state(*bytes) : std::unexpected(bytes.error());
  if (!state) {
    std::printf("broken %s\n", state.error().message.c_str());
    return;
  }
  const millrace::Stream& residual = state->tensors[0].residual;
  std::vector<uint32_t> indices(residual.indices.begin(), residual.indices.end());
  if (residual.dense) {
    for (uint32_t i = 0; i < residual.values.size(); ++i) indices.push_back(i);
  }
  const std::string word =
      "holds " + std::to_string(state->parts[0].n) + " " + std::to_string(state->tensors[0].steps_pushed);
  print_entries(word.c_str(), indices, residual.values);
}

uint64_t mix(uint64_t index) {
  index = (index + 1) * 0x9E3779B97F4A7C15u;
  return index ^ (index >> 29);
}

class Punished {
 public:
  explicit Punished(const Settings& settings) : settings_(settings), weights_(settings.dimension, 0.0f) {}

  void run() {
    millrace::TensorOptions tensor;
    tensor.name = "w";
    tensor.dimension = settings_.dimension;
    tensor.weights = millrace::Weights(weights_, 1);
    session_ = millrace::Session::connect(settings_.job, settings_.me, {tensor});
    std::printf("joined %llu\n", shown(session_->steps_applied(0)));
    while (session_->steps_applied(0) < end()) {
      push();
      while (in_flight() > settings_.draft.spec.staleness) await();
    }
    while (in_flight() > 0) await();
    const millrace::SparseEntries kept = session_->take_residual(0);
    print_entries("kept", kept.indices, kept.values);
    print_lost();
    session_->finish();
    dump();
    std::printf("finished %llu %llu\n", shown(session_->steps_applied(0)), shown(pushes_));
  }

 private:
  uint64_t in_flight() const { return pushes_ - awaited_; }

  void push() {
    ::poll(nullptr, 0, static_cast<int>(settings_.compute_ms));
    std::printf("push %llu\n", shown(pushes_));
    std::vector<uint32_t> index;
    std::vector<float> value;
    const uint64_t own = settings_.serial * settings_.chunk + pushes_;
    if (pushes_ < settings_.chunk && own < settings_.dimension) {
      index.push_back(static_cast<uint32_t>(own));
      value.push_back(1.0f);
    }
    session_->push_sparse(0, index, value);
    ++pushes_;
    if (settings_.me.save_path.empty() || settings_.save_every == 0 || pushes_ % settings_.save_every != 0) return;
    const uint64_t saved = pushes_;
    session_->save(settings_.me.save_path);
    std::printf("saved %llu\n", shown(saved));
    print_lost();
  }

  void await() {
    const millrace::TensorUpdate update = session_->await(0, awaited_++);
    if (update.replaced) std::printf("replaced\n");
    // What arrived for pushes up to the next one is in the weights already, and handed out later.
    if (update.replaced || awaited_ == 1) whole_until_ = pushes_ + 1;
    if (awaited_ <= whole_until_) {
      digest_ = whole_digest();
    } else {
      for (const millrace::UpdatePiece& piece : update.pieces) {
        for (size_t i = 0; i < piece.values.size(); ++i) {
          const uint64_t at = piece.begin + (piece.dense ? i : piece.indices[i]);
          digest_ += static_cast<uint64_t>(static_cast<int64_t>(piece.values[i])) * mix(at);
        }
      }
    }
    if (is_one_step(update)) std::printf("at %llu %016llx\n", shown(session_->steps_applied(0)), shown(digest_));
  }

  /// Every part took one step, the same one, with this push: then all have equally many. After a return some may be
  /// ahead.
  bool is_one_step(const millrace::TensorUpdate& update) const {
    uint64_t covered = 0;
    for (const millrace::UpdatePiece& piece : update.pieces) {
      covered += piece.dimension;
      if (piece.contributors == 0) return false;
    }
    return covered == settings_.dimension && awaited_ > whole_until_;
  }

  uint64_t whole_digest() const {
    uint64_t digest = 0;
    for (uint64_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] != 0) digest += static_cast<uint64_t>(static_cast<int64_t>(weights_[i])) * mix(i);
    }
    return digest;
  }

  void print_lost() {
    const millrace::Stats stats = session_->stats();
    std::printf("lost %.17g %.17g %.17g %.17g %llu\n", stats.lost_save_too_old, stats.lost_off_log, stats.lost_cut,
                stats.unreturnable, shown(stats.entries_void));
  }

  /// Returns UINT64_MAX while the control file has no end.
  uint64_t end() const {
    std::ifstream file(settings_.control);
    uint64_t steps = 0;
    return file >> steps ? steps : UINT64_MAX;
  }

  void dump() const {
    if (digest_ != whole_digest()) std::printf("broken the updates handed out are not those in the weights\n");
    std::ofstream file(settings_.dump);
    for (uint64_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] != 0) file << i << ' ' << weights_[i] << '\n';
    }
  }

  Settings settings_;
  std::vector<float> weights_;
  std::unique_ptr<millrace::Session> session_;
  uint64_t pushes_ = 0;
  uint64_t awaited_ = 0;
  uint64_t whole_until_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 5) return 2;
  Settings settings;
  settings.draft.spec.name = "punished";
  settings.draft.spec.workers = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  settings.me.shards = split(argv[1]);
  settings.me.worker = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  settings.serial = std::strtoull(argv[4], nullptr, 10);
  for (int i = 5; i < argc; ++i) {
    if (!apply_setting(settings, argv[i])) {
      std::fprintf(stderr, "unknown setting '%s'\n", argv[i]);
      return 2;
    }
  }
  const auto job = millrace::worker::config_of(settings.draft);
  if (!job) {
    std::fprintf(stderr, "%s\n", job.error().message.c_str());
    return 2;
  }
  settings.job = *job;
  settings.me.returns = true;
  settings.me.save_path = settings.me.load_path;
  settings.me.log = [](millrace::LogLevel, std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  print_state(settings.me.load_path);
  try {
    Punished(settings).run();
  } catch (const millrace::JobError& error) {
    const std::string_view name = millrace::job_error_name(error.code());
    std::printf("error %.*s: %s\n", static_cast<int>(name.size()), name.data(), error.what());
    return 3;
  }
  return 0;
}
