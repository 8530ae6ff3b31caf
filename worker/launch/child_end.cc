#include "worker/launch/child_end.h"

#include <nlohmann/json.hpp>

namespace millrace::launch {

using program::ExitCode;

ExitCode code_of_child_end(int exit_code) {
  constexpr int kEndedBySignal = 128;  // and the signal's number
  const bool known =
      exit_code >= static_cast<int>(ExitCode::kInternal) && exit_code <= static_cast<int>(ExitCode::kJobEnded);
  if (known) return static_cast<ExitCode>(exit_code);
  return exit_code >= kEndedBySignal ? ExitCode::kJobEnded : ExitCode::kInternal;
}

std::optional<Error> failed_start(const nlohmann::json& line, const std::string& who) {
  if (!line.is_object() || line.value("event", "") != "failed") return std::nullopt;
  return Error{error_code_by_name(line.value("code", "")), who + ": " + line.value("error", "")};
}

}  // namespace millrace::launch
