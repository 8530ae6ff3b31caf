#pragma once

#include <set>
#include <string>
#include <vector>

#include "worker/config/option_table.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// Sets options of the job that the user did not give to those of the method (kernels/methods). A density above 0 takes
/// the place of that of its selection.
///
/// job     of the job's draft.
/// given   names of the options that the user gave: they stay; and "threshold_period", "codec_error".
/// Errors  usage: no such method; the user's options make another method of it.
program::Outcome apply_method(const std::string& name, double density, const std::set<std::string>& given,
                              std::vector<worker::Option>& job);

/// Returns a line or two a method, for --help.
std::string method_table();

}  // namespace millrace::cli
