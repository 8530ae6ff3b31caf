#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// What the workers of benchmarks have in common, beside what they measure: each is a process, or a thread of one, and
/// says what went wrong in memory that it shares with the benchmark.

/// place  in shared memory; the text is cut to what it holds, and ends with 0
void set_failure(std::span<char> place, const std::string& text);

/// Body of a worker.
///
/// join     comes back once the worker takes part, with the rest of what it does; that returns the worker's exit code
/// failure  gets the sentence of what they threw
int run_bench_worker(std::span<char> failure, const std::function<std::function<ExitCode()>()>& join);

/// What Session::check() says of the job.
Status check_bench_job(const JobOptions& job, const std::vector<TensorOptions>& tensors);

/// Whether values come back from the codec as they were.
/// Errors  those of codec_from_text(); invalid_argument, where they do not: `checked` is what is checked to the bit.
Status check_lossless(const std::string& codec, const std::string& checked);

}  // namespace millrace::cli
