#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/cli/commands.h"
#include "worker/cli/flag_range.h"
#include "worker/cli/json_text.h"
#include "worker/cli/libsvm.h"
#include "worker/cli/linear_model.h"
#include "worker/cli/model_file.h"
#include "worker/cli/progress.h"

namespace millrace::cli {
namespace {

struct EvalFlags {
  std::string model;
  std::string data;
  bool json = false;
};

Outcome run_eval(const EvalFlags& flags) {
  const auto model = read_model(flags.model);
  if (!model) return fail_with(model.error());
  Progress progress("reading " + flags.data, "rows");
  const auto data = read_libsvm(flags.data, {.dimension = model->dimension(), .progress = progress.callback()});
  if (!data) return fail_with(data.error());
  const Evaluation result = evaluate(*model, *data);
  if (flags.json) {
    fmt::print("{}\n", json_text(nlohmann::json{{"model", flags.model},
                                                {"kind", loss_name(model->loss())},
                                                {"data", flags.data},
                                                {"rows", result.rows},
                                                {"mean_loss", result.mean_loss},
                                                {"log_loss", result.log_loss},
                                                {"accuracy", result.accuracy},
                                                {"average_precision", result.average_precision}}));
    return {};
  }
  fmt::print("{}: {} rows; {}\n", flags.data, grouped(result.rows), label_pair_text(data->label_pair));
  fmt::print("accuracy           {:.4f}\naverage precision  {:.4f}\nlog-loss           {:.5f}\n", result.accuracy,
             result.average_precision, result.log_loss);
  if (model->loss() == Loss::kHinge) fmt::print("hinge loss         {:.5f}\n", result.mean_loss);
  if (model->loss() == Loss::kSquaredHinge) fmt::print("squared hinge      {:.5f}\n", result.mean_loss);
  return {};
}

}  // namespace

Command add_eval_command(CLI::App& root) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* app = root.add_subcommand("eval", "measures a model that `train` wrote on held-out data");
  app->add_option("--model", flags->model, "model file")->required()->check(not_empty());
  app->add_option("--data", flags->data, "LIBSVM text, plain or .gz")->required()->check(not_empty());
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->footer(
      "Average precision is the area under precision over recall; read it rather than the accuracy where one class is "
      "rare.\n\n"
      "Example:\n"
      "  millrace eval --model debian.model --data debian.test.svm.gz");
  return {app, [flags] { return run_eval(*flags); }};
}

}  // namespace millrace::cli
