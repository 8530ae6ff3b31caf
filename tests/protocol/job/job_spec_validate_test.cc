#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <tuple>

#include "protocol/job/job_spec.h"
#include "protocol/job/switch_layout.h"
#include "tests/protocol/document.h"
#include "tests/protocol/example_spec.h"
#include "tests/protocol/refused_jobs.h"

namespace millrace::protocol {
namespace {

using std::chrono_literals::operator""ms;

constexpr double kSpecNan = std::numeric_limits<double>::quiet_NaN();

CodecSpec validate_qsgd(bool scale_max) {
  return {.index = IndexCodecId::kGap, .value = ValueCodecId::kQsgd, .qsgd_scale_max = scale_max};
}

CodecSpec validate_bloom() { return {.index = IndexCodecId::kBloom}; }

JobSpec without_reselection(JobSpec spec) {
  spec.reselect = {};
  for (TensorSpec& tensor : spec.tensors) tensor.reselect.reset();
  return spec;
}

std::vector<Refused> refused_asynchronous() {
  return {
      {"asynchronous", kImpossible, "quorum belongs to modes partial and bounded_staleness",
       [](JobSpec& s) {
         s = without_reselection(s);
         s.mode = Mode::kAsynchronous;
         s.quorum = 1;
       }},
      {"asynchronous", kImpossible, "bounded_staleness, and this job has mode asynchronous",
       [](JobSpec& s) {
         s = without_reselection(s);
         s.mode = Mode::kAsynchronous;
         s.deadline = 5ms;
       }},
      {"asynchronous", kImpossible, "reselect: in mode asynchronous",
       [](JobSpec& s) {
         s.mode = Mode::kAsynchronous;
         s.reselect = {.reselect = Reselect::kTopK, .k = 10};
       }},
      {"asynchronous", kImpossible, "reselect: in mode asynchronous",
       [](JobSpec& s) {
         s = without_reselection(s);
         s.mode = Mode::kAsynchronous;
         s.tensors[0].reselect = ReselectSpec{.reselect = Reselect::kTopK, .k = 10};
       }},
      {"participants", kImpossible, "belongs to mode partial",
       [](JobSpec& s) {
         s = without_reselection(s);
         s.mode = Mode::kAsynchronous;
         s.participants = 2;
       }},
  };
}

/// A job that a switch takes.
JobSpec with_switch(JobSpec spec) {
  spec.path = Path::kSwitch;
  spec.switch_path.address = "192.0.2.7:7600";
  spec.combine = Combine::kMean;
  spec.store = {};
  for (TensorSpec& tensor : spec.tensors) tensor.reselect.reset();
  return spec;
}

std::vector<Refused> refused_grids() {
  return {
      {"grid", kImpossible, "block_indices 0 is no multiple of 64", [](JobSpec& s) { s.grid.block_indices = 0; }},
      {"grid", kImpossible, "block_indices 96 is no multiple of 64", [](JobSpec& s) { s.grid.block_indices = 96; }},
      {"grid", kImpossible, "block_indices 65600", [](JobSpec& s) { s.grid.block_indices = 65'600; }},
      {"grid", kImpossible, "exponent_initial -121", [](JobSpec& s) { s.grid.exponent_initial = -121; }},
      {"grid", kImpossible, "exponent_initial 91", [](JobSpec& s) { s.grid.exponent_initial = 91; }},
  };
}

std::vector<Refused> refused_switch_options() {
  return {
      {"switch-options", kImpossible, "options are given and path is server",
       [](JobSpec& s) { s.switch_path.job = 1; }},
      {"switch-options", kImpossible, "needs the switch's address",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.address.clear(); }},
      {"switch-options", kImpossible, "0 slots", [](JobSpec& s) { s = with_switch(s), s.switch_path.slots = 0; }},
      {"switch-options", kImpossible, "129 slots", [](JobSpec& s) { s = with_switch(s), s.switch_path.slots = 129; }},
      {"switch-options", kImpossible, "16 slots on 0 lanes",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.lanes = 0; }},
      {"switch-options", kImpossible, "16 slots on 3 lanes",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.lanes = 3; }},
      {"switch-options", kImpossible, "34 slots on 17 lanes",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.lanes = 17, s.switch_path.slots = 34; }},
      {"switch-options", kImpossible, "job 4294967295 of 2 lanes",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.lanes = 2, s.switch_path.job = UINT32_MAX; }},
      {"switch-options", kImpossible, "packets of 1199 bytes",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.packet_bytes_max = 1199; }},
      {"switch-options", kImpossible, "packets of 8973 bytes",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.packet_bytes_max = 8973; }},
      {"switch-options", kImpossible, "the index codec is raw, gap",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.index = WindowIndexCodec::kDense; }},
      {"switch-options", kImpossible, "the value codec fixed16",
       [](JobSpec& s) { s = with_switch(s), s.switch_path.value = WindowValueCodec::kNone; }},
      {"unknown-number", kReserved, "path, or a codec of the switch",
       [](JobSpec& s) { s = with_switch(s), s.path = static_cast<Path>(3); }},
  };
}

