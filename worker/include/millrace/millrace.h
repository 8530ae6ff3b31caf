#pragma once

#include "millrace/entries.h"
#include "millrace/errors.h"
#include "millrace/options.h"
#include "millrace/session.h"
#include "millrace/stats.h"

/// Millrace's worker library: sum sparse gradients over the workers of a job through sharded servers. Needs C++20. It
/// shows no type of another library, has no signal handler and prints nothing.
///
///   const millrace::JobConfig job{.name = "demo", .workers = 4};
///   const millrace::WorkerConfig me{.worker = 0, .shards = {"tcp://10.0.0.1:7600"}};
///   auto session = millrace::Session::connect(job, me, {{.name = "w", .dimension = n, .weights = weights}});
///   for (...) { const uint64_t step = session->push(0, gradient); session->await(0, step); }
///   session->finish();
