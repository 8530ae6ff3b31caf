#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/cli/commands.h"
#include "worker/program/flag_range.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"
#include "worker/program/progress.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/model/linear_model.h"
#include "worker/training/model/model_file.h"

namespace millrace::cli {
namespace {

struct EvalFlags {
  std::string model;
  std::string data;
  bool json = false;
};

program::Outcome run_eval(const EvalFlags& flags) {
  const auto model = training::read_model(flags.model);
  if (!model) return program::fail_with(model.error());
  program::Progress progress("reading " + flags.data, "rows");
  training::LibsvmOptions how{
      .dimension = model->dimension(), .use = training::RowUse::kHeldOut, .progress = progress.callback()};
  if (const auto& trained_on = model->trained_on()) {
    how.trained_pair = trained_on->label_pair;
    how.index_base = trained_on->index_base;
  }
  const auto data = training::read_libsvm(flags.data, how);
  if (!data) return program::fail_with(data.error());
  const training::Evaluation result = training::evaluate(*model, *data);
  const auto positives = std::ranges::count(data->labels, int8_t{1});
  if (flags.json) {
    fmt::print("{}\n", program::json_text(nlohmann::json{{"model", flags.model},
                                                         {"kind", training::loss_name(model->loss())},
                                                         {"data", flags.data},
                                                         {"rows", result.rows},
                                                         {"positive_rows", positives},
                                                         {"entries_left_out", data->entries_left_out},
                                                         {"mean_loss", result.mean_loss},
                                                         {"log_loss", result.log_loss},
                                                         {"accuracy", result.accuracy},
                                                         {"average_precision", result.average_precision}}));
    return {};
  }
  fmt::print("{}: {} rows, {} of them positive; {}\n", flags.data, program::grouped(result.rows),
             program::grouped(static_cast<uint64_t>(positives)), training::label_pair_text(data->label_pair));
  if (data->entries_left_out > 0) fmt::print("{}", training::left_out_text(flags.data, *data));
  fmt::print("accuracy           {:.4f}\naverage precision  {:.4f}\nlog-loss           {:.5f}\n", result.accuracy,
             result.average_precision, result.log_loss);
  if (model->loss() == training::Loss::kHinge) fmt::print("hinge loss         {:.5f}\n", result.mean_loss);
  if (model->loss() == training::Loss::kSquaredHinge) fmt::print("squared hinge      {:.5f}\n", result.mean_loss);
  return {};
}

}  // namespace

program::Command add_eval_command(CLI::App& root) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* app = program::add_command(root, "eval", "measures a model that `train` wrote on held-out data");
  app->option_defaults()->group("Data");
  app->add_option("--model-file", flags->model, "model file")
      ->required()
      ->type_name("FILE")
      ->check(program::not_empty());
  app->add_option("--test", flags->data, "held-out rows: LIBSVM text, plain, .gz, .bz2 or .xz")
      ->required()
      ->type_name("FILE")
      ->check(program::not_empty());
  app->option_defaults()->group("Output");
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->footer(
      "Average precision is the area under precision over recall; read it rather than the accuracy where one class is "
      "rare.\n"
      "Rows are read as the model's training file was: its labels, one class or both, and features from 1 or from 0. "
      "Features\n"
      "that training lacked are left out, and counted. Labels of another pair that mean something else are refused.\n\n"
      "Examples:\n"
      "  millrace eval --model-file debian.model --test debian.test.svm.gz\n"
      "  millrace eval --model-file debian.model --test debian.test.svm.gz --json");
  return {app, [flags] { return run_eval(*flags); }};
}

}  // namespace millrace::cli
