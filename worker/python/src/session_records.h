#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "millrace/millrace.h"

/// Results of a session as tuples, of which the Python part makes its classes.
namespace millrace::python {

/// Return the members, in the order of millrace/stats.h.
pybind11::tuple record_of(const Stats& stats);
pybind11::tuple record_of(const SessionStatus& status);

/// Returns (tensor, step, applied, replaced, pieces). A piece is (begin, dimension, dense, indices or None, values,
/// denominator, contributors), whose arrays keep the update alive.
pybind11::tuple record_of(TensorUpdate&& update);

/// Returns (indices, values).
pybind11::tuple record_of(SparseEntries&& entries);

}  // namespace millrace::python
