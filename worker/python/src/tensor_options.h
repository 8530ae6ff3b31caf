#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "millrace/options.h"
#include "worker/python/src/arrays.h"

namespace millrace::python {

/// Returns the tensors of the rows that PythonSession() documents.
///
/// weights  takes the arrays of weights, which the tensors refer to.
/// Errors   JobError invalid_argument, with the tensor's name: a text that is none of its kind. TypeError,
///          ValueError: of an array.
std::vector<TensorOptions> tensors_of(const pybind11::list& rows, std::vector<BorrowedArray>& weights);

/// Returns the words of "on_await" and "on_arrival".
ApplyWhen apply_of(const std::string& word);

/// Returns the array, which must be f32 and writable: the library adds updates to it.
BorrowedArray weights_of(pybind11::handle array, std::string_view what);

}  // namespace millrace::python