std::vector<Refused> refused_switch_combinations() {
  return {
      {"switch-workers", kImpossible, "up to 64 workers", [](JobSpec& s) { s = with_switch(s), s.workers = 65; }},
      {"switch-mode", kImpossible, "path switch is for mode synchronous",
       [](JobSpec& s) { s = with_switch(s), s.mode = Mode::kBoundedStaleness, s.staleness = 1, s.quorum = 2; }},
      {"switch-mode", kImpossible, "with staleness 0", [](JobSpec& s) { s = with_switch(s), s.staleness = 1; }},
      {"switch-weights", kImpossible, "datagrams carry no weights",
       [](JobSpec& s) { s = with_switch(s), s.combine = Combine::kWeightedMean; }},
      {"switch-unbiased", kImpossible, "an unbiased job keeps none",
       [](JobSpec& s) {
         s = with_switch(without_reselection(s));
         s.unbiased = true, s.codec_error = CodecError::kDrop, s.momentum = {};
         s.select = {.selection = SelectionId::kRandom, .density = 0.01};
         s.tensors[0].select.reset();
       }},
      {"switch-store", kImpossible, "the shards do not see the updates",
       [](JobSpec& s) {
         const StoreSpec store = s.store;
         s = with_switch(s), s.store = store;
       }},
      {"switch-history", kImpossible, "set history off", [](JobSpec& s) { s = with_switch(s), s.history = true; }},
      {"switch-acks", kImpossible, "there are no acknowledgements",
       [](JobSpec& s) { s = with_switch(s), s.apply_after_acks = 2; }},
      {"switch-first", kImpossible, "initial_weights first: not in this version",
       [](JobSpec& s) { s = with_switch(s), s.initial_weights = InitialWeights::kFirst; }},
      {"switch-reselect", kImpossible, "tensor 'bias': path switch re-selects",
       [](JobSpec& s) { s = with_switch(s), s.tensors[1].reselect = ReselectSpec{}; }},
      {"switch-lanes", kImpossible, "2 lanes, and the job has 1 windows of 64 indices",
       [](JobSpec& s) {
         s = with_switch(without_reselection(s));
         s.grid.block_indices = 64, s.switch_path.lanes = 2;
         s.tensors.resize(1), s.tensors[0].dimension = 64;
       }},
      {"switch-lanes", kImpossible, "8 lanes, and an update has 7 entries",
       [](JobSpec& s) {
         s = with_switch(s);
         s.grid.block_indices = 64, s.switch_path.lanes = 8;
         s.tensors.resize(1), s.tensors[0].dimension = 4'096;
         s.reselect = {.reselect = Reselect::kTopK, .k = 7};
       }},
      {"switch-indices", kImpossible, "these are 4294967360",
       [](JobSpec& s) {
         s = with_switch(s);
         s.grid.block_indices = 64;
         s.tensors[0].dimension = kDimensionMax - 63;  // ends one index into its last window
         s.tensors[1].dimension = 64;
       }},
  };
}

std::vector<Refused> refused_histories() {
  return {
      {"history", kImpossible, "needs staleness 0",
       [](JobSpec& s) {
         s.history = true;
         s.staleness = 1;
       }},
      {"history", kImpossible, "no mode asynchronous",
       [](JobSpec& s) {
         s.history = true;
         s.mode = Mode::kAsynchronous;
       }},
  };
}

