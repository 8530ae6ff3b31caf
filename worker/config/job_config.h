#pragma once

#include <span>
#include <string_view>

#include "kernels/base/result.h"
#include "millrace/options.h"
#include "protocol/job/job_spec.h"

namespace millrace::worker {

/// Holds a job's options flat, as files and flags set them one by one: the form between text and JobConfig. Options
/// that are "auto" until the others are known have a mark.
struct JobDraft {
  protocol::JobSpec spec;           ///< without tensors
  bool grid_chosen = true;          ///< spec.grid follows from the other options
  bool switch_codec_chosen = true;  ///< so do the codecs of spec.switch_path
  bool period_chosen = true;        ///< spec.reselect has no period of its own: a method may set it
};

/// Returns the options of `job`, flat.
JobDraft draft_of(const JobConfig& job);

/// Returns the typed options.
///
/// Errors  invalid_argument: an option that does not belong to the chosen mode, path or store, with the option to
///         change.
Result<JobConfig> config_of(const JobDraft& draft);

/// Returns the steps that may be pushed ahead of the last update.
uint32_t staleness_of(const Consistency& consistency);

/// Returns the word of its mode: "bounded_staleness".
std::string_view consistency_name(const Consistency& consistency);

/// Returns the job specification of the options and tensors, validated.
///
/// Errors  invalid_argument (and what protocol::validate() says), each naming the option.
Result<protocol::JobSpec> job_spec_of(const JobConfig& job, const WorkerConfig& worker,
                                      std::span<const TensorOptions> tensors);

}  // namespace millrace::worker
