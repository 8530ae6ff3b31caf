#include "worker/python/src/tensor_options.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "worker/config/option_access.h"
#include "worker/config/option_text.h"
#include "worker/python/src/option_sets.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

/// Reads an optional text by its parser and turns the specification into the public type.
template <typename Parse, typename Convert>
auto override_of_text(const py::object& text, const std::string& tensor, const char* option, Parse parse,
                      Convert convert) -> std::optional<decltype(convert(*parse(std::string_view())))> {
  if (text.is_none()) return std::nullopt;
  const auto spec = parse(std::string_view(py::cast<std::string>(text)));
  if (!spec) raise({spec.error().code, "tensor '" + tensor + "', " + option + ": " + spec.error().message});
  return convert(*spec);
}

/// Calls a function of Python on the library's threads: under the interpreter's lock, also for its destruction.
class PythonSchedule {
 public:
  explicit PythonSchedule(py::object function)
      : function_(new py::object(std::move(function)), [](py::object* last) {
          const py::gil_scoped_acquire lock;
          delete last;
        }) {}

  /// Returns NaN, which ends the session, where the function raises.
  float operator()(uint64_t step) const {
    const py::gil_scoped_acquire lock;
    try {
      return py::cast<float>((*function_)(step));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("schedule of millrace.Tensor");
    } catch (const py::cast_error&) {
      PyErr_SetString(PyExc_TypeError, "a schedule returns a number");
      PyErr_WriteUnraisable(function_->ptr());
    }
    return std::numeric_limits<float>::quiet_NaN();
  }

 private:
  std::shared_ptr<py::object> function_;
};

Weights weights_with(const py::tuple& row, std::span<float> array) {
  const ApplyWhen apply = apply_of(row[11].cast<std::string>());
  const py::object schedule = row[10];
  if (schedule.is_none()) return {array, row[9].cast<float>(), apply};
  return {array,
          [function = PythonSchedule(schedule)](uint64_t step, uint64_t, std::span<float>) { return function(step); },
          apply};
}

TensorOptions tensor_of_row(const py::tuple& row, std::vector<BorrowedArray>& weights) {
  TensorOptions tensor{.name = row[0].cast<std::string>(),
                       .dimension = row[1].cast<uint64_t>(),
                       .priority = row[2].cast<int32_t>(),
                       .output_layer = row[7].cast<bool>()};
  const auto codec = [](const CodecSpec& spec) { return OptionAccess::codec_of(spec); };
  tensor.select = override_of_text(row[3], tensor.name, "select", selection_from_text,
                                   [](const SelectionSpec& spec) { return OptionAccess::selection_of(spec); });
  tensor.reselect =
      override_of_text(row[4], tensor.name, "reselect", worker::reselect_from_text,
                       [](const worker::ReselectText& text) { return OptionAccess::reselect_of(text.spec); });
  tensor.codec_up = override_of_text(row[5], tensor.name, "codec_up", codec_from_text, codec);
  tensor.codec_down = override_of_text(row[6], tensor.name, "codec_down", codec_from_text, codec);
  const py::object array = row[8];
  if (array.is_none()) return tensor;
  weights.push_back(weights_of(array, "weights of tensor '" + tensor.name + "'"));
  tensor.weights = weights_with(row, weights.back().floats());
  return tensor;
}

}  // namespace

std::vector<TensorOptions> tensors_of(const py::list& rows, std::vector<BorrowedArray>& weights) {
  std::vector<TensorOptions> tensors;
  for (const py::handle& row : rows) tensors.push_back(tensor_of_row(py::cast<py::tuple>(row), weights));
  return tensors;
}

ApplyWhen apply_of(const std::string& word) {
  if (word == "on_await") return ApplyWhen::kOnAwait;
  if (word == "on_arrival") return ApplyWhen::kOnArrival;
  throw py::value_error("apply is '" + word + "': known are 'on_await' and 'on_arrival'");
}

BorrowedArray weights_of(py::handle array, std::string_view what) {
  BorrowedArray borrowed = BorrowedArray::of(array, what, Access::kWrite);
  if (borrowed.type() == ElementType::kF32) return borrowed;
  throw py::type_error(std::string(what) + " have elements of type " + std::string(element_name(borrowed.type())) +
                       ": the library adds updates to f32 alone");
}

}  // namespace millrace::python
