#include "worker/doctor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/plain_text.h"
#include "worker/doctor/pair_checks.h"
#include "worker/program/json_text.h"

namespace millrace::doctor {
namespace {

/// Returns text that may be another process's, for a terminal.
std::string printable(const std::string& text) {
  constexpr size_t kPrintedBytesMax = 600;
  return plain_text_of(text, kPrintedBytesMax);
}

nlohmann::json json_of(const Check& check) {
  nlohmann::json json = {{"check", check.name},
                         {"subject", check.subject},
                         {"verdict", verdict_name(check.verdict)},
                         {"found", check.found},
                         {"change", check.change}};
  if (check.measure) {
    json["value"] = check.measure->value;
    json["unit"] = check.measure->unit;
  }
  return json;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kNotChecked: return "not checked";
    case Verdict::kWarning: return "warning";
    case Verdict::kProblem: return "problem";
  }
  return "problem";
}

Check problem(std::string name, std::string subject, std::string found, std::string change) {
  return {std::move(name), std::move(subject), Verdict::kProblem, std::move(found), std::move(change)};
}

Verdict worst_of(const std::vector<Check>& checks) {
  Verdict worst = Verdict::kOk;
  for (const Check& check : checks) worst = std::max(worst, check.verdict);
  return worst;
}

std::string report_text(const Report& report) {
  std::string text = fmt::format("{} on {}\n", report.software, printable(report.host));
  for (const Check& check : report.checks) {
    text += fmt::format("{:<11} {:<15} {}: {}\n", verdict_name(check.verdict), check.name, printable(check.subject),
                        printable(check.found));
    if (!check.change.empty()) text += fmt::format("{:<11} {:<15} -> {}\n", "", "", printable(check.change));
  }
  text += pairs_text(report.pairs);
  const auto count = [&report](Verdict verdict) { return std::ranges::count(report.checks, verdict, &Check::verdict); };
  text += fmt::format("{} checks: problems {}, warnings {}, not checked {}\n", report.checks.size(),
                      count(Verdict::kProblem), count(Verdict::kWarning), count(Verdict::kNotChecked));
  return text;
}

std::string report_json(const Report& report) {
  nlohmann::json json = {{"software", report.software},
                         {"host", report.host},
                         {"verdict", verdict_name(worst_of(report.checks))},
                         {"checks", nlohmann::json::array()},
                         {"pairs", pairs_json(report.pairs)}};
  for (const Check& check : report.checks) json["checks"].push_back(json_of(check));
  return program::json_text(json);
}

}  // namespace millrace::doctor
