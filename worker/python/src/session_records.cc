#include "worker/python/src/session_records.h"

#include <utility>

#include "worker/python/src/arrays.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

// Each binding names every member, in the order of the header and of millrace/stats.py. A member that is new in C++
// stops the build here. session_test.py compares the names.

py::tuple tensor_record(const TensorStats& stats) {
  const auto& [name, steps_pushed, steps_applied, entries_sent, entries_sent_last, entries_received, entries_returned,
               false_positives, non_finite_dropped, entries_discarded, discarded, residual_norm, dropped_error,
               dropped_magnitude, codec_choice] = stats;
  return py::make_tuple(name, steps_pushed, steps_applied, entries_sent, entries_sent_last, entries_received,
                        entries_returned, false_positives, non_finite_dropped, entries_discarded, discarded,
                        residual_norm, dropped_error, dropped_magnitude, codec_choice);
}

py::tuple audit_record(const AuditStats& stats) {
  const auto& [audits, entered, residual, in_flight, carried, lost, rounded_off, imbalance, checks] = stats;
  return py::make_tuple(audits, entered, residual, in_flight, carried, lost, rounded_off, imbalance, checks);
}

py::tuple switch_record(const SwitchStats& stats) {
  const auto& [used, at_switch, turns, resends, timeouts, fallbacks, came_back, congestion_marks, packets_lost,
               events] = stats;
  py::dict counts;
  for (const auto& [event, count] : events) counts[py::str(event)] = count;
  return py::make_tuple(used, at_switch, turns, resends, timeouts, fallbacks, came_back, congestion_marks, packets_lost,
                        counts);
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

py::tuple record_of(const Stats& stats) {
  const auto& [bytes_up, bytes_down, payload_bytes_up, payload_bytes_down, raw_bytes_up, raw_bytes_down,
               history_bytes_saved, history_shortened, history_refused, dense_bytes, rounds, resends, reconnects,
               duplicates, updates_dropped_stale, updates_dropped_malformed, messages_dropped_unexpected, not_counted,
               returns, returns_asked_for, lost_save_too_old, lost_off_log, lost_cut, unreturnable, entries_void,
               time_in_communication_s, time_blocked_s, bytes_to_devices, bytes_from_devices, device_memory_bytes,
               audit, by_switch, tensors] = stats;
  py::list records;
  for (const TensorStats& tensor : tensors) records.append(tensor_record(tensor));
  return py::make_tuple(bytes_up, bytes_down, payload_bytes_up, payload_bytes_down, raw_bytes_up, raw_bytes_down,
                        history_bytes_saved, history_shortened, history_refused, dense_bytes, rounds, resends,
                        reconnects, duplicates, updates_dropped_stale, updates_dropped_malformed,
                        messages_dropped_unexpected, not_counted, returns, returns_asked_for, lost_save_too_old,
                        lost_off_log, lost_cut, unreturnable, entries_void, time_in_communication_s, time_blocked_s,
                        bytes_to_devices, bytes_from_devices, device_memory_bytes, audit_record(audit),
                        switch_record(by_switch), records);
}

py::tuple record_of(const SessionStatus& status) {
  const auto& [returning, returns, waiting_for, audit_imbalance, workers_missing] = status;
  return py::make_tuple(returning, returns, waiting_for, audit_imbalance, workers_missing);
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
