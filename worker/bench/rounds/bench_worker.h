#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "worker/program/outcome.h"

namespace millrace::bench {

/// Shared parts of the workers of benchmarks, beside their measurements. Each worker is a process, or a thread of one,
/// and writes its error into memory that it shares with the benchmark.

/// place  in shared memory; the text is truncated to its size, and ends with 0
void set_failure(std::span<char> place, const std::string& text);

/// Runs the body of a worker.
///
/// join     returns once the worker takes part. Its result is a function that does the remaining work and returns the
///          worker's exit code.
/// failure  gets the text of any exception that they throw.
int run_bench_worker(std::span<char> failure, const std::function<std::function<program::ExitCode()>()>& join);

/// Returns the result of Session::check() for the job.
Status check_bench_job(const JobConfig& job, const WorkerConfig& me, const std::vector<TensorOptions>& tensors);

/// Refuses a codec that is none, with the flag --codec.
Status check_codec(const std::string& codec);

/// Returns whether the codec returns values unchanged.
/// Errors  those of check_codec(). invalid_argument: the codec changes values, and `checked` is compared to the
///         bit.
Status check_lossless(const std::string& codec, const std::string& checked);

}  // namespace millrace::bench
