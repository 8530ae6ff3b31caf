#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/base/random.h"
#include "tests/worker/core/returning_core.h"

/// The audit of a worker: it must detect mass that a test loses or doubles on purpose, and must not report anything
/// else.
namespace millrace::testing {
namespace {

using protocol::Contribution;
using worker::AuditSums;
using worker::Bucket;
using worker::PartAccounts;

constexpr uint64_t kLength = 40'000;

/// A bucket and its contributions in flight, without a session: the test may forget or repeat a contribution.
struct AuditedBucket {
  explicit AuditedBucket(const std::function<void(protocol::JobSpec&)>& change = [](protocol::JobSpec&) {}) {
    spec.name = "audit";
    spec.tensors.push_back({.name = "w", .dimension = kLength});
    spec.parts_per_shard = 2;
    spec.audit = true;
    change(spec);
    layout = protocol::plan_layout(spec, 1);
    bucket = std::make_unique<Bucket>(spec, layout.buckets.at(0), layout.parts);
    in_flight.resize(layout.parts.size());
  }

  Stream gradient(double density, uint64_t round) const {
    RandomSequence random(random_key(5, round));
    Stream stream = Stream::empty(kLength);
    for (uint32_t index = 0; index < kLength; ++index) {
      if (random.next_unit() >= density) continue;
      stream.indices.push_back(index);
      stream.values.push_back(static_cast<float>(random.next_normal()));
    }
    return stream;
  }

  void push(const Stream& pushed, bool dense, uint64_t step, float weight = 1) {
    if (dense) {
      const Stream whole = to_dense(pushed.view());
      ASSERT_TRUE(bucket->slot(0).add_dense(whole.values, weight));
    } else {
      ASSERT_TRUE(bucket->slot(0).add_sparse(pushed.indices, pushed.values, weight));
    }
    ASSERT_TRUE(bucket->select(step));
    EncodeOptions options;
    options.spec = spec.codec_up;
    options.random = random_key(9, step);
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      auto coded = bucket->code(at, options);
      ASSERT_TRUE(coded);
      in_flight[at].push_back(coded->sent.copy());
    }
  }

  /// Returns the missing mass over all parts, and the possible error of f64.
  std::pair<double, double> missing() {
    double missing = 0;
    double uncertainty = 0;
    for (size_t at = 0; at < layout.parts.size(); ++at) {
      PartAccounts books = bucket->audit(at);
      books.entered.subtract(books.in_residual);
      books.entered.subtract(books.lost);
      for (const auto* list : {&in_flight[at], &carried}) {
        if (list == &carried && at != 0) continue;
        for (const Stream& stream : *list) books.entered.subtract(mass_of(stream.values));
      }
      missing += books.entered.value();
      uncertainty += books.entered.uncertainty();
    }
    return {missing, uncertainty};
  }
  void expect_balance(const std::string& when) {
    const auto [left, uncertainty] = missing();
    EXPECT_LE(std::abs(left), uncertainty) << when;
    EXPECT_LT(uncertainty, 1e-4) << when << ": a typical entry is 1";
  }

