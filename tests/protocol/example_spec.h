#pragma once

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// A specification that uses every field of the format.
inline JobSpec example_spec() {
  JobSpec spec;
  spec.name = "train";
  spec.workers = 4;
  spec.workers_min = 2;
  spec.apply_after_acks = 1;
  spec.combine = Combine::kWeightedMean;
  spec.select = {.selection = SelectionId::kTopK, .density = 0.01};
  spec.reselect = {.reselect = Reselect::kTopK, .density = 0.02, .threshold_period = 4};
  spec.codec_up = {.index = IndexCodecId::kGap, .value = ValueCodecId::kQsgd, .qsgd_bits = 8};
  spec.momentum = {.momentum = Momentum::kCorrection, .factor = 0.75};
  spec.clip = 8;
  spec.seed = 42;
  spec.store.optimizer = {.optimizer = Optimizer::kAdagrad, .rate = 0.001, .epsilon = 1e-8};
  spec.store.begin = StoreBegin::kWorker;
  spec.recipe = "program=train lr=1 l2=0 batch=64";
  TensorSpec large;
  large.name = "embedding.weight";
  large.dimension = 1'000'000;
  large.priority = -3;
  large.select = SelectionSpec{.selection = SelectionId::kThresholdReuse, .k = 500, .period = 16};
  large.codec_down = CodecSpec{.index = IndexCodecId::kRaw};
  TensorSpec small;
  small.name = "bias";
  small.dimension = 64;
  small.reselect = ReselectSpec{};
  small.codec_up = CodecSpec{.index = IndexCodecId::kBitmap};
  spec.tensors = {large, small};
  return spec;
}

}  // namespace millrace::protocol
