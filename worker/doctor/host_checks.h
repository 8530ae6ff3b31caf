#pragma once

#include <string>
#include <vector>

#include "worker/doctor/check.h"
#include "worker/doctor/host_facts.h"

namespace millrace::doctor {

/// Judges the facts of this host. A pure function.
std::vector<Check> judge_host(const HostFacts& facts);

}  // namespace millrace::doctor