  protocol::JobSpec spec;
  protocol::JobLayout layout;
  std::unique_ptr<Bucket> bucket;
  std::vector<std::vector<Stream>> in_flight;  ///< by part
  std::vector<Stream> carried;                 ///< by updates, any part
};

/// Answers a contribution: half of the sent entries are returned, the other half was carried.
void audit_answer(AuditedBucket& job, size_t at) {
  Stream sent = std::move(job.in_flight[at].back());
  job.in_flight[at].pop_back();
  Stream back = Stream::empty(sent.dimension);
  Stream gone = Stream::empty(sent.dimension);
  if (sent.dense) sent = to_sparse(sent.view());
  for (size_t i = 0; i < sent.indices.size(); ++i) {
    Stream& to = i % 2 == 0 ? back : gone;
    to.indices.push_back(sent.indices[i]);
    to.values.push_back(sent.values[i]);
  }
  job.bucket->give_back(at, std::move(back));
  job.carried.push_back(std::move(gone));
}

TEST(Audit, RealGradientsBalanceInEveryKindOfJob) {
  using Change = std::function<void(protocol::JobSpec&)>;
  const auto selects = [](protocol::JobSpec& spec) { spec.select = {.selection = SelectionId::kTopK, .k = 2'000}; };
  const auto draws = [](protocol::JobSpec& spec) {
    spec.unbiased = true;
    spec.codec_error = protocol::CodecError::kDrop;
  };
  const std::vector<std::pair<std::string, Change>> jobs = {
      {"plain", [](protocol::JobSpec&) {}},
      {"top-k", selects},
      {"qsgd, error kept",
       [&](protocol::JobSpec& spec) {
         selects(spec);
         spec.codec_up = codec_from_text("gap+qsgd4").value();
       }},
      {"qsgd, error dropped",
       [&](protocol::JobSpec& spec) {
         selects(spec);
         spec.codec_up = codec_from_text("gap+qsgd4").value();
         spec.codec_error = protocol::CodecError::kDrop;
       }},
      {"bloom",
       [&](protocol::JobSpec& spec) {
         selects(spec);
         spec.codec_up = codec_from_text("bloom+raw").value();
       }},
      {"momentum",
       [&](protocol::JobSpec& spec) {
         selects(spec);
         spec.momentum = {.momentum = protocol::Momentum::kCorrection, .factor = 0.9};
       }},
      {"random-k", [](protocol::JobSpec& spec) { spec.select = {.selection = SelectionId::kRandom, .k = 2'000}; }},
      {"unbiased, drawn by size",
       [&](protocol::JobSpec& spec) {
         draws(spec);
         spec.select = {.selection = SelectionId::kGspar, .k = 500};
       }},
      {"unbiased, drawn by variance, with momentum",
       [&](protocol::JobSpec& spec) {
         draws(spec);
         spec.select = {.selection = SelectionId::kGsparClosed, .variance = 3};
         spec.momentum = {.momentum = protocol::Momentum::kCorrection, .factor = 0.9, .masked = false};
       }},
      {"unbiased, drawn without regard to size, qsgd",
       [&](protocol::JobSpec& spec) {
         draws(spec);
         spec.select = {.selection = SelectionId::kUniform, .density = 0.01};
         spec.codec_up = codec_from_text("gap+qsgd4").value();
       }},
      {"NaN dropped", [](protocol::JobSpec& spec) { spec.non_finite = protocol::NonFinite::kDropAndCount; }},
  };
  for (const auto& [name, change] : jobs) {
    for (const bool dense : {false, true}) {
      AuditedBucket job(change);
      for (uint64_t step = 0; step < 12; ++step) {
        Stream pushed = job.gradient(0.05, step);
        if (job.spec.non_finite == protocol::NonFinite::kDropAndCount) pushed.values[3] = std::nanf("");
        const float weight = step % 3 == 1 ? 0.3f : 1.0f;
        job.push(pushed, dense, step, weight);
        job.expect_balance(name + " in flight, step " + std::to_string(step));
        for (size_t at = 0; at < job.layout.parts.size(); ++at) audit_answer(job, at);
        job.expect_balance(name + " answered, step " + std::to_string(step));
      }
      // f32 rounds: it is in the books as such, and a check that did not count it would see it.
      if (name == "top-k" && dense) {
        EXPECT_GT(std::abs(job.bucket->audit(0).rounded_off.value()), 1e-9);
      }
    }
  }
}

TEST(Audit, OneEntryThatIsLostOrDoubledShowsToTheDigit) {
  for (const bool dense : {false, true}) {
    AuditedBucket job([](protocol::JobSpec& spec) { spec.select = {.selection = SelectionId::kTopK, .k = 2'000}; });
    for (uint64_t step = 0; step < 5; ++step) job.push(job.gradient(0.1, step), dense, step);
    job.expect_balance("before");
    Stream one = Stream::empty(job.in_flight[0].back().dimension);
    one.indices.push_back(7);
    one.values.push_back(0.25f);
    job.bucket->give_back(0, Stream(one));
    EXPECT_NEAR(job.missing().first, -0.25, 1e-6) << "returned, and was never sent: doubled";
    job.carried.push_back(std::move(one));
    job.carried.back().values[0] = -0.25f;
    job.expect_balance("the two make up for each other");
    const double lost = static_cast<double>(job.in_flight[1].back().values[0]);
    job.in_flight[1].back().values[0] = 0;
    EXPECT_NEAR(job.missing().first, lost, 1e-6) << "sent, and in no account: lost";
  }
}

/// give_back() of all that is in flight is forgotten, as if the session's shell dropped a contribution.
TEST(Audit, AContributionThatIsForgottenIsMissing) {
  AuditedBucket job;
  job.push(job.gradient(0.05, 1), false, 0);
  double mass = 0;
  for (const Stream& stream : job.in_flight[1]) mass += mass_of(stream.values).sum;
  job.in_flight[1].clear();
  EXPECT_NEAR(job.missing().first, mass, 1e-9);
}

class AuditedCore : public ScriptedCore {
 protected:
  void SetUp() override {
    config_.spec.audit = true;
    watch_ = Watch::kNothing;
    make_running();
  }

  /// As a shard says it: `carried` of this worker so far.
  void hear_counted(uint32_t part, uint64_t step, const std::vector<std::pair<uint32_t, float>>& entries,
                    double carried) {
    protocol::Update update = update_of(part, step);
    update.summary.workers.push_back(
        {.worker = 0, .incarnation = 1, .last_step = step, .counted_mask = 1, .entered = 0, .carried = carried});
    hear(part, update, sum_of(entries, part_dimension(part)));
  }
  AuditSums audit() { return core().audit(actions_); }
  size_t lines() const {
    return static_cast<size_t>(
        std::ranges::count_if(actions_.log, [](const LogLine& line) { return line.text.starts_with("audit:"); }));
  }
};

TEST_F(AuditedCore, TheTermsAreWhereTheMassIs) {
  push({5, 6}, {1, 4});
  AuditSums sums = audit();
  EXPECT_TRUE(sums.audits);
  EXPECT_EQ(sums.entered, 5);
  EXPECT_EQ(sums.in_flight, 5);
  EXPECT_EQ(sums.in_residual, 0);
  EXPECT_EQ(sums.imbalance, 0);
  hear_counted(0, 0, {{5, 1}, {6, 4}}, 5);
  hear_counted(1, 0, {}, 0);
  sums = audit();
  EXPECT_EQ(sums.in_flight, 0);
  EXPECT_EQ(sums.carried, 5);
  EXPECT_EQ(sums.imbalance, 0);
  EXPECT_EQ(lines(), 0u);
}

TEST_F(AuditedCore, AShardThatCarriedLessThanItWasSentIsSeen) {
  push({5, 6}, {1, 4});
  hear_counted(0, 0, {{5, 1}}, 1);  // the update says that it is the whole sum
  EXPECT_EQ(audit().imbalance, 4);
  EXPECT_EQ(lines(), 1u);
  EXPECT_EQ(audit().imbalance, 4);
  EXPECT_EQ(lines(), 1u) << "said once";
}

TEST_F(AuditedCore, AShardThatCountedTwiceIsSeen) {
  push({5, 6}, {1, 4});
  hear_counted(0, 0, {{5, 2}, {6, 8}}, 10);
  EXPECT_EQ(audit().imbalance, 5);
  EXPECT_EQ(lines(), 1u);
}

TEST_F(AuditedCore, ACountedContributionThatDoesNotNameThisWorkerIsSeen) {
  push({5}, {2});
  protocol::Update update = update_of(0, 0);
  update.contributors = {{1, 1}};
  update.summary.workers.push_back(
      {.worker = 0, .incarnation = 1, .last_step = 0, .counted_mask = 1, .entered = 2, .carried = 2});
  hear(0, update, sum_of({{5, 2}}, part_dimension(0)));
  EXPECT_EQ(audit().imbalance, 2) << "it took everything back, and the log says that it was carried";
}

TEST_F(AuditedCore, AContributionReportsTheImbalanceOfItsPart) {
  push({5}, {1});
  hear_counted(0, 0, {{5, 1}}, 2);
  hear_counted(1, 0, {}, 0);
  actions_.clear();
  push({6}, {1});
  const auto sent = take_sent<Contribution>();
  ASSERT_EQ(sent.size(), 2u);
  const auto& contribution = std::get<Contribution>(sent[0].second.body);
  EXPECT_EQ(contribution.entered, 2);
  EXPECT_EQ(contribution.lost, 0);
  EXPECT_EQ(contribution.imbalance, -1);
  EXPECT_EQ(std::get<Contribution>(sent[1].second.body).imbalance, 0);
}

TEST_F(AuditedCore, EntriesTakenFromTheResidualDoNotCountAsEntered) {
  push({5, 6}, {1, 4});
  protocol::Update update = update_of(0, 0);
  update.whole_sum = false;
  update.summary.workers.push_back(
      {.worker = 0, .incarnation = 1, .last_step = 0, .counted_mask = 1, .entered = 5, .carried = 4});
  hear(0, update, sum_of({{6, 4}}, part_dimension(0)));
  hear_counted(1, 0, {}, 0);
  EXPECT_EQ(audit().in_residual, 1);
  const auto idle = core().idle_tensor(0);
  ASSERT_TRUE(idle.has_value());
  idle->take_residual();
  const AuditSums sums = audit();
  EXPECT_EQ(sums.entered, 4);
  EXPECT_EQ(sums.in_residual, 0);
  EXPECT_EQ(sums.imbalance, 0);
}

struct AuditedReturn : ReturningCore {
  void hear_snapshot_counting(const protocol::SummaryEntry& counted, uint64_t n) {
    ByteBuffer bytes(part_dimension(0) * sizeof(float));
    protocol::Snapshot snapshot = snapshot_of(0, n);
    snapshot.payload_hash = hash64(bytes);
    snapshot.summary.workers.push_back(counted);
    hear(0, snapshot, SharedBytes::from(std::move(bytes)));
  }
};

TEST_F(AuditedReturn, SkippedStepsOfAnEarlierProcessAreNotItsOwn) {
  config_.spec.audit = true;
  watch_ = Watch::kNothing;
  make_joining(2);
  hear(0, settle_of(0, 3));  // the updates 0 to 2 are to come, and count incarnation 1
  hear(1, settle_of(1, 0));
  make_synced();
  ASSERT_EQ(core().phase(), worker::Phase::kRunning);
  lose_place();
  enter(3);
  protocol::SummaryEntry counted = counted_at(1, 2);
  counted.carried = counted.entered = 5;
  hear_snapshot_counting(counted, 3);
  protocol::Settle settle = settle_of(0, 3, Weights::kSnapshot);
  settle.counted = counted;
  hear(0, settle);
  ASSERT_EQ(core().part_steps_applied(0), 3u);
  actions_.clear();
  EXPECT_EQ(core().audit(actions_).imbalance, 0);
  EXPECT_TRUE(actions_.log.empty());
}

TEST_F(ScriptedCore, AJobThatDoesNotAskForItIsNotAudited) {
  make_running();
  push({5}, {1});
  const AuditSums sums = core().audit(actions_);
  EXPECT_FALSE(sums.audits);
  EXPECT_EQ(sums.checks, 0u);
}

}  // namespace
}  // namespace millrace::testing
