// Prints size, alignment and the places of members of every public type of the worker library, and every number of
// its enums, a line each. abi_test.py compares the lines with those of the library's number.

#include <millrace/millrace.h>

#include "tests/integration/abi/print_layout.h"

using millrace::testing::print_type;

namespace millrace::testing {

template <>
BoundedStaleness example_of() {
  return {StepDecision::quorum(1)};
}
template <>
Partial example_of() {
  return {StepDecision::quorum(1)};
}
template <>
Participants example_of() {
  return {1U};
}
template <>
SwitchPath example_of() {
  return {.address = "a:1"};
}
template <>
optimizer::Sgd example_of() {
  return {1};
}
template <>
optimizer::Momentum example_of() {
  return {1};
}
template <>
optimizer::Adagrad example_of() {
  return {1};
}
template <>
optimizer::Adam example_of() {
  return {1};
}
template <>
optimizer::Numbered example_of() {
  return {uint8_t{1}, 1};
}
template <>
Store example_of() {
  return {optimizer::Sgd{1}};
}

}  // namespace millrace::testing

void print_numbers() {
  print_type<millrace::Combine>("Combine");
  MILLRACE_NUMBER(Combine, kSum);
  MILLRACE_NUMBER(Combine, kMean);
  MILLRACE_NUMBER(Combine, kWeightedMean);
  print_type<millrace::CodecError>("CodecError");
  MILLRACE_NUMBER(CodecError, kRetain);
  MILLRACE_NUMBER(CodecError, kDrop);
  print_type<millrace::NonFinite>("NonFinite");
  MILLRACE_NUMBER(NonFinite, kRefuse);
  MILLRACE_NUMBER(NonFinite, kDropAndCount);
  print_type<millrace::InitialWeights>("InitialWeights");
  MILLRACE_NUMBER(InitialWeights, kOwn);
  MILLRACE_NUMBER(InitialWeights, kFirst);
  print_type<millrace::StoreBegin>("StoreBegin");
  MILLRACE_NUMBER(StoreBegin, kZeros);
  MILLRACE_NUMBER(StoreBegin, kWorker);
  MILLRACE_NUMBER(StoreBegin, kSaved);
  print_type<millrace::SwitchIndex>("SwitchIndex");
  MILLRACE_NUMBER(SwitchIndex, kRaw);
  MILLRACE_NUMBER(SwitchIndex, kGap);
  MILLRACE_NUMBER(SwitchIndex, kBitmap);
  MILLRACE_NUMBER(SwitchIndex, kBloom);
  print_type<millrace::SwitchValue>("SwitchValue");
  MILLRACE_NUMBER(SwitchValue, kFixed16);
  MILLRACE_NUMBER(SwitchValue, kFixed32);
  MILLRACE_NUMBER(SwitchValue, kQsgd8);
  MILLRACE_NUMBER(SwitchValue, kQsgd4);
  print_type<millrace::LogLevel>("LogLevel");
  MILLRACE_NUMBER(LogLevel, kDebug);
  MILLRACE_NUMBER(LogLevel, kInfo);
  MILLRACE_NUMBER(LogLevel, kWarning);
  MILLRACE_NUMBER(LogLevel, kError);
  print_type<millrace::ApplyWhen>("ApplyWhen");
  MILLRACE_NUMBER(ApplyWhen, kOnArrival);
  MILLRACE_NUMBER(ApplyWhen, kOnAwait);
  print_type<millrace::QsgdScale>("QsgdScale");
  MILLRACE_NUMBER(QsgdScale, kMaximum);
  MILLRACE_NUMBER(QsgdScale, kL2Norm);
  print_type<millrace::JobErrorCode>("JobErrorCode");
  MILLRACE_NUMBER(JobErrorCode, kInvalidArgument);
  MILLRACE_NUMBER(JobErrorCode, kMalformed);
  MILLRACE_NUMBER(JobErrorCode, kUnsupported);
  MILLRACE_NUMBER(JobErrorCode, kLimitExceeded);
  MILLRACE_NUMBER(JobErrorCode, kNonFinite);
  MILLRACE_NUMBER(JobErrorCode, kVersionMismatch);
  MILLRACE_NUMBER(JobErrorCode, kJobMismatch);
  MILLRACE_NUMBER(JobErrorCode, kIdentityInUse);
  MILLRACE_NUMBER(JobErrorCode, kNotAMember);
  MILLRACE_NUMBER(JobErrorCode, kStale);
  MILLRACE_NUMBER(JobErrorCode, kConflict);
  MILLRACE_NUMBER(JobErrorCode, kShardMapMismatch);
  MILLRACE_NUMBER(JobErrorCode, kShardLost);
  MILLRACE_NUMBER(JobErrorCode, kUnavailable);
  MILLRACE_NUMBER(JobErrorCode, kTimeout);
  MILLRACE_NUMBER(JobErrorCode, kIo);
  MILLRACE_NUMBER(JobErrorCode, kUnauthenticated);
  MILLRACE_NUMBER(JobErrorCode, kInternal);
  print_type<millrace::JobErrorOrigin>("JobErrorOrigin");
  MILLRACE_NUMBER(JobErrorOrigin, kWorker);
  MILLRACE_NUMBER(JobErrorOrigin, kJob);
}

