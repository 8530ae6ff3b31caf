#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/doctor/cluster_facts.h"

namespace millrace::doctor {

/// Lists the results of a check, the worst last.
enum class Verdict : uint8_t {
  kOk = 0,
  kNotChecked = 1,  ///< `found` has the reason
  kWarning = 2,     ///< costs speed, or an operator's time
  kProblem = 3,     ///< prevents service
};
/// Returns "ok", "not checked", "warning" or "problem".
std::string_view verdict_name(Verdict verdict);

/// Holds a measured number, so that the reports of several hosts can be compared.
struct Measure {
  double value = 0;
  std::string unit;  ///< "ms"
};

/// Holds the result of one check: a line of the report. Every warning and problem has a change.
struct Check {
  std::string name;     ///< "descriptors", "port"
  std::string subject;  ///< "this host", "shard 1"
  Verdict verdict = Verdict::kOk;
  std::string found;        ///< the present state
  std::string change = {};  ///< the advice; empty: none
  std::optional<Measure> measure = {};
};

/// Returns a check that found a problem.
Check problem(std::string name, std::string subject, std::string found, std::string change);

/// Holds all checks of one run.
struct Report {
  std::string software;  ///< of this build
  std::string host;      ///< name of this host
  std::vector<Check> checks;
  std::vector<PairFacts> pairs = {};  ///< the paths between shards
};

/// Returns the worst verdict; kOk of none.
Verdict worst_of(const std::vector<Check>& checks);

/// Returns one line a check, and a second line with the advice where there is any. Behind them come the matrix of
/// pairs_text(), and a last line with the counts.
std::string report_text(const Report& report);

/// Returns one JSON object on one line: {"software", "host", "verdict", "checks": [{"check", "subject", "verdict",
/// "found", "change", "value", "unit"}], "pairs": pairs_json()}. Only a measured check has "value" and "unit".
std::string report_json(const Report& report);

}  // namespace millrace::doctor
