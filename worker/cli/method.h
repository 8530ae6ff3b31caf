#pragma once

#include <string>

#include "worker/program/outcome.h"
#include "worker/training/trainer.h"

namespace millrace::cli {

/// Holds, of the options that a method sets, those that the user gave: they stay.
struct GivenOptions {
  bool select = false;
  bool reselect = false;
  bool threshold_period = false;
  bool codec_up = false;
  bool codec_error = false;
  bool momentum = false;
  bool clip = false;
};

/// Sets options that the user did not give to those of the method (kernels/methods). A density above 0 takes the place
/// of that of its selection.
///
/// Errors   usage: no such method; the user's options make another method of it.
program::Outcome apply_method(const std::string& name, double density, const GivenOptions& given,
                              training::TrainOptions& options);

/// Returns a line or two a method, for --help.
std::string method_table();

}  // namespace millrace::cli
