#pragma once

#include <cstdint>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <string>

namespace millrace::testing {

/// Runs `body(name)` once with each instruction set that this machine has and the kernels were compiled for, also with
/// one lane. Restores the best one in the end. Not for tests that run kernels in other threads at the same time.
template <typename Body>
void for_each_isa(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(std::string(hwy::TargetName(target)));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace millrace::testing
