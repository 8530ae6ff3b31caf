#include "worker/cli/path_flags.h"

#include "worker/program/flag_range.h"

namespace millrace::cli {

using program::in_range;

void add_path_flags(CLI::App& app, training::PathOptions& options) {
  app.add_option(
         "--path", options.path,
         "server: the shards add up; switch:HOST:PORT: a millrace-switch does, by datagrams, and shard 0 in its "
         "place while it does not answer (mode synchronous, up to 64 workers); switch:HOST:PORT,rack:HOST:PORT: with "
         "the millrace-switch of this worker's rack (role combine) adding up in front of it, while that answers")
      ->capture_default_str()
      ->check(program::not_empty());
  app.add_option("--switch-job", options.switch_job, "the job's number at the switch (its jobs.json)")
      ->check(in_range(0u, 4'294'967'295u));
  app.add_option("--switch-key", options.switch_key_file,
                 "file of the job's key at the switch: 64 hexadecimal digits, readable by its owner alone")
      ->check(program::not_empty());
  app.add_option("--switch-slots", options.switch_slots,
                 "windows under way at a time, as the switch has reserved; where the job has fewer windows as many as "
                 "those, or the multiple of --switch-lanes below")
      ->capture_default_str()
      ->check(in_range(1, 128));
  app.add_option("--switch-lanes", options.switch_lanes,
                 "cores of the switch that share the job's windows, as the switch has it (lanes): it has as many job "
                 "numbers, from --switch-job on; --switch-slots is a multiple")
      ->capture_default_str()
      ->check(in_range(1, 16));
  app.add_option("--switch-packet-bytes", options.switch_packet_bytes,
                 "UDP payload of the path: 1472 in an MTU of 1500, 8972 in one of 9000")
      ->capture_default_str()
      ->check(in_range(1200, 8972));
  app.add_option("--switch-codec", options.switch_codec,
                 "of datagrams: raw, gap, bitmap or bloom + fixed16, fixed32, qsgd8 or qsgd4; auto: gap+fixed16, with "
                 "--reproducible gap+fixed32")
      ->capture_default_str();
  app.add_option("--switch-return-after-ms", options.switch_return_after_ms,
                 "a switch that answers again for this time gets the job back")
      ->capture_default_str()
      ->check(in_range(0, 86'400'000));
  app.add_option("--grid", options.grid,
                 "INDICES:EXPONENT of the binary grid: indices of a block (path switch: of a window, as the switch has "
                 "them), and its first power of 2; auto: 16384:-20, with --reproducible 4096:-20 on every path, since "
                 "the bits depend on the grid and a switch's packets hold all sums of some 5,000 indices")
      ->capture_default_str();
}

}  // namespace millrace::cli
