#include "tests/models/rounds/checker.h"

#include <fmt/format.h>

#include <cstring>

#include "tests/models/rounds/invariants.h"

namespace millrace::model {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// Hash -> number of the state: open addressing, linear probing.
class SeenStates {
 public:
  SeenStates() : keys_(1 << 16), numbers_(1 << 16) {}

  /// The state's number: `fresh` if it was not seen before.
  uint32_t number_of(uint64_t key, uint32_t fresh) {
    if ((count_ + 1) * 10 > keys_.size() * 7) grow();
    const size_t at = slot_of(key);
    if (keys_[at] == key) return numbers_[at];
    keys_[at] = key;
    numbers_[at] = fresh;
    ++count_;
    return fresh;
  }

 private:
  size_t slot_of(uint64_t key) const {
    size_t at = key & (keys_.size() - 1);
    while (keys_[at] != 0 && keys_[at] != key) at = (at + 1) & (keys_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<uint64_t> keys(keys_.size() * 2);
    std::vector<uint32_t> numbers(keys.size());
    keys.swap(keys_);
    numbers.swap(numbers_);
    for (size_t index = 0; index < keys.size(); ++index) {
      if (keys[index] == 0) continue;
      const size_t at = slot_of(keys[index]);
      keys_[at] = keys[index];
      numbers_[at] = numbers[index];
    }
  }

  std::vector<uint64_t> keys_;
  std::vector<uint32_t> numbers_;
  size_t count_ = 0;
};

/// States to look at next, without their words of zeros.
class Frontier {
 public:
  void add(const State& state, uint32_t number) {
    std::array<uint64_t, kWords> words;
    std::memcpy(words.data(), &state, sizeof state);
    numbers_.push_back(number);
    starts_.push_back(words_.size());
    const size_t mask_at = words_.size();
    words_.resize(mask_at + kMasks);
    for (size_t index = 0; index < kWords; ++index) {
      if (words[index] == 0) continue;
      words_[mask_at + index / 64] |= uint64_t{1} << (index % 64);
      words_.push_back(words[index]);
    }
  }

  void read(size_t index, State& state) const {
    std::array<uint64_t, kWords> words{};
    const uint64_t* mask = &words_[starts_[index]];
    const uint64_t* from = mask + kMasks;
    for (size_t word = 0; word < kWords; ++word)
      if (mask[word / 64] >> (word % 64) & 1) words[word] = *from++;
    std::memcpy(static_cast<void*>(&state), words.data(), sizeof state);
  }

  size_t size() const { return numbers_.size(); }
  uint32_t number(size_t index) const { return numbers_[index]; }
  void clear() {
    words_.clear();
    starts_.clear();
    numbers_.clear();
  }

 private:
  static constexpr size_t kWords = sizeof(State) / 8;
  static constexpr size_t kMasks = (kWords + 63) / 64;
  std::vector<uint64_t> words_;
  std::vector<uint64_t> starts_;
  std::vector<uint32_t> numbers_;
};

/// Which states lead to a completed job.
class Progress {
 public:
  void state(uint32_t number, bool complete, bool has_majority) {
    complete_.resize(std::max<size_t>(complete_.size(), number + 1));
    has_majority_.resize(complete_.size());
    complete_[number] = complete;
    has_majority_[number] = has_majority;
  }

  void edge(uint32_t from, uint32_t to, Kind kind) {
    if (kind == Kind::kFault) return;
    auto& edges = kind == Kind::kRestart ? restarts_ : moves_;
    edges.push_back({from, to});
  }

  /// A state from which the job cannot be completed, or kNone.
  uint32_t stuck() const {
    const std::vector<bool> alone = reaching(false);
    for (uint32_t state = 0; state < complete_.size(); ++state)
      if (has_majority_[state] && !alone[state]) return state;
    const std::vector<bool> restarted = reaching(true);
    for (uint32_t state = 0; state < complete_.size(); ++state)
      if (!restarted[state]) return state;
    return kNone;
  }

 private:
  struct Edge {
    uint32_t from, to;
  };

  std::vector<bool> reaching(bool with_restarts) const {
    const size_t count = complete_.size();
    std::vector<uint32_t> start(count + 1);
    const auto each = [&](auto&& visit) {
      for (const Edge& edge : moves_) visit(edge);
      for (size_t index = 0; with_restarts && index < restarts_.size(); ++index) visit(restarts_[index]);
    };
    each([&](const Edge& edge) { ++start[edge.to + 1]; });
    for (size_t index = 0; index < count; ++index) start[index + 1] += start[index];
    std::vector<uint32_t> sources(start[count]);
    std::vector<uint32_t> fill(start.begin(), start.end() - 1);
    each([&](const Edge& edge) { sources[fill[edge.to]++] = edge.from; });
    std::vector<bool> reached = complete_;
    std::vector<uint32_t> work;
    for (uint32_t state = 0; state < count; ++state)
      if (reached[state]) work.push_back(state);
    while (!work.empty()) {
      const uint32_t state = work.back();
      work.pop_back();
      for (uint32_t at = start[state]; at < start[state + 1]; ++at) {
        if (reached[sources[at]]) continue;
        reached[sources[at]] = true;
        work.push_back(sources[at]);
      }
    }
    return reached;
  }

