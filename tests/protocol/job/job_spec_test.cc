#include "protocol/job/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "protocol/base/limits.h"
#include "tests/protocol/example_spec.h"

namespace millrace::protocol {
namespace {

struct Change {
  const char* field;
  std::function<void(JobSpec&)> make;
};

std::vector<Change> every_change_of_the_job() {
  return {
      {"name", [](JobSpec& s) { s.name = "other"; }},
      {"workers 4 here, 5 there", [](JobSpec& s) { s.workers = 5; }},
      {"workers_min", [](JobSpec& s) { s.workers_min = 3; }},
      {"mode synchronous here, asynchronous there", [](JobSpec& s) { s.mode = Mode::kAsynchronous; }},
      {"staleness", [](JobSpec& s) { s.staleness = 1; }},
      {"quorum", [](JobSpec& s) { s.quorum = 1; }},
      {"deadline 0 ms here, 1 ms there", [](JobSpec& s) { s.deadline = std::chrono::milliseconds(1); }},
      {"participants", [](JobSpec& s) { s.participants = 1; }},
      {"apply_after_acks 1 here, 2 there", [](JobSpec& s) { s.apply_after_acks = 2; }},
      {"combine weighted_mean here, mean there", [](JobSpec& s) { s.combine = Combine::kMean; }},
      {"select: topk here, none there", [](JobSpec& s) { s.select.selection = SelectionId::kNone; }},
      {"select: density 0.01 here, 0.02 there", [](JobSpec& s) { s.select.density = 0.02; }},
      {"select: k", [](JobSpec& s) { s.select.k = 7; }},
      {"select: threshold", [](JobSpec& s) { s.select.threshold = 1; }},
      {"select: period", [](JobSpec& s) { s.select.period = 1; }},
      {"select: bucket_size", [](JobSpec& s) { s.select.bucket_size = 1; }},
      {"select: variance", [](JobSpec& s) { s.select.variance = 1; }},
      {"select: iterations", [](JobSpec& s) { s.select.iterations = 4; }},
      {"select: alternate_signs off here, on there", [](JobSpec& s) { s.select.alternate_signs = true; }},
      {"select: warm_up none here, dense there", [](JobSpec& s) { s.select.warm_up = WarmUp::kDense; }},
      {"select: warm_up_steps", [](JobSpec& s) { s.select.warm_up_steps = 4; }},
      {"reselect: topk here, none there", [](JobSpec& s) { s.reselect.reselect = Reselect::kNone; }},
      {"reselect: density", [](JobSpec& s) { s.reselect.density = 0.5; }},
      {"reselect: k", [](JobSpec& s) { s.reselect.k = 7; }},
      {"reselect: threshold_period", [](JobSpec& s) { s.reselect.threshold_period = 7; }},
      {"codec_up: automatic off here, on there", [](JobSpec& s) { s.codec_up.automatic = true; }},
      {"codec_up: sparsity_multiplier", [](JobSpec& s) { s.codec_up.sparsity_multiplier = 1; }},
      {"codec_up: index gap here, raw there", [](JobSpec& s) { s.codec_up.index = IndexCodecId::kRaw; }},
      {"codec_up: value qsgd here, raw there", [](JobSpec& s) { s.codec_up.value = ValueCodecId::kRaw; }},
      {"codec_up: bloom_false_positive_rate", [](JobSpec& s) { s.codec_up.bloom_false_positive_rate = 0.1; }},
      {"codec_up: qsgd_bits", [](JobSpec& s) { s.codec_up.qsgd_bits = 2; }},
      {"codec_up: bucket_size", [](JobSpec& s) { s.codec_up.bucket_size = 2; }},
      {"codec_up: qsgd_scale_max on here, off there", [](JobSpec& s) { s.codec_up.qsgd_scale_max = false; }},
      {"codec_down: index gap here, raw there", [](JobSpec& s) { s.codec_down.index = IndexCodecId::kRaw; }},
      {"codec_error retain here, drop there", [](JobSpec& s) { s.codec_error = CodecError::kDrop; }},
      {"non_finite refuse here, drop there", [](JobSpec& s) { s.non_finite = NonFinite::kDropAndCount; }},
      {"unbiased off here, on there", [](JobSpec& s) { s.unbiased = true; }},
      {"momentum: correction here, nesterov there", [](JobSpec& s) { s.momentum.momentum = Momentum::kNesterov; }},
      {"momentum: factor 0.75 here, 0.5 there", [](JobSpec& s) { s.momentum.factor = 0.5; }},
      {"momentum: masked on here, off there", [](JobSpec& s) { s.momentum.masked = false; }},
      {"clip 8 here, 4 there", [](JobSpec& s) { s.clip = 4; }},
      {"dead_after", [](JobSpec& s) { s.dead_after = std::chrono::milliseconds(1); }},
      {"heartbeat", [](JobSpec& s) { s.heartbeat = std::chrono::milliseconds(1); }},
      {"exchange_timeout", [](JobSpec& s) { s.exchange_timeout = std::chrono::milliseconds(1); }},
      {"seed", [](JobSpec& s) { s.seed = 1; }},
      {"parts_per_shard", [](JobSpec& s) { s.parts_per_shard = 1; }},
      {"fuse_below", [](JobSpec& s) { s.fuse_below = 1; }},
      {"audit off here, on there", [](JobSpec& s) { s.audit = true; }},
      {"history off here, on there", [](JobSpec& s) { s.history = true; }},
      {"reproducible", [](JobSpec& s) { s.reproducible = true; }},
      {"initial_weights own here, first there", [](JobSpec& s) { s.initial_weights = InitialWeights::kFirst; }},
      {"store: adagrad here, adam there", [](JobSpec& s) { s.store.optimizer.optimizer = Optimizer::kAdam; }},
      {"store: rate 0.001 here, 0.5 there", [](JobSpec& s) { s.store.optimizer.rate = 0.5; }},
      {"store: momentum", [](JobSpec& s) { s.store.optimizer.momentum = 0.5; }},
      {"store: decay", [](JobSpec& s) { s.store.optimizer.decay = 0.5; }},
      {"store: epsilon", [](JobSpec& s) { s.store.optimizer.epsilon = 0.5; }},
      {"store_begin worker here, saved there", [](JobSpec& s) { s.store.begin = StoreBegin::kSaved; }},
      {"recipe: lr=1 here, lr=0.01 there", [](JobSpec& s) { s.recipe = "program=train lr=0.01 l2=0 batch=64"; }},
      {"recipe: l2=0 here, no l2 there", [](JobSpec& s) { s.recipe = "program=train lr=1 batch=64"; }},
      {"recipe: no seed here, seed=2 there", [](JobSpec& s) { s.recipe += " seed=2"; }},
      {"recipe: program=train here, no program there", [](JobSpec& s) { s.recipe.clear(); }},
      {"recipe: the same words in another order", [](JobSpec& s) { s.recipe = "lr=1 program=train l2=0 batch=64"; }},
  };
}

std::vector<Change> every_change_of_tensors() {
  return {
      {"tensor 0: name", [](JobSpec& s) { s.tensors[0].name = "other"; }},
      {"tensor 'bias': dimension 64 here, 65 there", [](JobSpec& s) { s.tensors[1].dimension = 65; }},
      {"tensor 'bias': value_type f32 here, f64 there", [](JobSpec& s) { s.tensors[1].value_type = ValueType::kF64; }},
      {"tensor 'bias': priority 0 here, 1 there", [](JobSpec& s) { s.tensors[1].priority = 1; }},
      {"tensor 'bias': select the job's here, its own there",
       [](JobSpec& s) { s.tensors[1].select = SelectionSpec{}; }},
      {"tensor 'embedding.weight': select: k 500 here, 400 there", [](JobSpec& s) { s.tensors[0].select->k = 400; }},
      {"tensor 'bias': reselect its own here, the job's there", [](JobSpec& s) { s.tensors[1].reselect.reset(); }},
      {"tensor 'bias': codec_up: index bitmap here, raw there",
       [](JobSpec& s) { s.tensors[1].codec_up->index = IndexCodecId::kRaw; }},
      {"tensor 'embedding.weight': codec_down its own", [](JobSpec& s) { s.tensors[0].codec_down.reset(); }},
      {"2 tensors here, 3 there", [](JobSpec& s) { s.tensors.push_back({.name = "new", .dimension = 1}); }},
      {"2 tensors here, 1 there", [](JobSpec& s) { s.tensors.pop_back(); }},
  };
}

/// Returns one change for every field that there is, and the name that the difference must contain.
std::vector<Change> every_change() {
  std::vector<Change> changes = every_change_of_the_job();
  for (Change& change : every_change_of_tensors()) changes.push_back(std::move(change));
  return changes;
}

TEST(JobSpecBytes, GoRoundTrip) {
  const auto decoded = decode_job_spec(encode_job_spec(example_spec()));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, example_spec());
}

TEST(JobSpecBytes, EveryFieldChangesTheBytesAndTheHash) {
  std::set<uint64_t> hashes = {job_spec_hash(example_spec())};
  for (const Change& change : every_change()) {
    JobSpec spec = example_spec();
    change.make(spec);
    EXPECT_TRUE(hashes.insert(job_spec_hash(spec)).second) << change.field;
  }
}

TEST(JobSpecBytes, EqualSpecificationsGiveEqualBytes) {
  JobSpec negative_zero = example_spec();
  negative_zero.select.threshold = -0.0;
  ASSERT_EQ(negative_zero, example_spec());
  EXPECT_EQ(encode_job_spec(negative_zero), encode_job_spec(example_spec()));
}

TEST(JobSpecBytes, EveryTruncationIsMalformed) {
  const ByteBuffer bytes = encode_job_spec(example_spec());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = decode_job_spec(ByteSpan(bytes).first(size));
    ASSERT_FALSE(decoded) << size;
    EXPECT_EQ(decoded.error().code, ErrorCode::kMalformed) << size;
  }
}

