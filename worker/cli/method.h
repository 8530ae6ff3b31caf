#pragma once

#include <string>
#include <vector>

#include "worker/config/option_table.h"
#include "worker/program/option_flags.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// Sets options of the job that the user did not give to those of the method (kernels/methods). A density above 0 takes
/// the place of that of its selection.
///
/// job     of the job's draft.
/// given   the options that the user gave: they stay; and "threshold_period", "codec_error".
/// Errors  usage: no such method; the user's options make another method of it.
program::Outcome apply_method(const std::string& name, double density, const worker::GivenTexts& given,
                              std::vector<worker::Option>& job);

/// Returns the period that --reselect was given with: "8" of topk:0.01:8. Empty: it was given without one, or not at
/// all.
std::string given_period(const worker::GivenTexts& given);

/// Returns a line or two a method, for --help.
std::string method_table();

}  // namespace millrace::cli
