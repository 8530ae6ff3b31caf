#pragma once

#include <pybind11/pybind11.h>

namespace millrace::python {

/// Adds advise() to the module: the cost models of `millrace advise`.
void bind_advice(pybind11::module_& module);

}  // namespace millrace::python
