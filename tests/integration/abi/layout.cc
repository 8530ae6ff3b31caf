// Prints size, alignment and the places of members of every public type of the worker library, a line each. abi_test.py
// compares the lines with those of the library's number.

#include <millrace/millrace.h>

#include <cstddef>
#include <cstdio>
#include <string>

namespace {

template <typename T>
void print_type(const char* name) {
  std::printf("type %s size %zu align %zu\n", name, sizeof(T), alignof(T));
}

template <typename T, typename M>
void print_member(const T& whole, const char* type, const char* name, const M& member) {
  const auto offset = reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&whole);
  std::printf("  %s::%s at %td size %zu\n", type, name, offset, sizeof(M));
}

template <typename T>
T example() {
  return {};
}

template <typename T, typename Print>
void print_members(const char* name, Print print) {
  print_type<T>(name);
  const T whole = example<T>();
  print(whole);
}

}  // namespace

#define MILLRACE_MEMBER(name) print_member(whole, type, #name, whole.name)
#define MILLRACE_TYPE(T, ...)                                      \
  {                                                                \
    [[maybe_unused]] const char* const type = #T;                  \
    print_members<millrace::T>(#T, [&](const millrace::T& whole) { \
      (void)whole;                                                 \
      __VA_ARGS__;                                                 \
    });                                                            \
  }