TEST(JobSpecBytes, SingleByteCorrupted_RefusedOrAnotherSpecWithThoseBytes) {
  const ByteBuffer bytes = encode_job_spec(example_spec());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint8_t flip : std::initializer_list<uint8_t>{0x01, 0x10, 0x80, 0xFF}) {
      ByteBuffer damaged = bytes;
      damaged[at] ^= flip;
      const auto decoded = decode_job_spec(damaged);
      if (decoded) {
        EXPECT_EQ(encode_job_spec(*decoded), damaged)
            << "every form that is accepted is the canonical one, byte " << at;
      }
    }
  }
}

TEST(JobSpecBytes, ARecipeMayBeLongerThanANameAndNoLongerThanItsLimit) {
  JobSpec spec = example_spec();
  spec.recipe = std::string(kRecipeBytesMax, 'r');
  EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
  EXPECT_EQ(decode_job_spec(encode_job_spec(spec)).value(), spec);
  spec.recipe += 'r';
  EXPECT_THAT(validate(spec).error().message, testing::HasSubstr("recipe: 4097 bytes"));
  EXPECT_EQ(decode_job_spec(encode_job_spec(spec)).error().code, ErrorCode::kMalformed);
  spec.recipe = "lr=1\nl2=0";
  EXPECT_EQ(validate(spec).error().code, ErrorCode::kInvalidArgument) << "no control characters";
}

