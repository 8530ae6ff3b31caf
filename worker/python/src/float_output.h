#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "worker/python/src/arrays.h"
#include "worker/python/src/elements.h"

namespace millrace::python {

/// Returns the floats of an array that the library writes: its own, or a buffer before a conversion.
class FloatOutput {
 public:
  FloatOutput(pybind11::handle object, std::string_view what)
      : array_(BorrowedArray::of(object, what, Access::kWrite)) {
    if (!is_real(array_.type())) {
      throw pybind11::type_error(std::string(what) + " has elements of type " +
                                 std::string(element_name(array_.type())) + ": it takes f32, f64, f16 or bf16");
    }
  }
  size_t count() const { return array_.count(); }
  std::span<float> floats() {
    if (array_.type() == ElementType::kF32) return array_.floats();
    if (!unconverted_) unconverted_.emplace(array_.count());
    return unconverted_->span();
  }
  /// Converts the floats to the array's type.
  void commit() {
    if (!unconverted_) return;
    from_f32(unconverted_->span(), array_.type(), array_.writable());
    copy_counters().bytes_out += array_.count() * sizeof(float);
    unconverted_.reset();
  }

 private:
  BorrowedArray array_;
  std::optional<Uninitialized<float>> unconverted_;
};

}  // namespace millrace::python