void print_opaque_and_groups() {
  print_type<millrace::Amount>("Amount");
  print_type<millrace::Selection>("Selection");
  print_type<millrace::Reselect>("Reselect");
  print_type<millrace::IndexCode>("IndexCode");
  print_type<millrace::ValueCode>("ValueCode");
  print_type<millrace::Codec>("Codec");
  print_type<millrace::Momentum>("Momentum");
  print_type<millrace::Consistency>("Consistency");
  print_type<millrace::Path>("Path");
  print_type<millrace::Weights>("Weights");
  print_type<millrace::JobError>("JobError");
  print_type<millrace::Session>("Session");
  MILLRACE_TYPE(Synchronous, MILLRACE_MEMBER(staleness))
  print_type<millrace::StepDecision>("StepDecision");
  MILLRACE_TYPE(BoundedStaleness, MILLRACE_MEMBER(decision); MILLRACE_MEMBER(staleness))
  MILLRACE_TYPE(Partial, MILLRACE_MEMBER(decision); MILLRACE_MEMBER(staleness))
  MILLRACE_TYPE(Participants, MILLRACE_MEMBER(drawn); MILLRACE_MEMBER(decision))
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
}

void print_options() {
  MILLRACE_TYPE(JobConfig, MILLRACE_MEMBER(name); MILLRACE_MEMBER(workers); MILLRACE_MEMBER(workers_min);
                MILLRACE_MEMBER(consistency); MILLRACE_MEMBER(select); MILLRACE_MEMBER(reselect);
                MILLRACE_MEMBER(codec_up); MILLRACE_MEMBER(codec_down); MILLRACE_MEMBER(momentum);
                MILLRACE_MEMBER(contributions); MILLRACE_MEMBER(updates); MILLRACE_MEMBER(guarantees);
                MILLRACE_MEMBER(liveness); MILLRACE_MEMBER(layout); MILLRACE_MEMBER(seed); MILLRACE_MEMBER(path);
                MILLRACE_MEMBER(grid); MILLRACE_MEMBER(store); MILLRACE_MEMBER(recipe))
  MILLRACE_TYPE(WorkerConfig, MILLRACE_MEMBER(worker); MILLRACE_MEMBER(shards); MILLRACE_MEMBER(rack);
                MILLRACE_MEMBER(key_file); MILLRACE_MEMBER(server_key_file); MILLRACE_MEMBER(switch_key_file);
                MILLRACE_MEMBER(connect_timeout); MILLRACE_MEMBER(start_timeout); MILLRACE_MEMBER(shard_silence);
                MILLRACE_MEMBER(resend_after); MILLRACE_MEMBER(reconnect_after_max); MILLRACE_MEMBER(link_rate);
                MILLRACE_MEMBER(updates_kept_max); MILLRACE_MEMBER(keep_freed_memory); MILLRACE_MEMBER(returns);
                MILLRACE_MEMBER(load_path); MILLRACE_MEMBER(save_path); MILLRACE_MEMBER(http);
                MILLRACE_MEMBER(http_tls); MILLRACE_MEMBER(http_token_file); MILLRACE_MEMBER(http_insecure);
                MILLRACE_MEMBER(log); MILLRACE_MEMBER(give_up))
  MILLRACE_TYPE(TensorOptions, MILLRACE_MEMBER(name); MILLRACE_MEMBER(dimension); MILLRACE_MEMBER(priority);
                MILLRACE_MEMBER(select); MILLRACE_MEMBER(reselect); MILLRACE_MEMBER(codec_up);
                MILLRACE_MEMBER(codec_down); MILLRACE_MEMBER(output_layer); MILLRACE_MEMBER(weights))
}

