#include "tests/models/rounds/state.h"

#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace millrace::model {

namespace {

constexpr int kGradientsOfWorker = kLives * kSteps;

/// New names for the workers and the parts: worker w becomes worker[w].
struct Renaming {
  std::array<int, kWorkers> worker;
  std::array<int, kParts> part;
};

std::vector<Renaming> all_renamings() {
  std::vector<Renaming> all;
  Renaming one{};
  std::iota(one.worker.begin(), one.worker.end(), 0);
  do {
    std::iota(one.part.begin(), one.part.end(), 0);
    do all.push_back(one);
    while (std::next_permutation(one.part.begin(), one.part.end()));
  } while (std::next_permutation(one.worker.begin(), one.worker.end()));
  return all;
}

Mass renamed(Mass mass, const Renaming& to) {
  constexpr Mass kBlock = (Mass{1} << kGradientsOfWorker) - 1;
  Mass result = 0;
  for (int w = 0; w < kWorkers; ++w)
    result |= (mass >> (w * kGradientsOfWorker) & kBlock) << (to.worker[w] * kGradientsOfWorker);
  return result;
}

Update renamed(const Update& update, const Renaming& to) {
  if (!update.decided) return update;
  Update result = update;
  result.mass = renamed(static_cast<Mass>(update.mass), to);
  result.incarnations = 0;
  for (int w = 0; w < kWorkers; ++w) result.count(to.worker[w], update.life_of(w));
  return result;
}

void rename(Log& log, const Renaming& to) {
  for (Update& update : log) update = renamed(update, to);
}

Contribution renamed(Contribution contribution, const Renaming& to) {
  if (contribution.incarnation != 0) contribution.mass = renamed(static_cast<Mass>(contribution.mass), to);
  return contribution;
}

uint8_t renamed_bits(uint8_t bits, std::span<const int> to) {
  uint8_t result = 0;
  for (size_t index = 0; index < to.size(); ++index)
    if (bits >> index & 1) result |= static_cast<uint8_t>(1 << to[index]);
  return result;
}

template <typename Array, size_t kSize>
Array moved(const Array& from, const std::array<int, kSize>& to) {
  Array result = from;
  for (size_t index = 0; index < kSize; ++index) result[to[index]] = from[index];
  return result;
}

Worker renamed(const Worker& from, const Renaming& to) {
  Worker result = from;
  for (WorkerPart& mine : result.part) {
    rename(mine.weights, to);
    mine.residual = renamed(mine.residual, to);
    mine.entered = renamed(mine.entered, to);
    mine.ledger = renamed(mine.ledger, to);
    for (Mass& sent : mine.outstanding) sent = renamed(sent, to);
  }
  for (SavedPart& saved : result.saved) {
    rename(saved.weights, to);
    saved.residual = renamed(saved.residual, to);
  }
  result.part = moved(result.part, to.part);
  result.saved = moved(result.saved, to.part);
  result.settled = renamed_bits(result.settled, to.part);
  return result;
}

Shard renamed(const Shard& from, const Renaming& to) {
  Shard result = from;
  if (!from.up) return result;
  rename(result.log, to);
  rename(result.weights, to);
  for (auto& step : result.open) {
    for (Contribution& open : step) open = renamed(open, to);
    step = moved(step, to.worker);
  }
  result.answered = renamed_bits(from.answered, to.worker);
  result.synced_answers = renamed_bits(from.synced_answers, to.worker);
  result.member = moved(from.member, to.worker);
  result.first = moved(from.first, to.worker);
  result.acked = moved(from.acked, to.worker);
  return result;
}

uint64_t renamed_lives(uint64_t incarnations, const Renaming& to) {
  Update before, after;
  before.incarnations = incarnations;
  for (int w = 0; w < kWorkers; ++w) after.count(to.worker[w], before.life_of(w));
  return after.incarnations;
}

void rename_reliance(State& state, const Renaming& to) {
  for (int epoch = 1; epoch <= state.table.epoch; ++epoch) {
    for (Told& told : state.told[epoch]) {
      rename(told.of, to);
      for (Lives& by : told.by) by = static_cast<Lives>(renamed_lives(by, to));
    }
    state.told[epoch] = moved(state.told[epoch], to.part);
  }
  for (auto& of_part : state.relied) {
    for (Reliance& one : of_part) one = {renamed(one.update, to), renamed_lives(one.by, to)};
  }
  state.relied = moved(state.relied, to.part);
}

void rename_messages(State& state, const Renaming& to) {
  for (int epoch = 1; epoch <= state.table.epoch; ++epoch) {
    for (int part = 0; part < kParts; ++part) {
      rename(state.updates[epoch][part], to);
      auto& sent = state.contributions[epoch][part];
      for (auto& of_worker : sent)
        for (Contribution& one : of_worker) one = renamed(one, to);
      sent = moved(sent, to.worker);
    }
    state.contributions[epoch] = moved(state.contributions[epoch], to.part);
    state.updates[epoch] = moved(state.updates[epoch], to.part);
  }
  for (auto& of_worker : state.snapshot) {
    for (Snapshot& snapshot : of_worker)
      if (snapshot.view != 0) rename(snapshot.weights, to);
    of_worker = moved(of_worker, to.part);
  }
  state.snapshot = moved(state.snapshot, to.worker);
}

State renamed(const State& from, const Renaming& to) {
  State result = from;
  for (Worker& worker : result.worker) worker = renamed(worker, to);
  result.worker = moved(result.worker, to.worker);
  for (auto& of_part : result.shard)
    for (Shard& shard : of_part) shard = renamed(shard, to);
  result.shard = moved(result.shard, to.part);
  rename_messages(result, to);
  rename_reliance(result, to);
  for (StoreSave& saved : result.store) rename(saved.weights, to);
  result.store = moved(result.store, to.part);
  Table& table = result.table;
  table.member = moved(table.member, to.worker);
  table.first = moved(table.first, to.worker);
  table.shard_incarnation = moved(table.shard_incarnation, to.part);
  table.branch = moved(table.branch, to.part);
  table.activated = moved(table.activated, to.part);
  table.parent = moved(table.parent, to.part);
  return result;
}

// Two 64-bit lanes, mixed by multiplication; words of zeros, most of a state, cost nothing.
uint64_t hash_of(const State& state) {
  constexpr size_t kWords = sizeof(State) / 8;
  std::array<uint64_t, kWords> words;
  std::memcpy(words.data(), &state, kWords * 8);
  uint64_t a = 0x9E3779B97F4A7C15, b = 0xC2B2AE3D27D4EB4F;
  for (size_t index = 0; index < kWords; ++index) {
    if (words[index] == 0) continue;
    const auto product =
        static_cast<unsigned __int128>(words[index] ^ a ^ (index * 0xD6E8FEB86659FD93)) * 0xA0761D6478BD642F;
    a = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ b;
    b = b * 5 + a + index;
  }
  a ^= b;
  a ^= a >> 32;
  a *= 0xD6E8FEB86659FD93;
  a ^= a >> 32;
  return a != 0 ? a : 1;
}

}  // namespace

State initial_state() {
  State state;
  std::memset(static_cast<void*>(&state), 0, sizeof state);  // padding too: states are compared by their bytes
  state.table.epoch = 1;
  state.table.member.fill(1);
  state.table.shard_incarnation.fill(1);
  for (Worker& worker : state.worker) {
    worker.standing = Standing::kSynced;
    worker.incarnation = worker.view = 1;
  }
  for (auto& of_part : state.shard) {
    Shard& shard = of_part[0];
    shard.up = shard.view = shard.active = 1;
    shard.member.fill(1);
  }
  return state;
}

uint64_t canonical_hash(const State& state) {
  static const std::vector<Renaming> renamings = all_renamings();
  uint64_t least = hash_of(state);
  for (size_t index = 1; index < renamings.size(); ++index)
    least = std::min(least, hash_of(renamed(state, renamings[index])));
  return least;
}

}  // namespace millrace::model
