// Measures the loss in a model's quality by sparse exchange: logistic regression on w8a through real shards. Gradients
// are selected, quantized and re-selected; the reference is the dense exchange of the same batches.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kernels/base/random.h"
#include "millrace/millrace.h"
#include "tests/integration/cluster_processes.h"
#include "tests/support/tree_paths.h"
#include "tests/worker/session_options.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/model/linear_model.h"

namespace millrace::testing {
namespace {

constexpr uint32_t kWorkers = 4;
constexpr uint64_t kSteps = 3'000;
constexpr size_t kBatchRows = 64;
constexpr float kLearningRate = 4.0f;
constexpr uint64_t kHeldOutEvery = 5;

std::string data_path() {
  const char* shared = std::getenv("MILLRACE_SHARED");
  return (shared != nullptr ? std::string(shared) : source_file("../shared")) + "/data/w8a.svm.gz";
}

/// Rows whose number leaves `remainder` (or, with `others`, anything else) modulo kHeldOutEvery.
enum class Rows : uint8_t { kTraining = 1, kHeldOut = 2 };

training::Dataset rows_of(const training::Dataset& data, Rows which) {
  training::Dataset chosen;
  chosen.dimension = data.dimension;
  chosen.label_pair = data.label_pair;
  for (size_t row = 0; row < data.rows(); ++row) {
    if ((row % kHeldOutEvery == 0) != (which == Rows::kHeldOut)) continue;
    const training::RowView view = data.row(row);
    chosen.indices.insert(chosen.indices.end(), view.indices.begin(), view.indices.end());
    chosen.values.insert(chosen.values.end(), view.values.begin(), view.values.end());
    chosen.row_begin.push_back(chosen.indices.size());
    chosen.labels.push_back(data.labels[row]);
  }
  return chosen;
}

struct Trained {
  training::LinearModel model;
  uint64_t entries_sent = 0;
};

class Training : public ClusterProcesses {
 protected:
  /// Trains every worker on its own rows; all end with equal weights. Returns those of worker 0.
  Trained train(const training::Dataset& data, millrace::testing::SessionOptions job) {
    job.shards = addresses_;
    job.workers = kWorkers;
    job.updates.combine = Combine::kMean;
    job.liveness.dead_after = std::chrono::milliseconds(60'000);
    std::vector<Trained> trained(kWorkers, Trained{training::LinearModel(training::Loss::kLogistic, data.dimension)});
    std::vector<std::string> errors(kWorkers);
    std::vector<std::thread> threads;
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      threads.emplace_back([&, worker] {
        try {
          train_one(data, job, worker, trained[worker]);
        } catch (const millrace::JobError& error) {
          errors[worker] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (uint32_t worker = 1; worker < kWorkers; ++worker) {
      const auto ours = trained[0].model.values();
      const auto theirs = trained[worker].model.values();
      EXPECT_TRUE(std::equal(ours.begin(), ours.end(), theirs.begin())) << "worker " << worker << " has other weights";
    }
    return trained[0];
  }

 private:
  static void train_one(const training::Dataset& data, millrace::testing::SessionOptions job, uint32_t worker,
                        Trained& trained) {
    job.worker = worker;
    training::LinearModel& model = trained.model;
    millrace::TensorOptions tensor;
    tensor.name = "model";
    tensor.dimension = model.tensor_dimension();
    auto session = millrace::Session::connect(job, job, {tensor});
    session->attach_weights(0, model.values(), -kLearningRate, millrace::ApplyWhen::kOnAwait);
    RandomSequence random(random_key(11, worker));
    std::vector<uint32_t> batch(kBatchRows);
    for (uint64_t step = 0; step < kSteps; ++step) {
      // A tenth of the steps at the full rate, then falling as 1/t.
      const float progress = static_cast<float>(step) / static_cast<float>(kSteps);
      session->set_scale(0, -kLearningRate * std::min(1.0f, 0.1f / std::max(progress, 0.1f)));
      for (uint32_t& row : batch) {
        row = static_cast<uint32_t>(random.next_below(data.rows() / kWorkers) * kWorkers + worker);
      }
      const training::BatchGradient gradient = training::batch_gradient(model, data, batch);
      session->push_sparse(0, gradient.gradient.indices, gradient.gradient.values);
      session->await(0, step);
    }
    session->finish();
    trained.entries_sent = session->stats().tensors[0].entries_sent;
  }
};

TEST_F(Training, SparseLossyExchangeReachesTheQualityOfTheDenseOne) {
  if (!std::filesystem::exists(data_path()))
    GTEST_SKIP() << data_path() << " is not there; MILLRACE_SHARED names the folder of data/";
  const auto data = training::read_libsvm(data_path(), {});
  ASSERT_TRUE(data.has_value()) << data.error().message;
  const training::Dataset training = rows_of(*data, Rows::kTraining);
  const training::Dataset held_out = rows_of(*data, Rows::kHeldOut);
  ASSERT_NO_FATAL_FAILURE(start_shards(2));

  millrace::testing::SessionOptions dense;
  dense.name = "dense";
  dense.select = Selection::all();
  const Trained by_dense = train(training, dense);

  millrace::testing::SessionOptions sparse;
  sparse.name = "sparse";
  sparse.select = Selection::top_k(0.1);
  sparse.reselect = Reselect::top_k(0.2);
  sparse.codec_up = Codec(index::gap, value::qsgd(8));
  const Trained by_sparse = train(training, sparse);

  const training::Evaluation reference = training::evaluate(by_dense.model, held_out);
  const training::Evaluation result = training::evaluate(by_sparse.model, held_out);
  std::printf(
      "held out, %llu rows: log-loss %.5f dense, %.5f sparse; average precision %.4f dense, %.4f sparse; entries sent "
      "%llu, %llu\n",
      static_cast<unsigned long long>(result.rows), reference.log_loss, result.log_loss, reference.average_precision,
      result.average_precision, static_cast<unsigned long long>(by_dense.entries_sent),
      static_cast<unsigned long long>(by_sparse.entries_sent));
  // Trained at all: the share of positives alone gives 0.13 and 0.03.
  EXPECT_LT(reference.log_loss, 0.08);
  EXPECT_GT(reference.average_precision, 0.6);
  EXPECT_LE(result.log_loss, reference.log_loss * 1.01);
  EXPECT_GE(result.average_precision, reference.average_precision * 0.995);
  EXPECT_LT(by_sparse.entries_sent * 2, by_dense.entries_sent);
}

}  // namespace
}  // namespace millrace::testing
