#pragma once

#include "millrace/options.h"
#include "protocol/job/option_info.h"

namespace millrace::worker {

/// Times after which a worker does not wait any more, or tries again.
template <typename Visitor, typename Worker>
void visit_worker_timing(Visitor& v, Worker& worker) {
  using enum protocol::OptionGroup;
  v.option({.name = "connect_timeout",
            .group = kTiming,
            .help = "for reaching every shard",
            .least = 1,
            .most = protocol::kDayMs},
           worker.connect_timeout);
  v.option({.name = "start_timeout",
            .group = kTiming,
            .help = "for all workers to join",
            .least = 1,
            .most = protocol::kDayMs},
           worker.start_timeout);
  v.option({.name = "shard_silence",
            .group = kTiming,
            .help = "the session ends after this time without bytes from a shard: over 2s, and over 4 heartbeats",
            .most = protocol::kDayMs},
           worker.shard_silence);
  v.option({.name = "resend_after",
            .group = kTiming,
            .help = "an unanswered contribution is sent again after this time",
            .least = 1,
            .most = protocol::kDayMs},
           worker.resend_after);
  v.option({.name = "reconnect_after_max",
            .group = kTiming,
            .help = "longest pause before another attempt at a lost shard (at most dead_after / 4) or at a refused "
                    "contribution",
            .least = 1,
            .most = protocol::kDayMs},
           worker.reconnect_after_max);
}

/// The HTTP port of a worker.
template <typename Visitor, typename Worker>
void visit_worker_http(Visitor& v, Worker& worker) {
  using enum protocol::OptionGroup;
  v.option({.name = "http",
            .group = kWorker,
            .help = "of /metrics, /healthz and /status; port 0: any free one",
            .quantity = protocol::OptionQuantity::kAddress},
           worker.http);
  v.option({.name = "http_tls",
            .group = kWorker,
            .help = "certificate and key of that port, CERT,KEY: it speaks HTTPS",
            .quantity = protocol::OptionQuantity::kFile},
           worker.http_tls);
  v.option({.name = "http_token_file",
            .group = kWorker,
            .help = "with the token that clients of that port must send",
            .quantity = protocol::OptionQuantity::kFile},
           worker.http_token_file);
  v.option({"http_insecure", kWorker, "that port may lack TLS or a token where other machines reach it"},
           worker.http_insecure);
}

/// The options of a worker, once. A visitor has option(info, value&). Callbacks are the program's and have no text.
template <typename Visitor, typename Worker>
void visit_worker(Visitor& v, Worker& worker) {
  using enum protocol::OptionGroup;
  v.option({.name = "worker", .group = kWorker, .help = "this worker, from 0", .most = 4'095}, worker.worker);
  v.option({"shards", kWorker, "host:port,host:port: one shard each, the same list at all workers", "servers"},
           worker.shards);
  v.option({.name = "key_file",
            .group = kWorker,
            .help = "this worker's secret key (millrace keys new)",
            .flag = "key",
            .least = 1,
            .quantity = protocol::OptionQuantity::kFile},
           worker.key_file);
  v.option({.name = "server_key_file",
            .group = kWorker,
            .help = "the public key of the shards",
            .flag = "server-key",
            .least = 1,
            .quantity = protocol::OptionQuantity::kFile},
           worker.server_key_file);
  v.option({.name = "rack",
            .group = kSwitch,
            .help = "the switch of this worker's rack",
            .quantity = protocol::OptionQuantity::kAddress},
           worker.rack);
  v.option({.name = "switch_key_file",
            .group = kSwitch,
            .help = "the job's key at the switch, readable by its owner and group alone",
            .flag = "switch-key",
            .least = 1,
            .quantity = protocol::OptionQuantity::kFile},
           worker.switch_key_file);
  visit_worker_timing(v, worker);
  v.option({.name = "link_rate",
            .group = kCompression,
            .help = "of the link to the shards, for codec auto; 0bit: measured",
            .most = 1e15,
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
  visit_worker_http(v, worker);
}

}  // namespace millrace::worker