  std::vector<bool> complete_, has_majority_;
  std::vector<Edge> moves_, restarts_;
};

bool has_majority(const State& state, const Config& config) {
  const auto alive = std::ranges::count_if(state.worker, [](const Worker& worker) { return up(worker); });
  return alive >= config.quorum && alive >= config.acks && 2 * alive > kWorkers;
}

State first_state(const Config& config) {
  State state = initial_state();
  for (auto& of_part : state.shard) of_part[0].has_weights = config.store;
  return state;
}

/// Nothing moves any more although it should: no move is left, and not because the model's own numbers are at their
/// end.
bool is_deadlock(const State& state, const Config& config) {
  if (is_complete(state, config) || !has_majority(state, config) || state.table.epoch + 2 >= kEpochs) return false;
  for (const Worker& worker : state.worker)
    if (worker.standing == Standing::kRemoved && worker.incarnation >= kLives) return false;
  if (state.table.branches + 1 >= kLineages) return false;
  return std::ranges::all_of(state.table.shard_incarnation,
                             [](uint8_t incarnation) { return incarnation < kShardLives; });
}

class Search {
 public:
  explicit Search(const Config& config) : config_(config), moves_(config) {}

  Report run() {
    const State initial = first_state(config_);
    seen_.number_of(canonical_hash(initial), 0);
    parents_.push_back({kNone, {}});
    frontier_.add(initial, 0);
    while (frontier_.size() > 0 && report_.verdict == Verdict::kClean) {
      for (size_t index = 0; index < frontier_.size() && report_.verdict == Verdict::kClean; ++index) {
        frontier_.read(index, state_);
        expand(frontier_.number(index));
      }
      std::swap(frontier_, next_);
      next_.clear();
      ++report_.depth;
    }
    report_.states = parents_.size();
    if (config_.progress && report_.verdict == Verdict::kClean) check_progress();
    return report_;
  }

 private:
  struct Parent {
    uint32_t state;
    Action action;
  };

  void expand(uint32_t number) {
    if (config_.progress) progress_.state(number, is_complete(state_, config_), has_majority(state_, config_));
    for (const Successor& next : moves_.from(state_)) {
      ++report_.transitions;
      report_.sentence = next.violation.empty() ? violation_of(next.state, config_) : next.violation;
      if (!report_.sentence.empty()) {
        report_.verdict = Verdict::kViolation;
        report_.trace = path_to(number);
        report_.trace.push_back(next.action);
        return;
      }
      const auto fresh = static_cast<uint32_t>(parents_.size());
      const uint32_t reached = seen_.number_of(canonical_hash(next.state), fresh);
      if (reached == fresh) {
        parents_.push_back({number, next.action});
        next_.add(next.state, fresh);
      }
      if (config_.progress) progress_.edge(number, reached, next.kind);
    }
    if (parents_.size() > config_.states_max) report_.verdict = Verdict::kUnfinished;
  }

  std::vector<Action> path_to(uint32_t number) const {
    std::vector<Action> path;
    for (; parents_[number].state != kNone; number = parents_[number].state) path.push_back(parents_[number].action);
    std::ranges::reverse(path);
    return path;
  }

  void check_progress() {
    const uint32_t stuck = progress_.stuck();
    if (stuck == kNone) return;
    report_.verdict = Verdict::kStuck;
    report_.sentence = "the job cannot be completed any more";
    report_.trace = path_to(stuck);
  }

  const Config& config_;
  Moves moves_;
  SeenStates seen_;
  Frontier frontier_, next_;
  std::vector<Parent> parents_;
  Progress progress_;
  State state_;
  Report report_;
};

}  // namespace

Report search(const Config& config) { return Search(config).run(); }

Report walk(const Config& config) {
  Report report;
  Moves moves(config);
  uint64_t random = config.seed * 0x9E3779B97F4A7C15 + 1;
  const auto draw = [&random](size_t below) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<size_t>(random % below);
  };
  for (uint64_t walk = 0; walk < config.walks; ++walk) {
    State state = first_state(config);
    report.trace.clear();
    for (uint64_t step = 0; step < config.walk_steps; ++step) {
      const std::vector<Successor>& all = moves.from(state);
      if (all.empty()) {
        if (!is_deadlock(state, config)) break;
        report.verdict = Verdict::kStuck;
        report.sentence = "nothing moves any more, and the job is not done";
        return report;
      }
      size_t chosen = draw(all.size());
      if (all[chosen].kind == Kind::kFault && draw(3) != 0) chosen = draw(all.size());
      ++report.transitions;
      report.trace.push_back(all[chosen].action);
      report.sentence = all[chosen].violation.empty() ? violation_of(all[chosen].state, config) : all[chosen].violation;
      if (!report.sentence.empty()) {
        report.verdict = Verdict::kViolation;
        return report;
      }
      const State after = all[chosen].state;
      state = after;
    }
    if (is_complete(state, config)) ++report.completed;
  }
  report.trace.clear();
  return report;
}

std::string text_of(const Config& config, const std::vector<Action>& trace) {
  std::string text;
  Moves moves(config);
  State state = first_state(config);
  int line = 0;
  for (const Action& action : trace) {
    const auto& all = moves.from(state);
    const auto found = std::ranges::find_if(all, [&](const Successor& next) { return next.action == action; });
    if (found == all.end()) return text + "  (the trace cannot be followed)\n";
    text += fmt::format("  {:3}. {}\n", ++line, describe(state, found->state, action));
    const State after = found->state;
    state = after;
  }
  return text;
}

}  // namespace millrace::model