std::vector<Refused> refused_modes_and_numbers() {
  return {
      {"job-name", kImpossible, "name", [](JobSpec& s) { s.name = ""; }},
      {"job-name", kImpossible, "name", [](JobSpec& s) { s.name = std::string(256, 'a'); }},
      {"job-name", kImpossible, "name", [](JobSpec& s) { s.name = "a\nb"; }},
      {"recipe", kImpossible, "recipe: 4097 bytes", [](JobSpec& s) { s.recipe = std::string(4097, 'a'); }},
      {"recipe", kImpossible, "recipe: 9 bytes; it must be printable text",
       [](JobSpec& s) { s.recipe = "lr=1\nl2=0"; }},
      {"bounded-staleness", kImpossible, "that is mode synchronous",
       [](JobSpec& s) { std::tie(s.mode, s.quorum) = std::tuple(Mode::kBoundedStaleness, 2u); }},
      {"patience", kImpossible, "mode partial needs a quorum", [](JobSpec& s) { s.mode = Mode::kPartial; }},
      {"patience", kImpossible, "mode bounded_staleness needs a quorum",
       [](JobSpec& s) {
         s.mode = Mode::kBoundedStaleness;
         s.staleness = 4;
       }},
      {"unknown-number", kReserved, "does not know", [](JobSpec& s) { s.mode = static_cast<Mode>(9); }},
      {"unknown-number", kReserved, "does not know", [](JobSpec& s) { s.combine = static_cast<Combine>(0); }},
      {"unknown-number", kReserved, "does not know", [](JobSpec& s) { s.codec_error = static_cast<CodecError>(3); }},
      {"unknown-number", kReserved, "does not know", [](JobSpec& s) { s.non_finite = static_cast<NonFinite>(3); }},
      {"unknown-number", kReserved, "does not know",
       [](JobSpec& s) { s.initial_weights = static_cast<InitialWeights>(0); }},
      {"unknown-number", kReserved, "does not know",
       [](JobSpec& s) { s.select.selection = static_cast<SelectionId>(99); }},
      {"unknown-number", kReserved, "does not know",
       [](JobSpec& s) { s.reselect.reselect = static_cast<Reselect>(3); }},
      {"unknown-number", kReserved, "does not know",
       [](JobSpec& s) { s.codec_up.value = static_cast<ValueCodecId>(200); }},
      {"staleness-limit", kImpossible, "staleness 64", [](JobSpec& s) { s.staleness = 64; }},
      {"quorum", kImpossible, "quorum belongs to", [](JobSpec& s) { s.quorum = 1; }},
      {"quorum", kImpossible, "quorum 5 is over the 4 workers",
       [](JobSpec& s) {
         s.mode = Mode::kPartial;
         s.quorum = 5;
       }},
      {"quorum", kImpossible, "quorum 3 is over the 2 participants of a step",
       [](JobSpec& s) {
         s.mode = Mode::kPartial;
         s.participants = 2;
         s.quorum = 3;
       }},
      {"deadline", kImpossible, "deadline belongs to", [](JobSpec& s) { s.deadline = 100ms; }},
      {"participants", kImpossible, "belongs to mode partial", [](JobSpec& s) { s.participants = 2; }},
      {"participants", kImpossible, "participants with staleness",
       [](JobSpec& s) {
         s.mode = Mode::kPartial;
         s.participants = 2;
         s.staleness = 1;
       }},
      {"participants", kImpossible, "participants 5 is over workers 4",
       [](JobSpec& s) {
         s.mode = Mode::kPartial;
         s.participants = 5;
       }},
      {"workers", kImpossible, "workers is 0", [](JobSpec& s) { s.workers = 0; }},
      {"workers", kImpossible, "workers is 4097", [](JobSpec& s) { s.workers = kWorkersMax + 1; }},
      {"workers-min", kImpossible, "workers_min is 0", [](JobSpec& s) { s.workers_min = 0; }},
      {"workers-min", kImpossible, "workers_min 5 is over workers 4", [](JobSpec& s) { s.workers_min = 5; }},
      {"acks", kImpossible, "apply_after_acks 5 is over workers 4", [](JobSpec& s) { s.apply_after_acks = 5; }},
      {"acks", kImpossible, "apply_after_acks 3 is over workers_min 2", [](JobSpec& s) { s.apply_after_acks = 3; }},
      {"heartbeat", kImpossible, "heartbeat is 0", [](JobSpec& s) { s.heartbeat = 0ms; }},
      {"heartbeat", kImpossible, "three heartbeats", [](JobSpec& s) { s.dead_after = 2'999ms; }},
      {"exchange-timeout", kImpossible, "exchange_timeout is 0", [](JobSpec& s) { s.exchange_timeout = 0ms; }},
      {"exchange-timeout", kImpossible, "exchange_timeout", [](JobSpec& s) { s.exchange_timeout = 60'001ms; }},
  };
}

std::vector<Refused> refused_methods() {
  return {
      {"select", kImpossible, "select: ", [](JobSpec& s) { s.select.density = 0; }},
      {"select", kImpossible, "select: ", [](JobSpec& s) { s.select.density = 1.5; }},
      {"select", kImpossible, "select: ", [](JobSpec& s) { s.select.density = -0.5; }},
      {"select", kImpossible, "finite", [](JobSpec& s) { s.select.density = kSpecNan; }},
      {"select", kImpossible, "finite", [](JobSpec& s) { s.select.threshold = kSpecNan; }},
      {"select", kImpossible, "finite", [](JobSpec& s) { s.select.variance = kSpecNan; }},
      {"select", kImpossible, "select: a variance budget",
       [](JobSpec& s) { s.select = {.selection = SelectionId::kGsparClosed, .variance = -1}; }},
      {"select", kImpossible, "select: gspar iterates",
       [](JobSpec& s) { s.select = {.selection = SelectionId::kGspar, .density = 0.5, .iterations = 0}; }},
      {"select", kImpossible,
       "select: ", [](JobSpec& s) { s.select = {.selection = SelectionId::kThreshold, .threshold = 0}; }},
      {"select", kImpossible, "tensor 'bias': select: ",
       [](JobSpec& s) { s.tensors[1].select = SelectionSpec{.selection = SelectionId::kTopK}; }},
      {"reselect", kImpossible, "reselect: topk needs k", [](JobSpec& s) { s.reselect.density = 0; }},
      {"reselect", kImpossible, "reselect: topk needs k", [](JobSpec& s) { s.reselect.density = 1.1; }},
      {"reselect", kImpossible, "finite", [](JobSpec& s) { s.reselect.density = kSpecNan; }},
      {"reselect", kImpossible, "tensor 'bias': reselect: topk needs k",
       [](JobSpec& s) { s.tensors[1].reselect = ReselectSpec{.reselect = Reselect::kTopK}; }},
      {"threshold-period", kImpossible, "threshold_period", [](JobSpec& s) { s.reselect.threshold_period = 0; }},
      {"threshold-period", kImpossible, "1048576", [](JobSpec& s) { s.reselect.threshold_period = (1 << 20) + 1; }},
      {"codec", kImpossible, "codec_up: ", [](JobSpec& s) { s.codec_up.qsgd_bits = 9; }},
      {"codec", kImpossible, "codec_up: auto chooses the index codec",
       [](JobSpec& s) {
         s.codec_up.automatic = true;
         s.codec_up.index = IndexCodecId::kRaw;
       }},
      {"l2-retain", kImpossible, "codec_error drop",
       [](JobSpec& s) {
         s.codec_up = validate_qsgd(false);
         s.codec_up.automatic = true;
       }},
      {"codec", kImpossible, "codec_down: ", [](JobSpec& s) { s.codec_down.bloom_false_positive_rate = kSpecNan; }},
      {"codec", kImpossible, "codec_down: ", [](JobSpec& s) { s.codec_down.bucket_size = 0; }},
      {"codec", kImpossible, "tensor 'bias': codec_up: ", [](JobSpec& s) { s.tensors[1].codec_up->qsgd_bits = 1; }},
      {"codec", kImpossible, "codec_up: ", [](JobSpec& s) { s.codec_up.index = IndexCodecId::kNone; }},
      {"unknown-number", kReserved, "store: an optimizer",
       [](JobSpec& s) { s.store.optimizer.optimizer = static_cast<Optimizer>(9); }},
      {"unknown-number", kReserved, "store: an optimizer",
       [](JobSpec& s) { s.store.begin = static_cast<StoreBegin>(9); }},
      {"store", kImpossible, "store: adagrad: rate", [](JobSpec& s) { s.store.optimizer.rate = 0; }},
      {"store", kImpossible, "store: adagrad: epsilon", [](JobSpec& s) { s.store.optimizer.epsilon = kSpecNan; }},
      {"store", kImpossible, "store: sgd has a parameter set that belongs to another optimizer",
       [](JobSpec& s) { s.store.optimizer.optimizer = Optimizer::kSgd; }},
      {"store-momentum", kImpossible, "would be averaged twice",
       [](JobSpec& s) { s.store.optimizer = optimizer_from_text("momentum:0.1").value(); }},
      {"store-momentum", kImpossible, "store adam with momentum correction",
       [](JobSpec& s) { s.store.optimizer = optimizer_from_text("adam:0.1").value(); }},
      {"store-acks", kImpossible, "before any worker has acknowledged it", [](JobSpec& s) { s.apply_after_acks = 2; }},
      {"store-begin", kImpossible, "store_begin worker without a store", [](JobSpec& s) { s.store.optimizer = {}; }},
  };
}

/// Returns the codecs that one direction or the job's rules exclude.
std::vector<Refused> refused_codecs() {
  return {
      {"l2-retain", kImpossible, "codec_error drop", [](JobSpec& s) { s.codec_up = validate_qsgd(false); }},
      {"l2-retain", kImpossible, "tensor 'bias': codec_up: qsgd4:l2 is no contraction",
       [](JobSpec& s) { s.tensors[1].codec_up = validate_qsgd(false); }},
      {"no-contraction", kImpossible, "codec_up: terngrad is no contraction",
       [](JobSpec& s) { s.codec_up = codec_from_text("gap+terngrad").value(); }},
      {"no-contraction", kImpossible, "codec_up: qsgd2 is no contraction",
       [](JobSpec& s) { s.codec_up = codec_from_text("gap+qsgd2").value(); }},
      {"no-contraction", kImpossible, "tensor 'bias': codec_up: terngrad:64 is no contraction",
       [](JobSpec& s) { s.tensors[1].codec_up = codec_from_text("gap+terngrad:64").value(); }},
      {"biased-down", kImpossible, "codec_down: sign_mean rounds with a bias",
       [](JobSpec& s) { s.codec_down = codec_from_text("gap+sign_mean").value(); }},
      {"biased-down", kImpossible, "tensor 'bias': codec_down: onebit rounds with a bias",
       [](JobSpec& s) { s.tensors[1].codec_down = codec_from_text("gap+onebit").value(); }},
      {"naive-retain", kImpossible, "codec_up: bloom_naive sends values to other indices",
       [](JobSpec& s) { s.codec_up = codec_from_text("bloom_naive").value(); }},
      {"naive-retain", kImpossible, "tensor 'bias': codec_up: bloom_naive",
       [](JobSpec& s) { s.tensors[1].codec_up = codec_from_text("bloom_naive").value(); }},
      {"picking-down", kImpossible, "codec_down: bloom_p1 leaves out entries",
       [](JobSpec& s) { s.codec_down = codec_from_text("bloom_p1").value(); }},
      {"picking-down", kImpossible, "tensor 'bias': codec_down: bloom_naive",
       [](JobSpec& s) { s.tensors[1].codec_down = codec_from_text("bloom_naive").value(); }},
  };
}

/// A sound unbiased job, to be bent.
void make_unbiased(JobSpec& spec) {
  spec.unbiased = true;
  spec.select = {};
  spec.reselect = {};
  spec.codec_error = CodecError::kDrop;
  spec.momentum.masked = false;
  for (TensorSpec& tensor : spec.tensors) tensor.select.reset(), tensor.reselect.reset();
}

template <typename Bend>
std::function<void(JobSpec&)> unbiased_but(Bend bend) {
  return [bend](JobSpec& spec) {
    make_unbiased(spec);
    bend(spec);
  };
}

std::vector<Refused> refused_entering() {
  return {
      {"momentum", kImpossible, "momentum: factor 1 is not in (0, 1)", [](JobSpec& s) { s.momentum.factor = 1; }},
      {"momentum", kImpossible, "momentum: factor 0 is not in (0, 1)", [](JobSpec& s) { s.momentum.factor = 0; }},
      {"momentum", kImpossible, "momentum: factor -0.5", [](JobSpec& s) { s.momentum.factor = -0.5; }},
      {"momentum", kImpossible, "momentum: factor", [](JobSpec& s) { s.momentum.factor = kSpecNan; }},
      {"momentum", kImpossible, "momentum: factor must be a finite number",
       [](JobSpec& s) { s.momentum = {.momentum = Momentum::kNone, .factor = kSpecNan}; }},
      {"clip", kImpossible, "clip is -1", [](JobSpec& s) { s.clip = -1; }},
      {"clip", kImpossible, "clip is inf", [](JobSpec& s) { s.clip = std::numeric_limits<double>::infinity(); }},
      {"clip", kImpossible, "clip is ", [](JobSpec& s) { s.clip = kSpecNan; }},
      {"unknown-number", kReserved, "does not know",
       [](JobSpec& s) { s.momentum.momentum = static_cast<Momentum>(5); }},
      {"unbiased-select", kImpossible, "select: topk sends the largest",
       unbiased_but([](JobSpec& s) { s.select = {.selection = SelectionId::kTopK, .density = 0.5}; })},
      {"unbiased-select", kImpossible, "select: threshold sends the largest",
       unbiased_but([](JobSpec& s) { s.select = {.selection = SelectionId::kThreshold, .threshold = 0.5}; })},
      {"unbiased-select", kImpossible, "tensor 'bias': select: bucket_topk sends the largest",
       unbiased_but([](JobSpec& s) {
         s.tensors[1].select = SelectionSpec{.selection = SelectionId::kBucketTopK, .density = 0.5};
       })},
      {"unbiased-select", kImpossible, "select: gaussian sends the largest",
       unbiased_but([](JobSpec& s) { s.select = {.selection = SelectionId::kGaussian, .density = 0.5}; })},
      {"biased-draw", kImpossible, "select: gspar sends more than an entry's value",
       [](JobSpec& s) { s.select = {.selection = SelectionId::kGspar, .density = 0.5}; }},
      {"biased-draw", kImpossible, "select: uniform sends more than an entry's value",
       [](JobSpec& s) { s.select = {.selection = SelectionId::kUniform, .density = 0.5}; }},
      {"biased-draw", kImpossible, "tensor 'bias': select: gspar_closed sends more than an entry's value",
       [](JobSpec& s) { s.tensors[1].select = SelectionSpec{.selection = SelectionId::kGsparClosed, .variance = 1}; }},
      {"unbiased-reselect", kImpossible, "reselect: the entries that an update omits",
       unbiased_but([](JobSpec& s) { s.reselect = {.reselect = Reselect::kTopK, .density = 0.5}; })},
      {"unbiased-reselect", kImpossible, "tensor 'bias': reselect: the entries that an update omits",
       unbiased_but(
           [](JobSpec& s) { s.tensors[1].reselect = ReselectSpec{.reselect = Reselect::kTopK, .density = 0.5}; })},
      {"unbiased-retain", kImpossible, "codec_error retain keeps",
       unbiased_but([](JobSpec& s) { s.codec_error = CodecError::kRetain; })},
      {"unbiased-codec", kImpossible, "codec_up: onebit rounds with a bias",
       unbiased_but([](JobSpec& s) { s.codec_up = codec_from_text("gap+onebit").value(); })},
      {"unbiased-codec", kImpossible, "tensor 'bias': codec_up: sign_mean rounds with a bias",
       unbiased_but([](JobSpec& s) { s.tensors[1].codec_up = codec_from_text("gap+sign_mean").value(); })},
      {"unbiased-bloom", kImpossible, "codec_up: bloom_p0 adds entries",
       unbiased_but([](JobSpec& s) { s.codec_up = validate_bloom(); })},
      {"unbiased-bloom", kImpossible, "tensor 'bias': codec_up: bloom_p0 adds entries",
       unbiased_but([](JobSpec& s) { s.tensors[1].codec_up = validate_bloom(); })},
      {"unbiased-masked", kImpossible, "use it unmasked", unbiased_but([](JobSpec& s) { s.momentum.masked = true; })},
  };
}

std::vector<Refused> refused_tensors() {
  return {
      {"no-tensors", kImpossible, "no tensors", [](JobSpec& s) { s.tensors.clear(); }},
      {"too-many-tensors", ErrorCode::kLimitExceeded, "65537 tensors",
       [](JobSpec& s) { s.tensors.resize(kTensorsMax + 1); }},
      {"tensor-name", kImpossible, "tensor 1: its name", [](JobSpec& s) { s.tensors[1].name = ""; }},
      {"tensor-name", kImpossible, "tensor 0: its name", [](JobSpec& s) { s.tensors[0].name = "\x7F"; }},
      {"tensor-name-twice", kImpossible, "two tensors have the name 'bias'",
       [](JobSpec& s) { s.tensors[0].name = "bias"; }},
      {"dimension", kImpossible, "tensor 'bias': dimension 0", [](JobSpec& s) { s.tensors[1].dimension = 0; }},
      {"dimension", kImpossible, "dimension 4294967297",
       [](JobSpec& s) { s.tensors[1].dimension = kDimensionMax + 1; }},
      {"f64", kReserved, "tensor 'bias': value type f64 is reserved",
       [](JobSpec& s) { s.tensors[1].value_type = ValueType::kF64; }},
      {"bloom-dimension", kImpossible, "use gap",
       [](JobSpec& s) {
         s.tensors[0].dimension = (uint64_t{1} << 28) + 1;
         s.codec_up = validate_bloom();
       }},
      {"bloom-dimension", kImpossible, "tensor 'embedding.weight'",
       [](JobSpec& s) {
         s.tensors[0].dimension = (uint64_t{1} << 28) + 1;
         s.tensors[0].codec_down = validate_bloom();
       }},
      {"bloom-dimension", kImpossible, "fused with it",
       [](JobSpec& s) {
         s.codec_up = validate_bloom();
         s.fuse_below = UINT64_MAX;
         s.tensors = {};
         for (const char* name : {"a", "b"}) {
           s.tensors.emplace_back();
           s.tensors.back().name = name;
           s.tensors.back().dimension = uint64_t{1} << 28;
         }
       }},
      {"parts-per-shard", kImpossible, "parts_per_shard 65", [](JobSpec& s) { s.parts_per_shard = 65; }},
      {"parts", ErrorCode::kLimitExceeded, "65536 parts",
       [](JobSpec& s) {
         s.parts_per_shard = 64;
         s.fuse_below = 0;
         s.tensors.clear();
         for (int i = 0; i < 1'025; ++i) {
           s.tensors.emplace_back();
           s.tensors.back().name = "t" + std::to_string(i);
           s.tensors.back().dimension = 64;
         }
       }},
      {"bytes", ErrorCode::kLimitExceeded, "shorter names",
       [](JobSpec& s) {
         s.tensors.clear();
         for (int i = 0; i < 20'000; ++i) {
           s.tensors.emplace_back();
           s.tensors.back().name = std::string(200, 'x') + std::to_string(i);
           s.tensors.back().dimension = 64;
         }
       }},
  };
}

std::vector<Refused> refused_jobs() {
  std::vector<Refused> all = refused_modes_and_numbers();
  for (auto part : {refused_asynchronous, refused_histories, refused_reproducible, refused_uncompressed,
                    refused_methods, refused_codecs, refused_entering, refused_tensors, refused_grids,
                    refused_switch_options, refused_switch_combinations}) {
    for (Refused& refused : part()) all.push_back(std::move(refused));
  }
  return all;
}

struct Accepted {
  const char* what;
  std::function<void(JobSpec&)> make;
};

std::vector<Accepted> accepted_codecs() {
  return {
      {"auto both ways", [](JobSpec& s) { s.codec_up = s.codec_down = codec_from_text("auto").value(); }},
      {"auto with values of one codec",
       [](JobSpec& s) {
         s.codec_up = codec_from_text("auto+qsgd4").value();
         s.codec_down = codec_from_text("auto+qsgd8").value();
       }},
      {"auto for a tensor", [](JobSpec& s) { s.tensors[1].codec_up = codec_from_text("auto").value(); }},
      {"bloom both ways", [](JobSpec& s) { s.codec_up = s.codec_down = validate_bloom(); }},
      {"bloom by conflict sets up", [](JobSpec& s) { s.codec_up = codec_from_text("bloom_p2").value(); }},
      {"bloom naive up, the error dropped",
       [](JobSpec& s) {
         s.codec_up = codec_from_text("bloom_naive").value();
         s.codec_error = CodecError::kDrop;
       }},
      {"bloom at its largest dimension",
       [](JobSpec& s) {
         s.tensors[0].dimension = uint64_t{1} << 28;
         s.tensors[0].codec_up = validate_bloom();
       }},
      {"QSGD scaled by the maximum, retained", [](JobSpec& s) { s.codec_up = validate_qsgd(true); }},
      {"QSGD scaled by the L2 norm, dropped",
       [](JobSpec& s) { s.codec_up = validate_qsgd(false), s.codec_error = CodecError::kDrop; }},
      {"QSGD scaled by the L2 norm on the way down", [](JobSpec& s) { s.codec_down = validate_qsgd(false); }},
      {"same-sign means and 1 bit up, halves down",
       [](JobSpec& s) {
         s.codec_up = codec_from_text("gap+sign_mean").value();
         s.tensors[1].codec_up = codec_from_text("gap+onebit").value();
         s.codec_down = codec_from_text("gap+bf16").value();
         s.tensors[1].codec_down = codec_from_text("gap+f16").value();
       }},
      {"unbiased, ternary up, Elias codes of 3 bits down", unbiased_but([](JobSpec& s) {
         s.codec_up = codec_from_text("gap+terngrad").value();
         s.codec_down = codec_from_text("gap+qsgd_elias3:l2").value();
       })},
  };
}

std::vector<Accepted> accepted_jobs() {
  return {
      {"as it is", [](JobSpec&) {}},
      {"selection none with reselection", [](JobSpec& s) { s.select = {}; }},
      {"nothing selected, nothing reselected", [](JobSpec& s) { s.select = {}, s.reselect = {}; }},
      {"no momentum", [](JobSpec& s) { s.momentum = {}; }},
      {"Nesterov's momentum, unmasked, clipped",
       [](JobSpec& s) {
         s.momentum = {.momentum = Momentum::kNesterov, .factor = 0.9, .masked = false};
         s.clip = 0.25;
       }},
      {"unbiased, with momentum and clipping", make_unbiased},
      {"unbiased, drawn by size", unbiased_but([](JobSpec& s) {
         s.select = {.selection = SelectionId::kGspar, .density = 0.01};
         s.tensors[1].select = SelectionSpec{.selection = SelectionId::kRandom, .density = 0.5};
       })},
      {"drawn without regard to size, the rest kept",
       [](JobSpec& s) { s.select = {.selection = SelectionId::kRandom, .density = 0.01}; }},
      {"unbiased, in 4 bits by the L2 norm, with steps that leave workers out", unbiased_but([](JobSpec& s) {
         s.momentum = {};
         s.codec_up = s.codec_down = validate_qsgd(false);
         s.mode = Mode::kPartial;
         s.quorum = 1;
       })},
      {"asynchronous",
       [](JobSpec& s) {
         s = without_reselection(s);
         s.mode = Mode::kAsynchronous;
         s.staleness = 3;
       }},
      {"steps ahead", [](JobSpec& s) { s.staleness = kStalenessMax; }},
      {"k by number",
       [](JobSpec& s) {
         s.select = {.selection = SelectionId::kTopK, .k = 10}, s.reselect.k = 10, s.reselect.density = 0;
       }},
      {"k over the dimension",
       [](JobSpec& s) { s.select = {.selection = SelectionId::kTopK, .k = uint64_t{1} << 40}; }},
      {"one worker", [](JobSpec& s) { s.workers = s.workers_min = 1; }},
      {"the largest tensor", [](JobSpec& s) { s.tensors[0].dimension = kDimensionMax; }},
      {"as many acknowledgements as workers live", [](JobSpec& s) { s.apply_after_acks = 2, s.store = {}; }},
      {"every worker needed", [](JobSpec& s) { s.workers_min = s.workers; }},
      {"three heartbeats", [](JobSpec& s) { s.heartbeat = 100ms, s.dead_after = 300ms; }},
      {"audit", [](JobSpec& s) { s.audit = true; }},
      {"a switch", [](JobSpec& s) { s = with_switch(s); }},
      {"a switch, and a tensor with the reselect of the job",
       [](JobSpec& s) { s = with_switch(s), s.tensors[1].reselect = s.reselect; }},
      {"a switch for as many indices as it takes",
       [](JobSpec& s) {
         s = with_switch(s);
         s.grid.block_indices = 64;
         s.tensors[0].dimension = kSwitchDimensionMax + 1 - 64;
         s.tensors[1].dimension = 63;
       }},
      {"initial-weights", [](JobSpec& s) { s.initial_weights = InitialWeights::kFirst; }},
      {"sum", [](JobSpec& s) { s.combine = Combine::kSum; }},
  };
}

TEST(ValidateJobSpec, EveryRefusalNamesItsReason) {
  for (const Refused& refused : refused_jobs()) {
    JobSpec spec = example_spec();
    refused.make(spec);
    const Status status = validate(spec);
    ASSERT_FALSE(status) << refused.row << ", " << refused.says;
    EXPECT_EQ(status.error().code, refused.code) << status.error().message;
    EXPECT_THAT(status.error().message, ::testing::HasSubstr(refused.says)) << refused.row;
  }
}

TEST(ValidateJobSpec, AValidSpecificationIsAccepted) {
  std::vector<Accepted> all = accepted_jobs();
  for (Accepted& codec : accepted_codecs()) all.push_back(std::move(codec));
  for (const Accepted& accepted : all) {
    JobSpec spec = example_spec();
    accepted.make(spec);
    if (const Status status = validate(spec); !status) ADD_FAILURE() << accepted.what << ": " << status.error().message;
  }
}

TEST(ValidateJobSpec, TheDocumentAndTheTestsNameTheSameCases) {
  std::set<std::string> tested;
  for (const Refused& refused : refused_jobs()) tested.insert(refused.row);
  std::set<std::string> documented;
  for (const std::string& line : document_lines("job/REFUSED.md")) {
    if (line.starts_with("- `")) documented.insert(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(documented, tested);
}

}  // namespace
}  // namespace millrace::protocol
