#include "worker/cli/method.h"

#include <fmt/core.h>

#include "kernels/methods/methods.h"

namespace millrace::cli {

using program::ExitCode;
using program::fail_with;

program::Outcome apply_method(const std::string& name, double density, const GivenOptions& given,
                              training::TrainOptions& options) {
  const Method* method = find_method(name);
  if (method == nullptr) {
    return fail_with(ExitCode::kUsage, fmt::format("--method: there is no '{}'; there are {}", name, method_names()));
  }
  if (density > 0) {
    const auto select = method_select(*method, fmt::format("{}", density));
    if (!select) return fail_with(ExitCode::kUsage, "--density: " + select.error().message);
    options.select = *select;
  } else if (!given.select) {
    options.select = method->select;
  }
  if (!given.codec_up) options.codec_up = method->codec_up;
  if (const Status holds = check_method(*method, options.select, options.codec_up); !holds) {
    return fail_with(ExitCode::kUsage, "--method: " + holds.error().message);
  }
  if (!given.reselect) options.reselect = method->reselect;
  if (!given.threshold_period) options.threshold_period = method->threshold_period;
  if (!given.codec_error) options.codec_error = method->codec_error;
  if (!given.momentum) options.momentum = method->momentum;
  if (!given.clip) options.clip = method->clip;
  options.unbiased = options.unbiased || method->unbiased;
  return {};
}

std::string method_table() {
  std::string table =
      "Keys in brackets are of kernels/REFERENCES.md.\n"
      "Methods (--method), with the options that they set:\n";
  for (const Method& method : methods()) {
    table += fmt::format("  {:<20} {}: {}\n  {:<20} --select {} --codec-up {}", method.name, method.paper,
                         method.summary, "", method.select, method.codec_up);
    if (method.reselect != "none") table += fmt::format(" --reselect {}", method.reselect);
    if (method.threshold_period != 1) table += fmt::format(" --threshold-period {}", method.threshold_period);
    if (method.codec_error != "retain") table += fmt::format(" --codec-error {}", method.codec_error);
    if (method.momentum != "none") table += fmt::format(" --momentum {}", method.momentum);
    if (method.clip > 0) table += fmt::format(" --clip {}", method.clip);
    if (method.unbiased) table += " --unbiased";
    table += '\n';
  }
  return table;
}

}  // namespace millrace::cli
