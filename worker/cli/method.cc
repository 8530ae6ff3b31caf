#include "worker/cli/method.h"

#include <fmt/core.h>

#include <functional>
#include <vector>

#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "kernels/methods/methods.h"

namespace millrace::cli {

using program::ExitCode;
using program::fail_with;

program::Outcome apply_method(const std::string& name, double density, const worker::GivenTexts& given,
                              worker::JobDraft& draft) {
  const Method* method = find_method(name);
  if (method == nullptr) {
    const std::vector<std::string> known = texts_of(methods(), std::mem_fn(&Method::name));
    return fail_with(ExitCode::kUsage, fmt::format("--method: there is no '{}'; there are {}{}", name, method_names(),
                                                   did_you_mean(name, known)));
  }
  std::vector<worker::Option> job = worker::options_of(draft);
  const auto option = [&](std::string_view which) -> worker::Option& { return worker::option_named(job, which); };
  // The method's own texts are valid: a test reads them.
  const auto set = [&](const char* which, std::string_view text) {
    if (!given.contains(which)) (void)option(which).set(text);
  };
  if (density > 0) {
    const auto select = method_select(*method, fmt::format("{}", density));
    if (!select) return fail_with(ExitCode::kUsage, "--density: " + select.error().message);
    (void)option("select").set(*select);
  } else {
    set("select", method->select);
  }
  set("codec_up", method->codec_up);
  if (const Status holds = check_method(*method, option("select").text(), option("codec_up").text()); !holds) {
    return fail_with(ExitCode::kUsage, "--method: " + holds.error().message);
  }
  set("reselect", method->reselect);
  protocol::ReselectSpec& reselect = draft.spec.reselect;
  const bool takes_period = draft.period_chosen && reselect.reselect != protocol::Reselect::kNone;
  if (takes_period && !given.contains("threshold_period")) reselect.threshold_period = method->threshold_period;
  set("codec_error", method->codec_error);
  set("momentum", method->momentum);
  if (method->clip > 0) set("clip", fmt::format("{}", method->clip));
  if (method->unbiased) (void)option("unbiased").set("on");
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