TEST(JobSpecBytes, BytesAfterTheEndAreMalformed) {
  ByteBuffer bytes = encode_job_spec(example_spec());
  bytes.push_back(0);
  EXPECT_EQ(decode_job_spec(bytes).error().code, ErrorCode::kMalformed);
}

TEST(JobSpecBytes, AnotherVersionIsUnsupported) {
  ByteBuffer bytes = encode_job_spec(example_spec());
  const int own = bytes[0];
  for (const int other : {own - 1, own + 1}) {
    bytes[0] = static_cast<uint8_t>(other);
    EXPECT_EQ(decode_job_spec(bytes).error().code, ErrorCode::kUnsupported) << other;
  }
}

TEST(JobSpecBytes, AnUnknownNumberOfAnEnumIsUnsupportedAndNamed) {
  JobSpec spec = example_spec();
  spec.mode = static_cast<Mode>(99);
  const auto decoded = decode_job_spec(encode_job_spec(spec));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(decoded.error().message, ::testing::AllOf(::testing::HasSubstr("mode"), ::testing::HasSubstr("99")));
}

TEST(JobSpecBytes, NumbersThatAreNotFiniteAreMalformed) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    JobSpec spec = example_spec();
    spec.select.density = value;
    EXPECT_EQ(decode_job_spec(encode_job_spec(spec)).error().code, ErrorCode::kMalformed);
  }
}

TEST(JobSpecBytes, ACountOfTensorsThatTheBytesCannotHoldAllocatesNothing) {
  JobSpec empty = example_spec();
  empty.tensors.clear();
  ByteBuffer bytes = encode_job_spec(empty);
  for (size_t i = 1; i <= 4; ++i) bytes[bytes.size() - i] = 0xFF;
  EXPECT_EQ(decode_job_spec(bytes).error().code, ErrorCode::kLimitExceeded);
  bytes[bytes.size() - 1] = bytes[bytes.size() - 2] = 0;
  EXPECT_EQ(decode_job_spec(bytes).error().code, ErrorCode::kMalformed);
}

TEST(JobSpecBytes, ASpecificationOverTheLimitIsRefused) {
  EXPECT_EQ(decode_job_spec(ByteBuffer(kJobSpecBytesMax + 1)).error().code, ErrorCode::kLimitExceeded);
}

TEST(FirstDifference, NamesTheFieldAndBothValuesForEveryField) {
  for (const Change& change : every_change()) {
    JobSpec spec = example_spec();
    change.make(spec);
    EXPECT_THAT(first_difference(example_spec(), spec), ::testing::HasSubstr(change.field));
  }
}

TEST(FirstDifference, EqualSpecificationsHaveNoDifference) {
  EXPECT_EQ(first_difference(example_spec(), example_spec()), "no difference");
}

}  // namespace
}  // namespace millrace::protocol
