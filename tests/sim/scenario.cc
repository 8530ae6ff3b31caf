#include "tests/sim/scenario.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "protocol/job/enum_words.h"

namespace millrace::testing {
namespace {

using Kind = SimFault::Kind;

bool chance(RandomSequence& random, double probability) { return random.next_unit() < probability; }
uint64_t between(RandomSequence& random, uint64_t low, uint64_t high) {
  return low + random.next_below(high - low + 1);
}

template <typename T>
T one_of(RandomSequence& random, std::initializer_list<T> values) {
  return *(values.begin() + random.next_below(values.size()));
}

CodecSpec draw_codec(RandomSequence& random, double lossy_values) {
  CodecSpec codec;
  codec.index = one_of(random, {IndexCodecId::kRaw, IndexCodecId::kBitmap, IndexCodecId::kGap, IndexCodecId::kGap,
                                IndexCodecId::kBloom});
  codec.bloom_false_positive_rate = one_of(random, {0.001, 0.05, 0.3});
  if (!chance(random, lossy_values)) return codec;
  codec.value = ValueCodecId::kQsgd;
  codec.qsgd_bits = one_of<uint32_t>(random, {2, 2, 4, 8});
  codec.bucket_size = one_of<uint32_t>(random, {16, 128, 512});
  codec.qsgd_scale_max = chance(random, 0.8);
  return codec;
}

/// Of QSGD's two scales and 2 bits no error may be fed back. 3LC without sparsity has the same values, and may.
void keep_contraction(CodecSpec& codec) {
  if (codec.value != ValueCodecId::kQsgd || codec.qsgd_bits != 2 || !codec.qsgd_scale_max) return;
  codec.value = codec_from_text("gap+three_lc")->value;
  codec.sparsity_multiplier = 1;
}

SelectionSpec draw_selection(RandomSequence& random) {
  SelectionSpec select;
  select.selection = one_of(random, {SelectionId::kNone, SelectionId::kTopK, SelectionId::kTopK,
                                     SelectionId::kThresholdReuse, SelectionId::kBucketTopK});
  if (select.selection == SelectionId::kNone) return select;
  select.density = one_of(random, {0.001, 0.01, 0.1, 0.5});
  if (select.selection == SelectionId::kThresholdReuse) select.period = one_of<uint32_t>(random, {1, 3, 8});
  if (select.selection == SelectionId::kBucketTopK) select.bucket_size = one_of<uint32_t>(random, {32, 512});
  if (select.selection == SelectionId::kTopK && chance(random, 0.2)) {
    select.density = 0;
    select.k = between(random, 1, 20);
  }
  return select;
}

protocol::ReselectSpec draw_reselect(RandomSequence& random) {
  protocol::ReselectSpec reselect;
  if (chance(random, 0.5)) return reselect;
  reselect.reselect = protocol::Reselect::kTopK;
  reselect.density = one_of(random, {0.001, 0.01, 0.1});
  reselect.threshold_period = one_of<uint32_t>(random, {1, 1, 2, 4});
  return reselect;
}

std::vector<protocol::TensorSpec> draw_tensors(RandomSequence& random, uint32_t shards) {
  std::vector<protocol::TensorSpec> tensors(between(random, 1, 3));
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "t" + std::to_string(i);
    tensors[i].dimension = chance(random, 0.3) ? between(random, 1, 8) : between(random, 1, 300);
    tensors[i].priority = static_cast<int32_t>(between(random, 0, 1));
    if (chance(random, 0.2)) tensors[i].select = draw_selection(random);
  }
  // From 4,096 indices a shard on, a bucket is split over the shards.
  if (shards > 1 && chance(random, 0.6)) tensors.back().dimension = shards * between(random, 4'096, 4'500);
  return tensors;
}

void draw_spec(RandomSequence& random, Scenario& scenario) {
  protocol::JobSpec& spec = scenario.spec;
  spec = {};
  spec.name = "sim";
  spec.tensors = draw_tensors(random, scenario.shards);
  spec.workers = static_cast<uint32_t>(between(random, 1, 5));
  spec.workers_min = chance(random, 0.8) ? 1 : std::max(1u, spec.workers / 2);
  spec.staleness = one_of<uint32_t>(random, {0, 0, 1, 2, 3});
  spec.combine = one_of(random, {protocol::Combine::kSum, protocol::Combine::kMean, protocol::Combine::kWeightedMean});
  spec.select = draw_selection(random);
  spec.reselect = draw_reselect(random);
  spec.codec_up = draw_codec(random, 0.4);
  spec.codec_down = draw_codec(random, 0.2);
  spec.codec_error = chance(random, 0.7) ? protocol::CodecError::kRetain : protocol::CodecError::kDrop;
  if (spec.codec_error == protocol::CodecError::kRetain) keep_contraction(spec.codec_up);
  spec.dead_after = std::chrono::milliseconds(one_of<uint32_t>(random, {1'000, 3'000}));
  spec.heartbeat = std::chrono::milliseconds(spec.dead_after.count() / 10);
  spec.exchange_timeout = std::chrono::milliseconds(one_of<uint32_t>(random, {20, 200}));
  spec.seed = random.next_u64();
  spec.parts_per_shard = one_of<uint32_t>(random, {0, 1, 2, 3});
  spec.fuse_below = one_of<uint64_t>(random, {1, 64, 16'384});
  spec.audit = chance(random, 0.3);
  spec.non_finite = chance(random, 0.5) ? protocol::NonFinite::kRefuse : protocol::NonFinite::kDropAndCount;
}

/// Draws the mode. Last, so that the other draws of a seed keep their values.
void draw_mode(RandomSequence& random, Scenario& scenario) {
  protocol::JobSpec& spec = scenario.spec;
  const bool slow_tasks = scenario.task_max > 100 * kNsPerMs;  // together they would take longer than a run may
  scenario.slow_worker =
      chance(random, 0.3) && !slow_tasks ? static_cast<uint32_t>(random.next_below(spec.workers)) : kNobody;
  const double which = random.next_unit();
  if (which < 0.4) return;
  spec.mode = which < 0.7 ? protocol::Mode::kBoundedStaleness : protocol::Mode::kPartial;
  spec.quorum = static_cast<uint32_t>(between(random, 0, spec.workers));
  spec.deadline = std::chrono::milliseconds(one_of<uint32_t>(random, {0, 0, 2, 50, 1'000}));
  if (spec.mode == protocol::Mode::kBoundedStaleness) {
    spec.staleness = std::max(spec.staleness, 1u);
  } else if (chance(random, 0.3)) {
    spec.participants = static_cast<uint32_t>(between(random, 1, spec.workers));
    spec.quorum = std::min(spec.quorum, spec.participants);
    spec.staleness = 0;
  }
  if (spec.quorum == 0 && spec.deadline.count() == 0 && spec.participants == 0) spec.quorum = 1;
}

/// Draws the workers that rejoin, and their states. Last of all, for the same reason.
void draw_returns(RandomSequence& random, Scenario& scenario) {
  scenario.has_weights = chance(random, 0.9);
  scenario.restarts = chance(random, 0.7);
  scenario.saves = one_of(random, {0.0, 0.05, 0.3, 1.0});
  scenario.forgets = one_of(random, {0.0, 0.2, 1.0});
  if (scenario.calm_from == 0 || !scenario.restarts || chance(random, 0.4)) return;
  const uint64_t count = between(random, 1, 4);
  for (uint64_t i = 0; i < count; ++i) {
    SimFault fault;
    fault.at = static_cast<TimeNs>(between(random, 0, static_cast<uint64_t>(scenario.calm_from)));
    fault.duration = static_cast<TimeNs>(
        between(random, kNsPerMs, 2 * static_cast<uint64_t>(scenario.spec.dead_after.count()) * kNsPerMs));
    fault.kind = one_of(random, {Kind::kKillWorker, Kind::kKillWorker, Kind::kRestartWorker, Kind::kKillShard,
                                 Kind::kKillShard, Kind::kKillShard, Kind::kKillAllWorkers});
    const bool shard = fault.kind == Kind::kKillShard;
    fault.a = static_cast<uint32_t>(random.next_below(shard ? scenario.shards : scenario.spec.workers));
    scenario.faults.push_back(fault);
  }
  std::ranges::stable_sort(scenario.faults, {}, &SimFault::at);
}

/// Jobs whose shards hold the weights too.
void draw_store(RandomSequence& random, Scenario& scenario) {
  if (!chance(random, 0.3)) return;
  const auto* optimizer = one_of(random, {"sgd:1", "momentum:0.5:0.5", "adagrad:0.5", "adam:0.125"});
  scenario.spec.store.optimizer = *optimizer_from_text(optimizer);
  scenario.store_saves = chance(random, 0.8);
  scenario.store_every = one_of<TimeNs>(random, {0, 20 * kNsPerMs, 500 * kNsPerMs});
  scenario.disk_max = one_of<TimeNs>(random, {0, kNsPerMs, 300 * kNsPerMs});
  scenario.disk_fails = one_of(random, {0.0, 0.0, 0.1, 1.0});
  scenario.has_weights = scenario.has_weights && chance(random, 0.5);
}

/// Draws updates that wait until several workers have them: without a store, and where that many workers live.
void draw_acks(RandomSequence& random, Scenario& scenario) {
  protocol::JobSpec& spec = scenario.spec;
  const bool held = chance(random, 0.35);
  if (!held || spec.workers < 2 || spec.store.optimizer.optimizer != Optimizer::kNone) return;
  spec.apply_after_acks = static_cast<uint32_t>(between(random, 2, spec.workers));
  // Mostly few, so that the job survives the faults.
  if (chance(random, 0.6)) spec.apply_after_acks = 2;
  spec.workers_min = std::max(spec.workers_min, spec.apply_after_acks);
}

/// Makes the job asynchronous: a step needs no other worker, nothing is re-selected, and no first steps are dense. In
/// this mode the latter two and a lossy codec down exclude each other.
void make_asynchronous(protocol::JobSpec& spec) {
  spec.mode = protocol::Mode::kAsynchronous;
  spec.quorum = spec.participants = 0;
  spec.deadline = {};
  spec.reselect = {};
  spec.history = false;
  const auto without_dense_steps = [](SelectionSpec& select) {
    select.warm_up = WarmUp::kNone;
    select.warm_up_steps = 0;
  };
  without_dense_steps(spec.select);
  for (protocol::TensorSpec& tensor : spec.tensors) {
    tensor.reselect.reset();
    if (tensor.select) without_dense_steps(*tensor.select);
  }
}

/// Draws codecs that are chosen as the job continues, by rates at which bytes, both, or time decide.
void draw_automatic(RandomSequence& random, Scenario& scenario) {
  scenario.link_rate = one_of(random, {0.0, 1e5, 1e8, 1e10, 1e14});
  for (CodecSpec* codec : {&scenario.spec.codec_up, &scenario.spec.codec_down}) {
    if (!chance(random, 0.2)) continue;
    codec->automatic = true;
    codec->index = CodecSpec{}.index;
  }
  MILLRACE_CHECK(protocol::validate(scenario.spec).has_value(), scenario.seed);
}

/// Indices coded against the updates that both sides have seen, where a job may ask for it.
void draw_history(RandomSequence& random, protocol::JobSpec& spec) {
  if (!chance(random, 0.4)) return;
  spec.history = true;
  spec.history = protocol::validate(spec).has_value();
}

/// Jobs that keep nothing back, most of them with a selection that draws; and random-k where the rest is kept.
void draw_drawing(RandomSequence& random, Scenario& scenario) {
  protocol::JobSpec spec = scenario.spec;
  const double which = random.next_unit();
  const double density = one_of(random, {0.01, 0.1, 0.5});
  if (which < 0.06) {
    scenario.spec.select = {.selection = SelectionId::kRandom, .density = density};
    return;
  }
  if (which > 0.2) return;
  spec.unbiased = true;
  spec.select = {.selection = one_of(random, {SelectionId::kNone, SelectionId::kRandom, SelectionId::kUniform,
                                              SelectionId::kGspar, SelectionId::kGspar, SelectionId::kGsparClosed}),
                 .density = density,
                 .variance = one_of(random, {0.1, 2.0, 30.0})};
  spec.reselect = {};
  spec.codec_error = protocol::CodecError::kDrop;
  if (!find_index_codec(spec.codec_up.index)->lossless()) spec.codec_up.index = IndexCodecId::kGap;
  for (protocol::TensorSpec& tensor : spec.tensors) {
    tensor.select.reset();
    tensor.reselect.reset();
  }
  if (!protocol::validate(spec)) return;
  scenario.spec = spec;
  // The drawn values are scaled by numbers that are no powers of two.
  scenario.exact = scenario.exact && spec.select.selection == SelectionId::kNone;
}

/// First steps that send everything, and tensors that are not compressed at all.
void draw_uncompressed(RandomSequence& random, protocol::JobSpec& spec) {
  protocol::JobSpec drawn = spec;
  const double which = random.next_unit();
  if (which > 0.3) return;
  if (which < 0.1) drawn.select = {.selection = SelectionId::kBySize, .density = 0.01};
  if (which > 0.05) {
    drawn.select.warm_up = WarmUp::kDense;
    drawn.select.warm_up_steps = static_cast<uint32_t>(between(random, 1, 6));
  }
  if (protocol::validate(drawn)) spec = drawn;
}

void draw_clocks(RandomSequence& random, Scenario& scenario) {
  if (chance(random, 0.6)) return;
  scenario.own_clocks = true;
  scenario.clock_drift_ppm = one_of<uint32_t>(random, {0, 200, 20'000, 100'000});
}

/// Quantizers of more than two levels divide: their values leave the grid.
bool on_grid(const CodecSpec& codec) {
  if (codec.value == ValueCodecId::kQsgd) return codec.qsgd_bits == 2 && codec.qsgd_scale_max;
  return true;  // raw; 3LC's values are the largest magnitude, or 0
}

void draw_network(RandomSequence& random, Scenario& scenario) {
  SimLinkFaults& link = scenario.link;
  link.latency_max = one_of<TimeNs>(random, {60 * kNsPerUs, kNsPerMs, 20 * kNsPerMs});
  link.in_order = chance(random, 0.6);
  if (chance(random, 0.5)) {
    link.slow = 0.05;
    link.slow_max = 300 * kNsPerMs;
  }
  link.loss = one_of(random, {0.0, 0.01, 0.1, 0.2});
  link.duplication = one_of(random, {0.0, 0.02, 0.2});
  link.corruption = chance(random, 0.15) ? 0.05 : 0.0;
}

SimFault draw_fault(RandomSequence& random, const Scenario& scenario) {
  const uint32_t workers = scenario.spec.workers;
  const uint32_t nodes = scenario.shards + workers;
  const TimeNs dead_after = scenario.spec.dead_after.count() * kNsPerMs;
  SimFault fault;
  fault.at = static_cast<TimeNs>(between(random, 0, static_cast<uint64_t>(scenario.calm_from)));
  fault.duration = static_cast<TimeNs>(between(random, kNsPerMs, static_cast<uint64_t>(2 * dead_after)));
  fault.a = static_cast<uint32_t>(random.next_below(nodes));
  fault.b = static_cast<uint32_t>(random.next_below(nodes));
  const double which = random.next_unit();
  if (which < 0.15) {
    fault.kind = Kind::kPartition;
  } else if (which < 0.3) {
    fault.kind = Kind::kOneWay;
  } else if (which < 0.4) {
    fault.kind = Kind::kIsolate;
  } else if (which < 0.55) {
    fault.kind = Kind::kStall;
  } else if (which < 0.7) {
    fault.kind = Kind::kDisconnect;
    fault.b %= scenario.shards;
  } else if (which < 0.84) {
    fault.kind = Kind::kKillWorker;
  } else if (which < 0.87) {
    fault.kind = Kind::kLeave;
  } else if (which < 0.94) {
    fault.kind = Kind::kRestartWorker;
  } else if (which < 0.98) {
    fault.kind = Kind::kKillShard;
    if (chance(random, 0.2)) fault.duration = 0;
  } else {
    fault.kind = Kind::kShutdownShard;
  }
  const bool about_worker = fault.kind == Kind::kDisconnect || fault.kind == Kind::kKillWorker ||
                            fault.kind == Kind::kRestartWorker || fault.kind == Kind::kLeave;
  const bool about_shard = fault.kind == Kind::kKillShard || fault.kind == Kind::kShutdownShard;
  if (about_worker) fault.a = fault.a % workers;  // a worker's number, not its node
  if (about_shard) fault.a = fault.a % scenario.shards;
  return fault;
}

void draw_faults(RandomSequence& random, Scenario& scenario) {
  const double profile = random.next_unit();
  if (profile < 0.25) {
    scenario.link.latency_max = one_of<TimeNs>(random, {50 * kNsPerUs, 5 * kNsPerMs});
    return;
  }
  scenario.calm_from = static_cast<TimeNs>(between(random, 1, 8)) * kNsPerS;
  draw_network(random, scenario);
  if (profile < 0.5) return;
  const uint64_t count = between(random, 1, 5);
  for (uint64_t i = 0; i < count; ++i) scenario.faults.push_back(draw_fault(random, scenario));
  std::sort(scenario.faults.begin(), scenario.faults.end(),
            [](const SimFault& a, const SimFault& b) { return a.at < b.at; });
}

void draw_table_fault(RandomSequence& random, Kind kind, Scenario& scenario) {
  SimFault fault;
  fault.kind = kind;
  fault.a = static_cast<uint32_t>(random.next_below(scenario.shards));
  fault.at = static_cast<TimeNs>(between(random, 0, static_cast<uint64_t>(scenario.calm_from)));
  fault.duration = static_cast<TimeNs>(between(random, kNsPerMs, 2 * kNsPerS));
  if (kind == Kind::kTableSlow) fault.b = static_cast<uint32_t>(between(random, 1, 60));
  scenario.faults.push_back(fault);
  std::ranges::stable_sort(scenario.faults, {}, &SimFault::at);
}

}  // namespace

Scenario draw_scenario(uint64_t seed) {
  RandomSequence random(RandomKey::from(seed), /*stream=*/1);
  Scenario scenario;
  scenario.seed = seed;
  scenario.shards = static_cast<uint32_t>(between(random, 1, 3));
  // A specification that the job's rules refuse (an L2 quantizer under retain, ...) is drawn again.
  int draws = 0;
  do {
    ++draws;
    MILLRACE_CHECK(draws < 1'000, seed);
    draw_spec(random, scenario);
  } while (!protocol::validate(scenario.spec));
  const uint64_t steps = between(random, 1, 14);
  scenario.steps.assign(scenario.spec.workers, steps);
  if (chance(random, 0.2)) {
    for (uint64_t& own : scenario.steps) own = between(random, 1, steps);
  }
  scenario.density_max = one_of(random, {0.01, 0.2, 1.0});
  scenario.sparse_pushes = one_of(random, {0.0, 0.5, 1.0});
  scenario.non_finite_pushes = chance(random, 0.2) ? 0.2 : 0.0;
  scenario.think_max = one_of<TimeNs>(random, {0, 5 * kNsPerMs, 400 * kNsPerMs});
  scenario.real_bytes = chance(random, 0.3);
  scenario.task_max = one_of<TimeNs>(random, {0, 0, kNsPerMs, 100 * kNsPerMs, 1'500 * kNsPerMs});
  scenario.eager_work = chance(random, 0.6);
  scenario.exact = on_grid(scenario.spec.codec_up) && on_grid(scenario.spec.codec_down);
  if (chance(random, 0.2)) scenario.hostile = 0.1;
  if (chance(random, 0.1)) scenario.job_memory_bytes = between(random, 4, 200) << 10;
  draw_faults(random, scenario);
  // Drawn last: the seeds of named tests keep their meaning, except for this.
  if (!scenario.faults.empty() && chance(random, 0.15)) draw_table_fault(random, Kind::kTableFails, scenario);
  draw_mode(random, scenario);
  draw_returns(random, scenario);
  RandomSequence of_store(RandomKey::from(seed), /*stream=*/3);
  draw_store(of_store, scenario);
  draw_clocks(random, scenario);
  RandomSequence of_acks(RandomKey::from(seed), /*stream=*/4);
  draw_acks(of_acks, scenario);
  RandomSequence of_mode(RandomKey::from(seed), /*stream=*/5);
  if (chance(of_mode, 1.0 / 7)) make_asynchronous(scenario.spec);
  RandomSequence of_drawing(RandomKey::from(seed), /*stream=*/7);
  draw_drawing(of_drawing, scenario);
  RandomSequence of_merging(RandomKey::from(seed), /*stream=*/6);
  scenario.merged = scenario.exact && chance(of_merging, 0.6);
  RandomSequence of_codecs(RandomKey::from(seed), /*stream=*/7);
  draw_automatic(of_codecs, scenario);
  RandomSequence of_history(RandomKey::from(seed), /*stream=*/8);
  draw_history(of_history, scenario.spec);
  RandomSequence of_first_steps(RandomKey::from(seed), /*stream=*/9);
  draw_uncompressed(of_first_steps, scenario.spec);
  RandomSequence of_table(RandomKey::from(seed), /*stream=*/10);
  while (!scenario.faults.empty() && chance(of_table, 0.3))
    draw_table_fault(of_table, one_of(of_table, {Kind::kTableAway, Kind::kTableMaybe, Kind::kTableSlow}), scenario);
  return scenario;
}

Scenario draw_asynchronous(uint64_t seed) {
  Scenario scenario = draw_scenario(seed);
  make_asynchronous(scenario.spec);
  return scenario;
}

bool may_silence_workers(const Scenario& scenario) {
  const TimeNs dead_after = scenario.spec.dead_after.count() * kNsPerMs;
  if (scenario.link.loss > 0.15 || scenario.link.slow_max + scenario.link.latency_max > dead_after / 2) return true;
  return std::any_of(scenario.faults.begin(), scenario.faults.end(), [](const SimFault& fault) {
    return fault.kind != Kind::kRestartWorker && fault.kind != Kind::kKillShard && fault.kind != Kind::kShutdownShard;
  });
}

std::string describe(const SimFault& fault) {
  const char* names[] = {"partition",         "one-way partition", "isolate",        "stall",       "disconnect",
                         "kill worker",       "worker leaves",     "restart worker", "kill shard",  "shut down shard",
                         "table writes fail", "kill all workers",  "table away",     "table maybe", "table slow"};
  return std::string(names[static_cast<size_t>(fault.kind)]) + " a=" + std::to_string(fault.a) +
         " b=" + std::to_string(fault.b) + " at " + std::to_string(fault.at / kNsPerMs) + " ms for " +
         std::to_string(fault.duration / kNsPerMs) + " ms";
}

std::string describe(const Scenario& scenario) {
  const protocol::JobSpec& spec = scenario.spec;
  std::string text =
      "seed " + std::to_string(scenario.seed) + ": " + std::to_string(scenario.shards) + " shards (nodes 0..), " +
      std::to_string(spec.workers) + " workers (nodes " + std::to_string(scenario.shards) + "..), " +
      std::string(protocol::enum_word(spec.mode)) + ", quorum " + std::to_string(spec.quorum) + ", deadline " +
      std::to_string(spec.deadline.count()) + " ms, participants " + std::to_string(spec.participants) +
      ", staleness " + std::to_string(spec.staleness) + ", apply after " + std::to_string(spec.apply_after_acks) +
      " acks" + ", select " + std::string(selection_name(spec.select.selection)) +
      (spec.select.warm_up == WarmUp::kDense ? " after " + std::to_string(spec.select.warm_up_steps) + " dense steps"
                                             : "") +
      ", reselect " +
      (spec.reselect.reselect == protocol::Reselect::kTopK
           ? "topk period " + std::to_string(spec.reselect.threshold_period)
           : "none") +
      ", up " + codec_text(spec.codec_up) + ", down " + codec_text(spec.codec_down) + " at " +
      std::to_string(static_cast<uint64_t>(scenario.link_rate * 1e-3)) + " kbit/s" +
      (spec.codec_error == protocol::CodecError::kRetain ? ", retain" : ", drop") +
      (spec.unbiased ? ", unbiased" : "") + ", dead_after " + std::to_string(spec.dead_after.count()) +
      " ms\n  tensors:";
  for (const auto& tensor : spec.tensors) text += ' ' + std::to_string(tensor.dimension);
  text += "; fuse_below " + std::to_string(spec.fuse_below) + ", parts_per_shard " +
          std::to_string(spec.parts_per_shard) + "; steps:";
  for (uint64_t steps : scenario.steps) text += ' ' + std::to_string(steps);
  if (scenario.slow_worker != kNobody) text += "; worker " + std::to_string(scenario.slow_worker) + " is slow";
  text += "\n  network: latency up to " + std::to_string(scenario.link.latency_max / kNsPerUs) + " us, loss " +
          std::to_string(scenario.link.loss) + ", duplication " + std::to_string(scenario.link.duplication) +
          ", corruption " + std::to_string(scenario.link.corruption) +
          (scenario.link.in_order ? ", in order" : ", reordered") + (scenario.real_bytes ? ", real bytes" : "") +
          (scenario.own_clocks ? ", own clocks, drift " + std::to_string(scenario.clock_drift_ppm) + " ppm" : "") +
          (scenario.hostile > 0 ? ", a stranger" : "") +
          (spec.has_store()
               ? ", store " + optimizer_text(spec.store.optimizer) +
                     (scenario.store_saves ? ", saved every " + std::to_string(scenario.store_every / kNsPerMs) +
                                                 " ms in up to " + std::to_string(scenario.disk_max / kNsPerMs) +
                                                 " ms, disk fails " + std::to_string(scenario.disk_fails)
                                           : ", not saved")
               : "") +
          (scenario.has_weights ? "" : ", no weights") + (scenario.merged ? ", merged updates" : "") +
          (scenario.restarts ? ", the killed start again, saves " + std::to_string(scenario.saves) + ", forgets " +
                                   std::to_string(scenario.forgets)
                             : "") +
          (scenario.job_memory_bytes > 0 ? ", " + std::to_string(scenario.job_memory_bytes) + " bytes a job" : "") +
          ", calm from " + std::to_string(scenario.calm_from / kNsPerMs) + " ms\n";
  for (const SimFault& fault : scenario.faults) text += "  " + describe(fault) + "\n";
  return text;
}

}  // namespace millrace::testing
