#include <gtest/gtest.h>

#include "worker/config/job_options.h"

namespace millrace::worker {
namespace {

JobOptions good_job() {
  JobOptions job;
  job.name = "job";
  job.shards = {"tcp://localhost:1"};
  return job;
}

const std::vector<TensorOptions> kOptionsTensors = {{.name = "w", .dimension = 1'000}};

std::string options_refusal(const JobOptions& job, const std::vector<TensorOptions>& tensors = kOptionsTensors) {
  const auto spec = spec_from_options(job, tensors);
  EXPECT_FALSE(spec.has_value());
  return spec ? "" : spec.error().message;
}

TEST(Options, SelectionsAreWrittenAsTextWithADensityOrACount) {
  EXPECT_EQ(selection_from_text("none"), SelectionSpec{});
  EXPECT_EQ(selection_from_text("topk:0.01"), (SelectionSpec{.selection = Selection::kTopK, .density = 0.01}));
  EXPECT_EQ(selection_from_text("topk:1000"), (SelectionSpec{.selection = Selection::kTopK, .k = 1'000}));
  EXPECT_EQ(selection_from_text("topk:1"), (SelectionSpec{.selection = Selection::kTopK, .density = 1}));
  EXPECT_EQ(selection_from_text("threshold:0.5"),
            (SelectionSpec{.selection = Selection::kThreshold, .threshold = 0.5}));
  EXPECT_EQ(selection_from_text("threshold_reuse:0.1:8"),
            (SelectionSpec{.selection = Selection::kThresholdReuse, .density = 0.1, .period = 8}));
  EXPECT_EQ(selection_from_text("bucket_topk:0.1:64"),
            (SelectionSpec{.selection = Selection::kBucketTopK, .density = 0.1, .bucket_size = 64}));
  for (const char* bad :
       {"", "topk", "topk:", "topk:0", "topk:-1", "topk:1.5", "topk:0.1:3", "topk:0.1x", "best:0.1", "none:1",
        "threshold:", "threshold:-1", "threshold:nan", "threshold_reuse:0.1:0", "bucket_topk:0.1:2:3"}) {
    const auto parsed = selection_from_text(bad);
    EXPECT_FALSE(parsed.has_value()) << bad;
    if (!parsed) {
      EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument) << bad;
    }
  }
}

TEST(Options, ReselectionsToo) {
  EXPECT_EQ(reselect_from_text("none", 4), protocol::ReselectSpec{});
  const auto parsed = reselect_from_text("topk:0.02", 4);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->reselect, protocol::Reselect::kTopK);
  EXPECT_EQ(parsed->density, 0.02);
  EXPECT_EQ(parsed->threshold_period, 4u);
  for (const char* bad : {"", "topk", "threshold:1", "topk:0", "topk:0.1:2"})
    EXPECT_FALSE(reselect_from_text(bad, 1).has_value()) << bad;
}

TEST(Options, MomentumIsWrittenAsTextWithItsFactor) {
  EXPECT_EQ(momentum_from_text("none"), protocol::MomentumSpec{});
  EXPECT_EQ(momentum_from_text("correction:0.9"), (protocol::MomentumSpec{protocol::Momentum::kCorrection, 0.9, true}));
  EXPECT_EQ(momentum_from_text("nesterov:0.5:unmasked"),
            (protocol::MomentumSpec{protocol::Momentum::kNesterov, 0.5, false}));
  EXPECT_EQ(momentum_from_text("nesterov_printed:0.9"),
            (protocol::MomentumSpec{protocol::Momentum::kNesterovPrinted, 0.9, true}));
  for (const char* bad : {"", "0.9", "correction", "nesterov_printed", "none:0.5", "nesterov_as_printed:0.9",
                          "correction:", "correction:0", "correction:1", "correction:-0.5", "correction:nan",
                          "correction:0.9:masked", "nesterov:0.9:unmasked:", "adam:0.9", "none:0.9"}) {
    const auto parsed = momentum_from_text(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(Options, AnUnbiasedJobIsAskedForInOneWordAndItsPartsByName) {
  JobOptions job = good_job();
  job.unbiased = true;
  job.select = "none";
  job.codec_up = "gap+qsgd4";
  EXPECT_NE(options_refusal(job).find("set codec_error drop"), std::string::npos) << options_refusal(job);
  job.codec_error = "drop";
  const auto spec = spec_from_options(job, kOptionsTensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_TRUE(spec->unbiased);
  job.clip = -1;
  EXPECT_NE(options_refusal(job).find("clip is -1"), std::string::npos) << options_refusal(job);
}

TEST(Options, AnOutputLayerIsSelectedFromAndNotQuantized) {
  JobOptions job = good_job();
  job.select = "by_size:0.001:signs:dense=5";
  job.codec_up = "bloom_p1:0.1+sign_mean";
  job.codec_down = "gap+qsgd8";
  job.codec_error = "drop";
  const std::vector<TensorOptions> tensors = {{.name = "hidden", .dimension = 100'000},
                                              {.name = "softmax", .dimension = 100'000, .output_layer = true},
                                              {.name = "own",
                                               .dimension = 100'000,
                                               .select = "trimmed:0.01:signs",
                                               .codec_up = "raw+qsgd4",
                                               .output_layer = true}};
  const auto spec = spec_from_options(job, tensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_FALSE(spec->tensors[0].select || spec->tensors[0].codec_up || spec->tensors[0].codec_down);
  EXPECT_EQ(*spec->tensors[1].select, selection_from_text("by_size:0.001:dense=5"));
  EXPECT_EQ(*spec->tensors[1].codec_up, without_loss(spec->codec_up));
  EXPECT_EQ(*spec->tensors[1].codec_down, without_loss(spec->codec_down));
  EXPECT_EQ(codec_text(*spec->tensors[1].codec_down), "gap");
  EXPECT_EQ(*spec->tensors[2].select, selection_from_text("trimmed:0.01"));
  EXPECT_EQ(*spec->tensors[2].codec_up, codec_from_text("raw+raw"));
}

TEST(Options, EveryFieldReachesTheSpecification) {
  JobOptions job = good_job();
  job.workers = 3;
  job.workers_min = 2;
  job.select = "topk:10";
  job.reselect = "topk:20";
  job.threshold_period = 5;
  job.codec_up = "raw+raw";
  job.codec_down = "bitmap+raw";
  job.combine = "weighted_mean";
  job.codec_error = "drop";
  job.non_finite = "drop";
  job.mode = "partial";
  job.quorum = 2;
  job.deadline_ms = 70;
  job.participants = 3;
  job.dead_after_ms = 5'000;
  job.heartbeat_ms = 500;
  job.exchange_timeout_ms = 50;
  job.seed = 9;
  job.momentum = "nesterov:0.75:unmasked";
  job.clip = 2.5;
  job.parts_per_shard = 4;
  job.fuse_below = 10;
  job.audit = true;
  job.store = "adagrad:0.5";
  job.store_begin = "worker";
  const auto spec = spec_from_options(
      job, std::vector<TensorOptions>{{.name = "w", .dimension = 1'000, .priority = 3, .select = "none"}});
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_EQ(spec->workers, 3u);
  EXPECT_EQ(spec->workers_min, 2u);
  EXPECT_EQ(spec->select.k, 10u);
  EXPECT_EQ(spec->reselect.k, 20u);
  EXPECT_EQ(spec->reselect.threshold_period, 5u);
  EXPECT_EQ(spec->codec_up.index, IndexCodecId::kRaw);
  EXPECT_EQ(spec->codec_down.index, IndexCodecId::kBitmap);
  EXPECT_EQ(spec->combine, protocol::Combine::kWeightedMean);
  EXPECT_EQ(spec->codec_error, protocol::CodecError::kDrop);
  EXPECT_EQ(spec->non_finite, protocol::NonFinite::kDropAndCount);
  EXPECT_EQ(spec->mode, protocol::Mode::kPartial);
  EXPECT_EQ(spec->quorum, 2u);
  EXPECT_EQ(spec->deadline_ms, 70u);
  EXPECT_EQ(spec->participants, 3u);
  EXPECT_EQ(spec->dead_after_ms, 5'000u);
  EXPECT_EQ(spec->heartbeat_ms, 500u);
  EXPECT_EQ(spec->exchange_timeout_ms, 50u);
  EXPECT_EQ(spec->seed, 9u);
  EXPECT_EQ(spec->momentum, (protocol::MomentumSpec{protocol::Momentum::kNesterov, 0.75, false}));
  EXPECT_EQ(spec->clip, 2.5);
  EXPECT_EQ(spec->parts_per_shard, 4u);
  EXPECT_EQ(spec->fuse_below, 10u);
  EXPECT_TRUE(spec->audit);
  EXPECT_FALSE(spec->unbiased);
  EXPECT_EQ(spec->store.optimizer, optimizer_from_text("adagrad:0.5"));
  EXPECT_EQ(spec->store.begin, protocol::StoreBegin::kWorker);
  ASSERT_EQ(spec->tensors.size(), 1u);
  EXPECT_EQ(spec->tensors[0].priority, 3);
  EXPECT_EQ(spec->tensors[0].select, SelectionSpec{});
  EXPECT_FALSE(spec->tensors[0].codec_up.has_value());
}

TEST(Options, WhatIsWrongIsSaidWithTheOptionsName) {
  JobOptions job = good_job();
  job.combine = "average";
  EXPECT_NE(options_refusal(job).find("combine = 'average': known are 'sum', 'mean', 'weighted_mean'"),
            std::string::npos)
      << options_refusal(job);
  job = good_job();
  job.codec_up = "zip";
  EXPECT_NE(options_refusal(job).find("codec_up: "), std::string::npos) << options_refusal(job);
  job = good_job();
  job.store = "rmsprop:1";
  EXPECT_NE(options_refusal(job).find("store: 'rmsprop:1' is not an optimizer"), std::string::npos)
      << options_refusal(job);
  job = good_job();
  job.store_begin = "saved";
  EXPECT_NE(options_refusal(job).find("store_begin saved without a store"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.worker = 1;
  EXPECT_NE(options_refusal(job).find("worker 1 of 1 workers"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.shards.clear();
  EXPECT_NE(options_refusal(job).find("no shards"), std::string::npos) << options_refusal(job);
  EXPECT_NE(options_refusal(good_job(), {{.name = "v", .dimension = 5, .select = "topk"}}).find("tensor 'v': select: "),
            std::string::npos);
  EXPECT_FALSE(options_refusal(good_job(), {}).empty()) << "a job without tensors";
  EXPECT_FALSE(options_refusal(good_job(), {{.name = "v", .dimension = 0}}).empty());
}

TEST(Options, ThePathIsASwitchsAddressWithWhatItWasToldOfTheJob) {
  JobOptions job = good_job();
  EXPECT_EQ(spec_from_options(job, kOptionsTensors)->path, protocol::Path::kServer);
  job.path = "switch:192.0.2.7:7600";
  job.switch_job = 9;
  job.switch_slots = 8;
  job.switch_lanes = 2;
  job.switch_packet_bytes = 8972;
  job.switch_codec = "bitmap+qsgd8";
  job.switch_return_after_ms = 700;
  job.grid = "4096:-9";
  std::vector<TensorOptions> tensors = kOptionsTensors;
  tensors[0].dimension = 8'192;  // a window for each lane
  const auto spec = spec_from_options(job, tensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_EQ(spec->path, protocol::Path::kSwitch);
  EXPECT_EQ(spec->switch_path, (protocol::SwitchSpec{.address = "192.0.2.7:7600",
                                                     .job = 9,
                                                     .slots = 8,
                                                     .lanes = 2,
                                                     .packet_bytes_max = 8972,
                                                     .index = protocol::WindowIndexCodec::kBitmap,
                                                     .value = protocol::WindowValueCodec::kQsgd8,
                                                     .return_after_ms = 700}));
  EXPECT_EQ(spec->grid, (protocol::GridSpec{.block_indices = 4096, .exponent_initial = -9}));
}

TEST(Options, AWorkersRackIsItsOwnAndInNoSpecification) {
  JobOptions job = good_job();
  job.path = "switch:192.0.2.7:7600";
  job.switch_job = 9;
  const auto alone = spec_from_options(job, kOptionsTensors);
  job.path += ",rack:[2001:db8::1]:7700";
  const auto in_rack = spec_from_options(job, kOptionsTensors);
  ASSERT_TRUE(in_rack.has_value()) << in_rack.error().message;
  EXPECT_EQ(*in_rack, *alone) << "workers of different racks are of one job";
  EXPECT_EQ(switch_addresses(job.path)->decider, "192.0.2.7:7600");
  EXPECT_EQ(switch_addresses(job.path)->rack, "[2001:db8::1]:7700");
  EXPECT_TRUE(switch_addresses("switch:192.0.2.7:7600")->rack.empty());
  EXPECT_FALSE(switch_addresses("server").has_value());
  for (const char* wrong :
       {"switch:a:1,rack:", "switch:a:1,b:2", "switch:a:1,rack:b:2,rack:c:3", "switch:a:1,", "rack:a:1"}) {
    EXPECT_FALSE(switch_addresses(wrong).has_value()) << wrong;
    job.path = wrong;
    EXPECT_NE(options_refusal(job).find("'switch:HOST:PORT,rack:HOST:PORT'"), std::string::npos)
        << options_refusal(job);
  }
}

TEST(Options, AReproducibleJobThatNamesNoGridHasTheSameOneOnEveryPath) {
  for (const char* path : {"server", "switch:192.0.2.7:7600"}) {
    for (const uint32_t packet_bytes : {1200U, 1472U, 8972U}) {
      for (const uint32_t workers : {1U, 64U}) {
        JobOptions job = good_job();
        job.path = path;
        const bool by_switch = job.path != "server";
        if (by_switch) job.switch_job = 3;
        if (by_switch) job.switch_packet_bytes = packet_bytes;
        job.workers = workers;
        job.worker = 0;
        job.reproducible = true;
        const auto spec = spec_from_options(job, kOptionsTensors);
        ASSERT_TRUE(spec) << spec.error().message;
        EXPECT_EQ(spec->grid, (protocol::GridSpec{.block_indices = 4096, .exponent_initial = -20}));
        EXPECT_TRUE(!by_switch || spec->switch_path.value == protocol::WindowValueCodec::kFixed32);
        job.reproducible = false;
        const auto other = spec_from_options(job, kOptionsTensors);
        ASSERT_TRUE(other) << other.error().message;
        EXPECT_EQ(other->grid, protocol::GridSpec{});
        EXPECT_EQ(other->switch_path.value, protocol::WindowValueCodec::kFixed16);
      }
    }
  }
}

TEST(Options, AWrongPathIsRefusedWithWhatIsWanted) {
  const auto refused = [](const auto& bend) {
    JobOptions job = good_job();
    job.path = "switch:192.0.2.7:7600";
    bend(job);
    return options_refusal(job);
  };
  const auto holds = [](const std::string& sentence, const std::string& words) {
    EXPECT_NE(sentence.find(words), std::string::npos) << sentence;
  };
  holds(refused([](JobOptions& job) { job.path = "switch"; }), "'switch:HOST:PORT'");
  holds(refused([](JobOptions& job) { job.path = "switch:"; }), "needs the switch's address");
  holds(refused([](JobOptions& job) { job.switch_codec = "gap"; }), "INDEX+VALUE");
  holds(refused([](JobOptions& job) { job.switch_codec = "dense+fixed16"; }), "'raw', 'gap', 'bitmap', 'bloom'");
  holds(refused([](JobOptions& job) { job.switch_codec = "gap+f32"; }), "'fixed16', 'fixed32', 'qsgd8', 'qsgd4'");
  for (const char* grid : {"", "16384", "16384:", ":-20", "16384:-20:1", "a:b"})
    holds(refused([grid](JobOptions& job) { job.grid = grid; }), "BLOCK_INDICES:FIRST_EXPONENT");
  holds(refused([](JobOptions& job) { job.path = "server", job.switch_job = 3; }),
        "options are given and path is server");
}

}  // namespace
}  // namespace millrace::worker
