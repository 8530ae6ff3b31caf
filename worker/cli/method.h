#pragma once

#include <string>

#include "worker/config/option_table.h"
#include "worker/program/option_flags.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// Sets options of the job that the user did not give to those of the method (kernels/methods). A density above 0 takes
/// the place of that of its selection.
///
/// given   the options that the user gave: they stay; and "threshold_period", "codec_error".
/// draft   the job's options, with those that the user gave.
/// Errors  usage: no such method; the user's options make another method of it.
program::Outcome apply_method(const std::string& name, double density, const worker::GivenTexts& given,
                              worker::JobDraft& draft);

/// Returns a line or two a method, for --help.
std::string method_table();

}  // namespace millrace::cli
