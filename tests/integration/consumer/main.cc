// Tests the uses of an outside program without a server: it finds the library, asks for a job, and gets a JobError with
// the reason. Also checks the library's effects on the process meanwhile.

#include <malloc.h>
#include <millrace/millrace.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace {

// Returns whether malloc gives a block of 24 MiB a mapping of its own. glibc does so in a process that has not set its
// threshold and has freed no such block. Freeing one raises the threshold, so that this block is not freed.
bool allocator_is_untouched() {
  const size_t mapped_before = mallinfo2().hblks;
  void* block = std::malloc(size_t{24} << 20);
  *static_cast<volatile char*>(block) = 1;  // so that the compiler keeps the allocation
  return mallinfo2().hblks > mapped_before;
}

// Whether connect() says that the shard cannot be reached, and names it.
bool is_refused(const millrace::JobConfig& job, const millrace::WorkerConfig& me) {
  try {
    millrace::Session::connect(job, me, {{.name = "w", .dimension = 10}});
  } catch (const millrace::JobError& error) {
    const bool named = std::string_view(error.what()).find("tcp://127.0.0.1:1") != std::string_view::npos;
    std::cout << "millrace " << millrace::version() << ": " << millrace::job_error_name(error.code()) << ": "
              << error.what() << "\n";
    return error.code() == millrace::JobErrorCode::kUnavailable && named;
  }
  return false;
}

// Whether connect() says of an address for metrics that it is none; and of a good one that the shard cannot be reached.
bool metrics_are_checked(const millrace::JobConfig& job, millrace::WorkerConfig me) {
  me.http = "127.0.0.1:0";
  if (!is_refused(job, me)) return false;
  me.http = "nowhere";
  try {
    millrace::Session::connect(job, me, {{.name = "w", .dimension = 10}});
  } catch (const millrace::JobError& error) {
    return error.code() == millrace::JobErrorCode::kInvalidArgument &&
           std::string_view(error.what()).find("WorkerConfig::http") != std::string_view::npos;
  }
  return false;
}

int failed(const char* what) {
  std::cerr << what << "\n";
  return 1;
}

}  // namespace

// Both forms of what waits, as an outside program calls them. It is linked; no server is there to run it with.
bool train_step(millrace::Session& session, std::span<const float> gradient, std::chrono::milliseconds limit) {
  const std::optional<uint64_t> step = session.try_push(0, gradient, 1, limit);
  if (!step) return false;
  const std::optional<millrace::TensorUpdate> update = session.try_await(0, *step, limit);
  if (!update) session.await(0, *step);
  const std::vector<uint32_t> index = {0};
  const uint64_t last = session.push_sparse(0, index, gradient.first(1), 1, millrace::kDefaultTimeout);
  return session.http_port() == 0 && session.ready(0, last) && session.try_finish(limit);
}

int main() {
  const millrace::JobConfig job{.name = "consumer"};
  millrace::WorkerConfig me{.shards = {"tcp://127.0.0.1:1"}, .connect_timeout = std::chrono::milliseconds(50)};
  if (!allocator_is_untouched()) return failed("this process's allocator is not glibc's, as it comes");
  if (!is_refused(job, me)) return failed("connect() did not name the shard that cannot be reached");
  if (!allocator_is_untouched()) return failed("the library changed the allocator of its host process unasked");
  me.keep_freed_memory = true;
  if (!is_refused(job, me)) return failed("connect() did not name the shard that cannot be reached");
  if (allocator_is_untouched()) return failed("keep_freed_memory was asked for, and the allocator is as it was");
  if (!metrics_are_checked(job, me)) return failed("connect() did not look at WorkerConfig::http");
  return 0;
}
