#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "tests/worker/session_options.h"
#include "worker/config/job_config.h"
#include "worker/config/option_table.h"
#include "worker/config/option_text.h"

namespace millrace::worker {
namespace {

testing::SessionOptions good_job() {
  testing::SessionOptions job;
  job.name = "job";
  job.shards = {"tcp://localhost:1"};
  return job;
}

const std::vector<TensorOptions> kOptionsTensors = {{.name = "w", .dimension = 1'000}};

std::string options_refusal(const testing::SessionOptions& job,
                            const std::vector<TensorOptions>& tensors = kOptionsTensors) {
  const auto spec = job_spec_of(job, job, tensors);
  EXPECT_FALSE(spec.has_value());
  return spec ? "" : spec.error().message;
}

TEST(Options, SelectionsAreWrittenAsTextWithADensityOrACount) {
  EXPECT_EQ(selection_from_text("none"), SelectionSpec{});
  EXPECT_EQ(selection_from_text("topk:0.01"), (SelectionSpec{.selection = SelectionId::kTopK, .density = 0.01}));
  EXPECT_EQ(selection_from_text("topk:1000"), (SelectionSpec{.selection = SelectionId::kTopK, .k = 1'000}));
  EXPECT_EQ(selection_from_text("topk:1"), (SelectionSpec{.selection = SelectionId::kTopK, .density = 1}));
  EXPECT_EQ(selection_from_text("threshold:0.5"),
            (SelectionSpec{.selection = SelectionId::kThreshold, .threshold = 0.5}));
  EXPECT_EQ(selection_from_text("threshold_reuse:0.1:8"),
            (SelectionSpec{.selection = SelectionId::kThresholdReuse, .density = 0.1, .period = 8}));
  EXPECT_EQ(selection_from_text("bucket_topk:0.1:64"),
            (SelectionSpec{.selection = SelectionId::kBucketTopK, .density = 0.1, .bucket_size = 64}));
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
  EXPECT_EQ(reselect_from_text("none").value().spec, protocol::ReselectSpec{});
  const auto parsed = reselect_from_text("topk:0.02:4");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->spec.reselect, protocol::Reselect::kTopK);
  EXPECT_EQ(parsed->spec.density, 0.02);
  EXPECT_EQ(parsed->spec.threshold_period, 4u);
  for (const char* bad : {"", "topk", "threshold:1", "topk:0", "topk:0.1:0", "topk:0.1:2:3"})
    EXPECT_FALSE(reselect_from_text(bad).has_value()) << bad;
}

TEST(Options, APeriodThatTheTextLeavesOutIsMarked) {
  JobDraft draft = draft_of(JobConfig{});
  std::vector<Option> options = options_of(draft);
  Option& reselect = option_named(options, "reselect");
  EXPECT_TRUE(draft.period_chosen);
  const std::pair<const char*, bool> cases[] = {
      {"topk:0.02:4", false}, {"topk:0.02", true}, {"topk:0.02:1", false}, {"none", true}};
  for (const auto& [text, chosen] : cases) {
    ASSERT_TRUE(reselect.set(text)) << text;
    EXPECT_EQ(draft.period_chosen, chosen) << text;
  }
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
  testing::SessionOptions job = good_job();
  job.contributions.unbiased = true;
  job.select = Selection::all();
  job.codec_up = Codec(index::gap, value::qsgd(4));
  EXPECT_NE(options_refusal(job).find("set codec_error drop"), std::string::npos) << options_refusal(job);
  job.contributions.codec_error = CodecError::kDrop;
  const auto spec = job_spec_of(job, job, kOptionsTensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_TRUE(spec->unbiased);
  job.contributions.clip = -1;
  EXPECT_NE(options_refusal(job).find("clip is -1"), std::string::npos) << options_refusal(job);
}

TEST(Options, AnOutputLayerIsSelectedFromAndNotQuantized) {
  testing::SessionOptions job = good_job();
  job.select = Selection::by_size(0.001).one_sign().dense_first(5);
  job.codec_up = Codec(index::bloom_p1(0.1), value::sign_mean);
  job.codec_down = Codec(index::gap, value::qsgd(8));
  job.contributions.codec_error = CodecError::kDrop;
  const std::vector<TensorOptions> tensors = {{.name = "hidden", .dimension = 100'000},
                                              {.name = "softmax", .dimension = 100'000, .output_layer = true},
                                              {.name = "own",
                                               .dimension = 100'000,
                                               .select = Selection::trimmed(0.01).one_sign(),
                                               .codec_up = Codec(index::raw, value::qsgd(4)),
                                               .output_layer = true}};
  const auto spec = job_spec_of(job, job, tensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_FALSE(spec->tensors[0].select || spec->tensors[0].codec_up || spec->tensors[0].codec_down);
  EXPECT_EQ(*spec->tensors[1].select, selection_from_text("by_size:0.001:dense=5"));
  EXPECT_EQ(*spec->tensors[1].codec_up, without_loss(spec->codec_up));
  EXPECT_EQ(*spec->tensors[1].codec_down, without_loss(spec->codec_down));
  EXPECT_EQ(codec_text(*spec->tensors[1].codec_down), "gap");
  EXPECT_EQ(*spec->tensors[2].select, selection_from_text("trimmed:0.01"));
  EXPECT_EQ(*spec->tensors[2].codec_up, codec_from_text("raw+raw"));
}

TEST(Options, ParticipantsDrawAtLeastOneWorker) {
  testing::SessionOptions job = good_job();
  const std::vector<TensorOptions> tensors = {{.name = "w", .dimension = 1'000}};
  for (const uint32_t drawn : {0U, 1U}) {
    job.consistency = Participants{.drawn = drawn, .decision = StepDecision::deadline(std::chrono::milliseconds(70))};
    EXPECT_EQ(job_spec_of(job, job, tensors).has_value(), drawn == 1) << drawn;
  }
}

TEST(Options, EveryFieldReachesTheSpecification) {
  testing::SessionOptions job = good_job();
  job.workers = 3;
  job.workers_min = 2;
  job.select = Selection::top_k(Amount::count(10));
  job.reselect = Reselect::top_k(Amount::count(20), 5);
  job.codec_up = Codec(index::raw);
  job.codec_down = Codec(index::bitmap);
  job.updates.combine = Combine::kWeightedMean;
  job.contributions.codec_error = CodecError::kDrop;
  job.contributions.non_finite = NonFinite::kDropAndCount;
  job.consistency =
      Participants{.drawn = 3, .decision = StepDecision::quorum(2).and_deadline(std::chrono::milliseconds(70))};
  job.liveness.dead_after = std::chrono::milliseconds(5'000);
  job.liveness.heartbeat = std::chrono::milliseconds(500);
  job.liveness.exchange_timeout = std::chrono::milliseconds(50);
  job.seed = 9;
  job.momentum = millrace::Momentum::nesterov(0.75).unmasked();
  job.contributions.clip = 2.5;
  job.layout.parts_per_shard = 4;
  job.layout.fuse_below = 10;
  job.guarantees.audit = true;
  job.store = Store{optimizer::Adagrad{0.5}};
  job.store->begin = StoreBegin::kWorker;
  const auto spec = job_spec_of(
      job, job,
      std::vector<TensorOptions>{{.name = "w", .dimension = 1'000, .priority = 3, .select = Selection::all()}});
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
  EXPECT_EQ(spec->deadline.count(), 70u);
  EXPECT_EQ(spec->participants, 3u);
  EXPECT_EQ(spec->dead_after.count(), 5'000u);
  EXPECT_EQ(spec->heartbeat.count(), 500u);
  EXPECT_EQ(spec->exchange_timeout.count(), 50u);
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

TEST(Options, ARefusalNamesTheInvalidOption) {
  testing::SessionOptions job = good_job();
  job.codec_up = Codec(index::gap, value::qsgd(9));
  EXPECT_NE(options_refusal(job).find("codec_up"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.store = Store{optimizer::Adam{.rate = -1}};
  EXPECT_NE(options_refusal(job).find("store: adam: rate"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.worker = 1;
  EXPECT_NE(options_refusal(job).find("worker 1 of 1 workers"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.shards.clear();
  EXPECT_NE(options_refusal(job).find("no shards"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.liveness.dead_after = std::chrono::milliseconds(-1);
  EXPECT_NE(options_refusal(job).find("dead_after is -1 ms"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.reconnect_after_max = std::chrono::milliseconds(0);
  EXPECT_NE(options_refusal(job).find("reconnect_after_max: '0ms': it takes 1ms to"), std::string::npos);
  job = good_job();
  job.resend_after = std::chrono::milliseconds(0);
  EXPECT_NE(options_refusal(job).find("resend_after: '0ms': it takes 1ms to"), std::string::npos);
  job = good_job();
  job.shard_silence = std::chrono::milliseconds(4'000);
  EXPECT_EQ(options_refusal(job),
            "shard_silence 4s with heartbeat 1s: a silent connection is replaced after 4s, and the session would end "
            "first; raise shard_silence or lower heartbeat");
  job.shard_silence = std::chrono::milliseconds(4'001);
  EXPECT_TRUE(job_spec_of(job, job, kOptionsTensors).has_value());
  job.liveness.heartbeat = std::chrono::milliseconds(1);
  job.shard_silence = std::chrono::milliseconds(2'000);
  EXPECT_NE(options_refusal(job).find("replaced after 2s"), std::string::npos) << options_refusal(job);
  job.shard_silence = std::chrono::milliseconds(2'001);
  EXPECT_TRUE(job_spec_of(job, job, kOptionsTensors).has_value());
  job = good_job();
  job.link_rate = -1;
  EXPECT_NE(options_refusal(job).find("link_rate: '-1': it takes 0bit to"), std::string::npos) << options_refusal(job);
  job.link_rate = std::nan("");
  EXPECT_NE(options_refusal(job).find("link_rate: 'nan': it takes 0bit to"), std::string::npos) << options_refusal(job);
  job = good_job();
  job.resend_after = std::chrono::hours(24 * 365);
  EXPECT_NE(options_refusal(job).find("resend_after: '31536000000ms': it takes 1ms to 24h"), std::string::npos)
      << options_refusal(job);
  EXPECT_NE(options_refusal(good_job(), {{.name = "v", .dimension = 5, .select = Selection::top_k(2.0)}})
                .find("tensor 'v': select"),
            std::string::npos);
  EXPECT_FALSE(options_refusal(good_job(), {}).empty()) << "a job without tensors";
  EXPECT_FALSE(options_refusal(good_job(), {{.name = "v", .dimension = 0}}).empty());
}

TEST(Options, AGridOfAJobThatHasNoneIsRefused) {
  testing::SessionOptions job = good_job();
  job.grid = Grid{4096, -9};
  EXPECT_NE(options_refusal(job).find("grid belongs to path switch and reproducible jobs"), std::string::npos);
  job.guarantees.reproducible = true;
  const auto spec = job_spec_of(job, job, kOptionsTensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_EQ(spec->grid, (Grid{4096, -9}));
}

TEST(Options, ASwitchPathsFieldsReachTheSpecification) {
  testing::SessionOptions job = good_job();
  EXPECT_EQ(job_spec_of(job, job, kOptionsTensors)->path, protocol::Path::kServer);
  job.path = millrace::SwitchPath{.address = "192.0.2.7:7600",
                                  .job = 9,
                                  .slots = 8,
                                  .lanes = 2,
                                  .packet_bytes = 8972,
                                  .codec = SwitchCodec{SwitchIndex::kBitmap, SwitchValue::kQsgd8},
                                  .return_after = std::chrono::milliseconds(700)};
  job.grid = Grid{4096, -9};
  std::vector<TensorOptions> tensors = kOptionsTensors;
  tensors[0].dimension = 8'192;  // a window for each lane
  const auto spec = job_spec_of(job, job, tensors);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_EQ(spec->path, protocol::Path::kSwitch);
  protocol::SwitchSpec expected;
  expected.address = "192.0.2.7:7600";
  expected.job = 9;
  expected.slots = 8;
  expected.lanes = 2;
  expected.packet_bytes_max = 8972;
  expected.index = protocol::WindowIndexCodec::kBitmap;
  expected.value = protocol::WindowValueCodec::kQsgd8;
  expected.return_after = std::chrono::milliseconds(700);
  EXPECT_EQ(spec->switch_path, expected);
  EXPECT_EQ(spec->grid, (protocol::GridSpec{.block_indices = 4096, .exponent_initial = -9}));
}

TEST(Options, AWorkersRackIsItsOwnAndInNoSpecification) {
  testing::SessionOptions job = good_job();
  job.path = millrace::SwitchPath{.address = "192.0.2.7:7600", .job = 9};
  const auto alone = job_spec_of(job, job, kOptionsTensors);
  job.rack = "[2001:db8::1]:7700";
  const auto in_rack = job_spec_of(job, job, kOptionsTensors);
  ASSERT_TRUE(in_rack.has_value()) << in_rack.error().message;
  EXPECT_EQ(*in_rack, *alone) << "workers of different racks are of one job";
  job.path = ServerPath{};
  EXPECT_NE(options_refusal(job).find("rack belongs to path switch"), std::string::npos) << options_refusal(job);
}

TEST(Options, AReproducibleJobThatNamesNoGridHasTheSameOneOnEveryPath) {
  for (const bool by_switch : {false, true}) {
    for (const uint32_t packet_bytes : {1200U, 1472U, 8972U}) {
      for (const uint32_t workers : {1U, 64U}) {
        testing::SessionOptions job = good_job();
        if (by_switch)
          job.path = millrace::SwitchPath{.address = "192.0.2.7:7600", .job = 3, .packet_bytes = packet_bytes};
        job.workers = workers;
        job.worker = 0;
        job.guarantees.reproducible = true;
        const auto spec = job_spec_of(job, job, kOptionsTensors);
        ASSERT_TRUE(spec) << spec.error().message;
        EXPECT_EQ(spec->grid, (protocol::GridSpec{.block_indices = 4096, .exponent_initial = -20}));
        EXPECT_TRUE(!by_switch || spec->switch_path.value == protocol::WindowValueCodec::kFixed32);
        job.guarantees.reproducible = false;
        const auto other = job_spec_of(job, job, kOptionsTensors);
        ASSERT_TRUE(other) << other.error().message;
        EXPECT_EQ(other->grid, protocol::GridSpec{});
        EXPECT_EQ(other->switch_path.value, protocol::WindowValueCodec::kFixed16);
      }
    }
  }
}

TEST(Options, ASwitchsAddressIsNeeded) {
  testing::SessionOptions job = good_job();
  job.path = millrace::SwitchPath{.address = "", .job = 3};
  EXPECT_NE(options_refusal(job).find("needs the switch's address"), std::string::npos) << options_refusal(job);
}

}  // namespace
}  // namespace millrace::worker
