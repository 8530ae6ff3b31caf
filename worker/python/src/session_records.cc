#include "worker/python/src/session_records.h"

#include <utility>

#include "worker/python/src/arrays.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

// The bindings below name every member: one that is new in C++ stops the build here.

py::dict tensor_record(const TensorStats& stats) {
  const auto& [name, steps_pushed, steps_applied, entries_sent, entries_sent_last, entries_received, entries_returned,
               false_positives, non_finite_dropped, entries_discarded, discarded, residual_norm, dropped_error,
               dropped_magnitude, codec_choice] = stats;
  py::dict record;
  record["name"] = name;
  record["steps_pushed"] = steps_pushed;
  record["steps_applied"] = steps_applied;
  record["entries_sent"] = entries_sent;
  record["entries_sent_last"] = entries_sent_last;
  record["entries_received"] = entries_received;
  record["entries_returned"] = entries_returned;
  record["false_positives"] = false_positives;
  record["non_finite_dropped"] = non_finite_dropped;
  record["entries_discarded"] = entries_discarded;
  record["discarded"] = discarded;
  record["residual_norm"] = residual_norm;
  record["dropped_error"] = dropped_error;
  record["dropped_magnitude"] = dropped_magnitude;
  record["codec_choice"] = codec_choice;
  return record;
}

py::dict audit_record(const AuditStats& stats) {
  const auto& [audits, entered, residual, in_flight, carried, lost, rounded_off, imbalance, checks] = stats;
  py::dict record;
  record["audits"] = audits;
  record["entered"] = entered;
  record["residual"] = residual;
  record["in_flight"] = in_flight;
  record["carried"] = carried;
  record["lost"] = lost;
  record["rounded_off"] = rounded_off;
  record["imbalance"] = imbalance;
  record["checks"] = checks;
  return record;
}

py::dict switch_record(const SwitchStats& stats) {
  const auto& [used, at_switch, turns, resends, timeouts, fallbacks, came_back, congestion_marks, packets_lost,
               events] = stats;
  py::dict record;
  record["used"] = used;
  record["at_switch"] = at_switch;
  record["turns"] = turns;
  record["resends"] = resends;
  record["timeouts"] = timeouts;
  record["fallbacks"] = fallbacks;
  record["came_back"] = came_back;
  record["congestion_marks"] = congestion_marks;
  record["packets_lost"] = packets_lost;
  py::dict counts;
  for (const auto& [event, count] : events) counts[py::str(event)] = count;
  record["events"] = counts;
  return record;
}

Array array_of(std::span<const float> values, std::shared_ptr<const void> owner) {
  return {values.data(), values.size(), ElementType::kF32, std::move(owner)};
}
Array array_of(std::span<const uint32_t> indices, std::shared_ptr<const void> owner) {
  return {indices.data(), indices.size(), ElementType::kU32, std::move(owner)};
}

py::tuple piece_record(const UpdatePiece& piece, const std::shared_ptr<const void>& owner) {
  const py::object indices = piece.dense ? py::object(py::none()) : py::cast(array_of(piece.indices, owner));
  return py::make_tuple(piece.begin, piece.dimension, piece.dense, indices, array_of(piece.values, owner),
                        piece.denominator, piece.contributors);
}

}  // namespace

py::dict record_of(const Stats& stats) {
  const auto& [bytes_up, bytes_down, payload_bytes_up, payload_bytes_down, raw_bytes_up, raw_bytes_down,
               history_bytes_saved, history_shortened, history_refused, dense_bytes, rounds, resends, reconnects,
               duplicates, updates_dropped_stale, updates_dropped_malformed, messages_dropped_unexpected, not_counted,
               returns, returns_asked_for, lost_save_too_old, lost_off_log, lost_cut, unreturnable, entries_void,
               time_in_communication_s, time_blocked_s, audit, by_switch, tensors] = stats;
  py::dict record;
  record["bytes_up"] = bytes_up;
  record["bytes_down"] = bytes_down;
  record["payload_bytes_up"] = payload_bytes_up;
  record["payload_bytes_down"] = payload_bytes_down;
  record["raw_bytes_up"] = raw_bytes_up;
  record["raw_bytes_down"] = raw_bytes_down;
  record["history_bytes_saved"] = history_bytes_saved;
  record["history_shortened"] = history_shortened;
  record["history_refused"] = history_refused;
  record["dense_bytes"] = dense_bytes;
  record["rounds"] = rounds;
  record["resends"] = resends;
  record["reconnects"] = reconnects;
  record["duplicates"] = duplicates;
  record["updates_dropped_stale"] = updates_dropped_stale;
  record["updates_dropped_malformed"] = updates_dropped_malformed;
  record["messages_dropped_unexpected"] = messages_dropped_unexpected;
  record["not_counted"] = not_counted;
  record["returns"] = returns;
  record["returns_asked_for"] = returns_asked_for;
  record["lost_save_too_old"] = lost_save_too_old;
  record["lost_off_log"] = lost_off_log;
  record["lost_cut"] = lost_cut;
  record["unreturnable"] = unreturnable;
  record["entries_void"] = entries_void;
  record["time_in_communication_s"] = time_in_communication_s;
  record["time_blocked_s"] = time_blocked_s;
  record["audit"] = audit_record(audit);
  record["by_switch"] = switch_record(by_switch);
  py::list records;
  for (const TensorStats& tensor : tensors) records.append(tensor_record(tensor));
  record["tensors"] = records;
  return record;
}

py::dict record_of(const SessionStatus& status) {
  const auto& [returning, returns, waiting_for, audit_imbalance, workers_missing] = status;
  py::dict record;
  record["returning"] = returning;
  record["returns"] = returns;
  record["waiting_for"] = waiting_for;
  record["audit_imbalance"] = audit_imbalance;
  record["workers_missing"] = workers_missing;
  return record;
}

py::tuple record_of(TensorUpdate&& update) {
  py::list pieces;
  for (const UpdatePiece& piece : update.pieces) pieces.append(piece_record(piece, update.owner));
  return py::make_tuple(update.tensor, update.step, update.applied, update.replaced, pieces);
}

py::tuple record_of(SparseEntries&& entries) {
  const auto owner = std::make_shared<const SparseEntries>(std::move(entries));
  return py::make_tuple(array_of(std::span<const uint32_t>(owner->indices), owner),
                        array_of(std::span<const float>(owner->values), owner));
}

}  // namespace millrace::python
