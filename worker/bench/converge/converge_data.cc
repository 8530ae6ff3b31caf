#include "worker/bench/converge/converge_data.h"

#include <cstdlib>
#include <filesystem>

#include "worker/training/data/data_debian.h"
#include "worker/training/data/data_synthetic.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/data/libsvm_writer.h"

namespace millrace::bench {

using training::LibsvmWriter;

namespace {

namespace fs = std::filesystem;
using Say = std::function<void(const std::string&)>;

constexpr size_t kHeldOutEvery = 10;
constexpr uint64_t kGeneratedRows = 20'000;
constexpr double kGeneratedNonzeros = 60;
constexpr double kGeneratedSpread = 0.3;
constexpr double kGeneratedExponent = 1.05;

/// w8a where the shared data is, else empty.
std::string shared_w8a() {
  const char* named = std::getenv("MILLRACE_SHARED");
  const fs::path path = fs::path(named != nullptr ? named : "../shared") / "data/w8a.svm.gz";
  std::error_code ignored;
  return fs::exists(path, ignored) ? path.string() : std::string();
}

Result<TrainingData> debian(const ConvergeOptions& options, const Say& say) {
  const training::DataFiles files = training::debian_files(options.folder, options.dimension);
  if (Status kept = training::keep_debian_data(files, options.dimension, say); !kept)
    return std::unexpected(kept.error());
  return TrainingData{"debian", files.train, files.held_out, options.dimension};
}

Result<TrainingData> generated(const ConvergeOptions& options, const Say& say) {
  const std::string stem = options.folder + "/generated-" + std::to_string(options.dimension);
  TrainingData data{"generated", stem + ".svm.gz", stem + ".test.svm.gz", options.dimension};
  if (training::made_before({data.train, data.held_out}, say)) return data;
  say("data: drawing " + data.train);
  training::SyntheticDataOptions make;
  make.shape = {"generated",        options.dimension, options.dimension,
                kGeneratedNonzeros, kGeneratedSpread,  kGeneratedExponent};
  make.rows = kGeneratedRows;
  make.seed = 1;
  make.train_path = data.train;
  make.held_out_path = data.held_out;
  const auto made = training::make_synthetic_data(make);
  if (!made) return std::unexpected(made.error());
  return data;
}

Result<TrainingData> split(const std::string& path, const ConvergeOptions& options) {
  const auto whole = training::read_libsvm(path, {});
  if (!whole) return std::unexpected(whole.error());
  const std::string stem = options.folder + "/" + fs::path(path).filename().string();
  TrainingData data{fs::path(path).filename().string(), stem + ".train.svm", stem + ".held-out.svm", whole->dimension};
  auto train = LibsvmWriter::create(data.train);
  if (!train) return std::unexpected(train.error());
  auto held_out = LibsvmWriter::create(data.held_out);
  if (!held_out) return std::unexpected(held_out.error());
  for (size_t at = 0; at < whole->rows(); ++at) {
    const training::RowView row = whole->row(at);
    LibsvmWriter& writer = at % kHeldOutEvery == 0 ? *held_out : *train;
    if (Status written = writer.row(row.label > 0 ? 1 : -1, row.indices, row.values); !written)
      return std::unexpected(written.error());
  }
  if (Status done = train->commit(); !done) return std::unexpected(done.error());
  if (Status done = held_out->commit(); !done) return std::unexpected(done.error());
  return data;
}

}  // namespace

Result<TrainingData> training_data(const ConvergeOptions& options, const Say& say) {
  if (options.data == "debian") return debian(options, say);
  const std::string file = options.data.empty() ? shared_w8a() : options.data;
  if (file.empty() || file == "generated") return generated(options, say);
  say("data: " + file + ", every tenth row held out");
  return split(file, options);
}

}  // namespace millrace::bench