int main() {
  print_type<millrace::Amount>("Amount");
  print_type<millrace::Selection>("Selection");
  print_type<millrace::Reselect>("Reselect");
  print_type<millrace::IndexCode>("IndexCode");
  print_type<millrace::ValueCode>("ValueCode");
  print_type<millrace::Codec>("Codec");
  print_type<millrace::Momentum>("Momentum");
  print_type<millrace::Consistency>("Consistency");
  print_type<millrace::Path>("Path");
  print_type<millrace::Store>("Store");
  print_type<millrace::Weights>("Weights");
  print_type<millrace::JobError>("JobError");
  print_type<millrace::Session>("Session");
  MILLRACE_TYPE(Synchronous, MILLRACE_MEMBER(staleness))
  MILLRACE_TYPE(BoundedStaleness, MILLRACE_MEMBER(staleness); MILLRACE_MEMBER(quorum); MILLRACE_MEMBER(deadline))
  MILLRACE_TYPE(Partial, MILLRACE_MEMBER(quorum); MILLRACE_MEMBER(deadline); MILLRACE_MEMBER(participants);
                MILLRACE_MEMBER(staleness))
  MILLRACE_TYPE(Asynchronous, MILLRACE_MEMBER(staleness))
  MILLRACE_TYPE(Grid, MILLRACE_MEMBER(block_indices); MILLRACE_MEMBER(exponent_initial))
  MILLRACE_TYPE(SwitchCodec, MILLRACE_MEMBER(index); MILLRACE_MEMBER(value))
  MILLRACE_TYPE(SwitchPath, MILLRACE_MEMBER(address); MILLRACE_MEMBER(job); MILLRACE_MEMBER(slots);
                MILLRACE_MEMBER(lanes); MILLRACE_MEMBER(packet_bytes); MILLRACE_MEMBER(codec);
                MILLRACE_MEMBER(return_after))
  MILLRACE_TYPE(Contributions, MILLRACE_MEMBER(clip); MILLRACE_MEMBER(non_finite); MILLRACE_MEMBER(codec_error);
                MILLRACE_MEMBER(unbiased); MILLRACE_MEMBER(history))
  MILLRACE_TYPE(Updates, MILLRACE_MEMBER(combine); MILLRACE_MEMBER(initial_weights))
  MILLRACE_TYPE(Guarantees, MILLRACE_MEMBER(reproducible); MILLRACE_MEMBER(audit); MILLRACE_MEMBER(apply_after_acks))
  MILLRACE_TYPE(Liveness, MILLRACE_MEMBER(dead_after); MILLRACE_MEMBER(heartbeat); MILLRACE_MEMBER(exchange_timeout))
  MILLRACE_TYPE(Layout, MILLRACE_MEMBER(parts_per_shard); MILLRACE_MEMBER(fuse_below))
  MILLRACE_TYPE(JobConfig, MILLRACE_MEMBER(name); MILLRACE_MEMBER(workers); MILLRACE_MEMBER(workers_min);
                MILLRACE_MEMBER(consistency); MILLRACE_MEMBER(select); MILLRACE_MEMBER(reselect);
                MILLRACE_MEMBER(codec_up); MILLRACE_MEMBER(codec_down); MILLRACE_MEMBER(momentum);
                MILLRACE_MEMBER(contributions); MILLRACE_MEMBER(updates); MILLRACE_MEMBER(guarantees);
                MILLRACE_MEMBER(liveness); MILLRACE_MEMBER(layout); MILLRACE_MEMBER(seed); MILLRACE_MEMBER(path);
                MILLRACE_MEMBER(grid); MILLRACE_MEMBER(store); MILLRACE_MEMBER(recipe))
  MILLRACE_TYPE(WorkerConfig, MILLRACE_MEMBER(worker); MILLRACE_MEMBER(shards); MILLRACE_MEMBER(rack);
                MILLRACE_MEMBER(switch_key_file); MILLRACE_MEMBER(connect_timeout); MILLRACE_MEMBER(start_timeout);
                MILLRACE_MEMBER(shard_silence); MILLRACE_MEMBER(resend_after); MILLRACE_MEMBER(reconnect_after_max);
                MILLRACE_MEMBER(link_rate); MILLRACE_MEMBER(updates_kept_max); MILLRACE_MEMBER(keep_freed_memory);
                MILLRACE_MEMBER(returns); MILLRACE_MEMBER(load_path); MILLRACE_MEMBER(save_path); MILLRACE_MEMBER(http);
                MILLRACE_MEMBER(log); MILLRACE_MEMBER(give_up))
  MILLRACE_TYPE(TensorOptions, MILLRACE_MEMBER(name); MILLRACE_MEMBER(dimension); MILLRACE_MEMBER(priority);
                MILLRACE_MEMBER(select); MILLRACE_MEMBER(reselect); MILLRACE_MEMBER(codec_up);
                MILLRACE_MEMBER(codec_down); MILLRACE_MEMBER(output_layer); MILLRACE_MEMBER(weights))
  MILLRACE_TYPE(UpdatePiece, MILLRACE_MEMBER(begin); MILLRACE_MEMBER(dimension); MILLRACE_MEMBER(dense);
                MILLRACE_MEMBER(indices); MILLRACE_MEMBER(values); MILLRACE_MEMBER(denominator);
                MILLRACE_MEMBER(contributors))
  MILLRACE_TYPE(TensorUpdate, MILLRACE_MEMBER(tensor); MILLRACE_MEMBER(step); MILLRACE_MEMBER(applied);
                MILLRACE_MEMBER(replaced); MILLRACE_MEMBER(pieces); MILLRACE_MEMBER(owner))
  MILLRACE_TYPE(SparseEntries, MILLRACE_MEMBER(indices); MILLRACE_MEMBER(values))
  MILLRACE_TYPE(PullOptions, MILLRACE_MEMBER(at_least_step); MILLRACE_MEMBER(timeout))
  MILLRACE_TYPE(PulledSteps, MILLRACE_MEMBER(least); MILLRACE_MEMBER(most))
  MILLRACE_TYPE(TensorStats, MILLRACE_MEMBER(name); MILLRACE_MEMBER(steps_pushed); MILLRACE_MEMBER(codec_choice))
  MILLRACE_TYPE(AuditStats, MILLRACE_MEMBER(audits); MILLRACE_MEMBER(entered); MILLRACE_MEMBER(checks))
  MILLRACE_TYPE(SwitchStats, MILLRACE_MEMBER(used); MILLRACE_MEMBER(turns); MILLRACE_MEMBER(events))
  MILLRACE_TYPE(Stats, MILLRACE_MEMBER(bytes_up); MILLRACE_MEMBER(audit); MILLRACE_MEMBER(by_switch);
                MILLRACE_MEMBER(tensors))
  MILLRACE_TYPE(SessionStatus, MILLRACE_MEMBER(returning); MILLRACE_MEMBER(returns); MILLRACE_MEMBER(waiting_for);
                MILLRACE_MEMBER(audit_imbalance); MILLRACE_MEMBER(workers_missing))
  return 0;
}
