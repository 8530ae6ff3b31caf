// What an outside program can do without a server: see the library, ask for a job, be told in a JobError why there is none.

#include <millrace/millrace.h>

#include <iostream>
#include <string_view>

int main() {
  millrace::JobOptions job{.name = "consumer", .shards = {"tcp://127.0.0.1:1"}};
  job.connect_timeout_ms = 50;
  try {
    millrace::Session::connect(job, {{.name = "w", .dimension = 10}});
  } catch (const millrace::JobError& error) {
    const bool named = std::string_view(error.what()).find("tcp://127.0.0.1:1") != std::string_view::npos;
    std::cout << "millrace " << millrace::version() << ": " << millrace::job_error_name(error.code()) << ": "
              << error.what() << "\n";
    return error.code() == millrace::JobErrorCode::kUnavailable && named ? 0 : 1;
  }
  return 1;
}