// These types have no default constructor.
void print_device_array() {
  const char* const type = "DeviceArray";
  print_type<millrace::DeviceArray>(type);
  const millrace::DeviceArray whole(nullptr, 0, 0, nullptr);
  MILLRACE_MEMBER(pointer);
  MILLRACE_MEMBER(count);
  MILLRACE_MEMBER(device);
  MILLRACE_MEMBER(stream);
}

void print_device_span() {
  const char* const type = "DeviceSpan";
  print_type<millrace::DeviceSpan>(type);
  const millrace::DeviceSpan whole(nullptr, 0, 0, nullptr);
  MILLRACE_MEMBER(pointer);
  MILLRACE_MEMBER(count);
  MILLRACE_MEMBER(device);
  MILLRACE_MEMBER(stream);
}

void print_others() {
  MILLRACE_TYPE(UpdatePiece, MILLRACE_MEMBER(begin); MILLRACE_MEMBER(dimension); MILLRACE_MEMBER(dense);
                MILLRACE_MEMBER(indices); MILLRACE_MEMBER(values); MILLRACE_MEMBER(denominator);
                MILLRACE_MEMBER(contributors))
  MILLRACE_TYPE(TensorUpdate, MILLRACE_MEMBER(tensor); MILLRACE_MEMBER(step); MILLRACE_MEMBER(applied);
                MILLRACE_MEMBER(replaced); MILLRACE_MEMBER(pieces); MILLRACE_MEMBER(owner))
  MILLRACE_TYPE(SparseEntries, MILLRACE_MEMBER(indices); MILLRACE_MEMBER(values))
  print_device_array();
  print_device_span();
  MILLRACE_TYPE(PullOptions, MILLRACE_MEMBER(at_least_step); MILLRACE_MEMBER(timeout))
  MILLRACE_TYPE(PulledSteps, MILLRACE_MEMBER(least); MILLRACE_MEMBER(most))
  MILLRACE_TYPE(TensorStats, MILLRACE_MEMBER(name); MILLRACE_MEMBER(steps_pushed); MILLRACE_MEMBER(steps_applied);
                MILLRACE_MEMBER(entries_sent); MILLRACE_MEMBER(entries_sent_last); MILLRACE_MEMBER(entries_received);
                MILLRACE_MEMBER(entries_returned); MILLRACE_MEMBER(false_positives);
                MILLRACE_MEMBER(non_finite_dropped); MILLRACE_MEMBER(entries_discarded); MILLRACE_MEMBER(discarded);
                MILLRACE_MEMBER(residual_norm); MILLRACE_MEMBER(dropped_error); MILLRACE_MEMBER(dropped_magnitude);
                MILLRACE_MEMBER(codec_choice))
  MILLRACE_TYPE(AuditStats, MILLRACE_MEMBER(audits); MILLRACE_MEMBER(entered); MILLRACE_MEMBER(residual);
                MILLRACE_MEMBER(in_flight); MILLRACE_MEMBER(carried); MILLRACE_MEMBER(lost);
                MILLRACE_MEMBER(rounded_off); MILLRACE_MEMBER(imbalance); MILLRACE_MEMBER(checks))
  MILLRACE_TYPE(SwitchStats, MILLRACE_MEMBER(used); MILLRACE_MEMBER(at_switch); MILLRACE_MEMBER(turns);
                MILLRACE_MEMBER(resends); MILLRACE_MEMBER(timeouts); MILLRACE_MEMBER(fallbacks);
                MILLRACE_MEMBER(came_back); MILLRACE_MEMBER(congestion_marks); MILLRACE_MEMBER(packets_lost);
                MILLRACE_MEMBER(events))
  MILLRACE_TYPE(
      Stats, MILLRACE_MEMBER(bytes_up); MILLRACE_MEMBER(bytes_down); MILLRACE_MEMBER(payload_bytes_up);
      MILLRACE_MEMBER(payload_bytes_down); MILLRACE_MEMBER(raw_bytes_up); MILLRACE_MEMBER(raw_bytes_down);
      MILLRACE_MEMBER(history_bytes_saved); MILLRACE_MEMBER(history_shortened); MILLRACE_MEMBER(history_refused);
      MILLRACE_MEMBER(dense_bytes); MILLRACE_MEMBER(rounds); MILLRACE_MEMBER(resends); MILLRACE_MEMBER(reconnects);
      MILLRACE_MEMBER(duplicates); MILLRACE_MEMBER(updates_dropped_stale); MILLRACE_MEMBER(updates_dropped_malformed);
      MILLRACE_MEMBER(messages_dropped_unexpected); MILLRACE_MEMBER(not_counted); MILLRACE_MEMBER(returns);
      MILLRACE_MEMBER(returns_asked_for); MILLRACE_MEMBER(lost_save_too_old); MILLRACE_MEMBER(lost_off_log);
      MILLRACE_MEMBER(lost_cut); MILLRACE_MEMBER(unreturnable); MILLRACE_MEMBER(entries_void);
      MILLRACE_MEMBER(time_in_communication_s); MILLRACE_MEMBER(time_blocked_s); MILLRACE_MEMBER(bytes_to_devices);
      MILLRACE_MEMBER(bytes_from_devices); MILLRACE_MEMBER(device_memory_bytes); MILLRACE_MEMBER(audit);
      MILLRACE_MEMBER(by_switch); MILLRACE_MEMBER(tensors))
  MILLRACE_TYPE(SessionStatus, MILLRACE_MEMBER(returning); MILLRACE_MEMBER(returns); MILLRACE_MEMBER(waiting_for);
                MILLRACE_MEMBER(audit_imbalance); MILLRACE_MEMBER(workers_missing))
  MILLRACE_TYPE(ServerPath)
  MILLRACE_TYPE(optimizer::Sgd, MILLRACE_MEMBER(rate))
  MILLRACE_TYPE(optimizer::Momentum, MILLRACE_MEMBER(rate); MILLRACE_MEMBER(momentum))
  MILLRACE_TYPE(optimizer::Adagrad, MILLRACE_MEMBER(rate); MILLRACE_MEMBER(epsilon))
  MILLRACE_TYPE(optimizer::Adam, MILLRACE_MEMBER(rate); MILLRACE_MEMBER(beta1); MILLRACE_MEMBER(beta2);
                MILLRACE_MEMBER(epsilon))
  MILLRACE_TYPE(optimizer::Numbered, MILLRACE_MEMBER(number); MILLRACE_MEMBER(rate); MILLRACE_MEMBER(momentum);
                MILLRACE_MEMBER(decay); MILLRACE_MEMBER(epsilon))
  MILLRACE_TYPE(ValueCode::Parameters, MILLRACE_MEMBER(bits); MILLRACE_MEMBER(bucket); MILLRACE_MEMBER(scale);
                MILLRACE_MEMBER(multiplier))
  MILLRACE_TYPE(Store, MILLRACE_MEMBER(rule); MILLRACE_MEMBER(begin))
}

int main() {
  print_opaque_and_groups();
  print_options();
  print_others();
  print_numbers();
  return 0;
}
