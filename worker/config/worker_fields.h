#pragma once

#include "millrace/options.h"
#include "protocol/job/option_info.h"

namespace millrace::worker {

/// The options of a worker, once. A visitor has option(info, value&). Callbacks are the program's and have no text.
template <typename Visitor, typename Worker>
void visit_worker(Visitor& v, Worker& worker) {
  using enum protocol::OptionGroup;
  v.option({.name = "worker", .group = kWorker, .help = "this worker, from 0", .most = 4'095}, worker.worker);
  v.option({"shards", kWorker, "host:port,host:port: one shard each, the same list at all workers", "servers"},
           worker.shards);
  v.option({.name = "rack",
            .group = kSwitch,
            .help = "the switch of this worker's rack",
            .quantity = protocol::OptionQuantity::kAddress},
           worker.rack);
  v.option({.name = "switch_key_file",
            .group = kSwitch,
            .help = "the job's key at the switch, readable by its owner alone",
            .flag = "switch-key",
            .quantity = protocol::OptionQuantity::kFile},
           worker.switch_key_file);
  v.option({.name = "connect_timeout", .group = kTiming, .help = "for reaching every shard", .least = 1},
           worker.connect_timeout);
  v.option({.name = "start_timeout", .group = kTiming, .help = "for all workers to join", .least = 1},
           worker.start_timeout);
  v.option({"shard_silence", kTiming, "the session ends after this time without a message from a shard"},
           worker.shard_silence);
  v.option({"resend_after", kTiming, "an unanswered contribution is sent again after this time"}, worker.resend_after);
  v.option({.name = "reconnect_after_max",
            .group = kTiming,
            .help = "longest pause between two attempts to reach a lost shard",
            .least = 1},
           worker.reconnect_after_max);
  v.option({.name = "link_rate",
            .group = kCompression,
            .help = "of the link to the shards, for codec auto; 0bit: measured",
            .quantity = protocol::OptionQuantity::kRate},
           worker.link_rate);
  v.option({"updates_kept_max", kWorker, "updates of a tensor that nothing has awaited, beyond the staleness"},
           worker.updates_kept_max);
  v.option({"keep_freed_memory", kWorker, "changes malloc's settings: freed memory stays in the process"},
           worker.keep_freed_memory);
  v.option({"returns", kWorker, "takes over from an earlier process of this worker"}, worker.returns);
  v.option({.name = "load_path",
            .group = kWorker,
            .help = "a saved state to begin with",
            .quantity = protocol::OptionQuantity::kFile},
           worker.load_path);
  v.option({.name = "save_path",
            .group = kWorker,
            .help = "for the state when the session ends with an error",
            .quantity = protocol::OptionQuantity::kFile},
           worker.save_path);
  v.option({.name = "http",
            .group = kWorker,
            .help = "of /metrics, /healthz and /status; port 0: any free one",
            .quantity = protocol::OptionQuantity::kAddress},
           worker.http);
}

}  // namespace millrace::worker
