#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "kernels/stream/stream.h"
#include "worker/program/flag_range.h"
#include "worker/training/model/rate_schedule.h"

namespace millrace::training {

/// Adds --dimension, --index-base and --model, the flags of a linear model that every program which trains one has.
/// REQUIRES: the variables outlive the parsing.
inline void add_model_flags(CLI::App& app, uint64_t& dimension, uint32_t& index_base, std::string& model) {
  app.add_option(
         "--dimension", dimension,
         "features of the model: the largest index, or with --index-base 0 one more (default: what --train needs)")
      ->check(program::in_range(uint64_t{1}, kDimensionMax - 1));
  app.add_option("--index-base", index_base, "number of the first feature in the files: 1 (LIBSVM's), or 0")
      ->capture_default_str()
      ->check(program::in_range(0, 1));
  app.add_option("--model", model, "lr (logistic regression), svm (linear SVM) or l2svm (its hinge squared)")
      ->capture_default_str()
      ->check(program::one_of({"lr", "svm", "l2svm"}));
}

/// Adds --lr-schedule. `passed` says what t counts. REQUIRES: the text outlives the parsing.
inline CLI::Option* add_schedule_flag(CLI::App& app, std::string& schedule, const std::string& passed) {
  return app
      .add_option("--lr-schedule", schedule,
                  "of --lr, " + passed +
                      ": constant; inverse[:E], rate / (1 + t/E); inverse_sqrt[:E], rate / sqrt(1 + t/E); "
                      "step[:FACTOR[:E]], times FACTOR (0.5) every E (1) epochs")
      ->capture_default_str()
      ->check(program::checked([](const std::string& text) { return rate_schedule_from_text(text, 1); }));
}

}  // namespace millrace::training
