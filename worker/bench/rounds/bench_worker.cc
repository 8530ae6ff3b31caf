#include "worker/bench/rounds/bench_worker.h"

#include <algorithm>
#include <exception>

#include "kernels/base/allocator.h"
#include "kernels/codec/codec.h"
#include "worker/training/job_failure.h"

namespace millrace::bench {

using program::ExitCode;
using training::JobStage;

void set_failure(std::span<char> place, const std::string& text) {
  const size_t length = std::min(text.size(), place.size() - 1);
  std::ranges::copy_n(text.begin(), static_cast<std::ptrdiff_t>(length), place.begin());
  place[length] = '\0';
}

int run_bench_worker(std::span<char> failure, const std::function<std::function<ExitCode()>()>& join) {
  keep_freed_memory();
  JobStage stage = JobStage::kJoining;
  try {
    const std::function<ExitCode()> run = join();
    stage = JobStage::kRunning;
    return static_cast<int>(run());
  } catch (const JobError& error) {
    set_failure(failure, error.what());
    return static_cast<int>(training::failure_of(error, stage).code);
  } catch (const std::exception& problem) {
    set_failure(failure, problem.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

Status check_bench_job(const JobConfig& job, const WorkerConfig& me, const std::vector<TensorOptions>& tensors) {
  try {
    Session::check(job, me, tensors);
  } catch (const JobError& error) {
    return fail(ErrorCode::kInvalidArgument, error.what());
  }
  return {};
}

Status check_codec(const std::string& codec) {
  const Result<CodecSpec> spec = codec_from_text(codec);
  return spec ? Status() : fail(spec.error().code, "--codec: " + spec.error().message);
}

Status check_lossless(const std::string& codec, const std::string& checked) {
  if (const Status known = check_codec(codec); !known) return known;
  const Result<CodecSpec> spec = codec_from_text(codec);
  if (find_index_codec(spec->index)->lossless() && find_value_codec(spec->value)->lossless(*spec)) return {};
  return fail(ErrorCode::kInvalidArgument, "--codec: '" + codec + "' loses something, and " + checked +
                                               " is checked to the bit; give gap+raw, raw+raw or bitmap+raw");
}

}  // namespace millrace::bench
