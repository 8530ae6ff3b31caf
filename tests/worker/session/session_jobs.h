#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "millrace/millrace.h"
#include "protocol/job/job_spec.h"
#include "tests/worker/session_options.h"
#include "worker/config/job_config.h"

/// Jobs of the tests of the public session, and their common requirements.
namespace millrace::testing {

/// A limit for what must happen, on a machine that is busy with other things too; nothing waits for it when all is
/// well.
inline constexpr std::chrono::milliseconds kSessionSoon{120'000};

inline SessionOptions session_job_of(uint32_t workers) {
  SessionOptions job;
  job.name = "session-test";
  job.workers = workers;
  job.select = Selection::all();
  job.liveness.heartbeat = std::chrono::milliseconds(100);
  job.connect_timeout = kSessionSoon;
  return job;
}

inline const std::vector<TensorOptions> kSessionTwoTensors = {{.name = "large", .dimension = 20'000},
                                                              {.name = "small", .dimension = 100}};

inline protocol::JobSpec session_spec_of(SessionOptions job, const std::vector<TensorOptions>& tensors) {
  job.shards = {"tcp://127.0.0.1:1"};
  auto spec = worker::job_spec_of(job, job, tensors);
  EXPECT_TRUE(spec.has_value()) << spec.error().message;
  return *spec;
}

/// Runs `body` expecting a JobError of that code; returns its sentence.
template <typename Body>
std::string session_sentence_of(JobErrorCode code, Body body) {
  try {
    body();
  } catch (const JobError& error) {
    EXPECT_EQ(job_error_name(error.code()), job_error_name(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error where " << job_error_name(code) << " was expected";
  return {};
}

/// The sum at each index of a tensor's update.
inline std::map<uint64_t, float> session_entries_of(const TensorUpdate& update) {
  std::map<uint64_t, float> entries;
  for (const UpdatePiece& piece : update.pieces) {
    for (size_t i = 0; i < piece.values.size(); ++i) {
      entries[piece.begin + (piece.dense ? i : piece.indices[i])] = piece.values[i];
    }
  }
  return entries;
}

/// Each worker of the job in a thread of its own.
template <typename Body>
void run_workers(const SessionOptions& job, const std::vector<TensorOptions>& tensors, Body body) {
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < job.workers; ++worker) {
    threads.emplace_back([&, worker] {
      SessionOptions own = job;
      own.worker = worker;
      try {
        auto session = Session::connect(own, own, tensors);
        body(worker, *session);
      } catch (const JobError& error) {
        ADD_FAILURE() << "worker " << worker << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace millrace::testing
