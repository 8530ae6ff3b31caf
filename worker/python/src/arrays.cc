#include "worker/python/src/arrays.h"

#include <array>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "millrace/millrace.h"
#include "worker/python/src/dlpack.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

static_assert(std::endian::native == std::endian::little, "formats of buffers are read as little-endian");

std::string sentence(std::string_view what, std::string_view rest) {
  return std::string(what) + " " + std::string(rest);
}

std::string type_name(py::handle object) { return py::str(py::type::handle_of(object).attr("__name__")); }

constexpr std::string_view kKnownTypes = "f32, f64, f16 and bf16 for values, and 32 or 64 bits for indices";

/// Returns the type of a struct-module format with that size of an element.
std::optional<ElementType> type_of_format(const char* format, ptrdiff_t bytes) {
  std::string_view text = format == nullptr ? "B" : format;
  if (text.starts_with('<') || text.starts_with('=') || text.starts_with('@')) text.remove_prefix(1);
  if (text == "f" && bytes == 4) return ElementType::kF32;
  if (text == "d" && bytes == 8) return ElementType::kF64;
  if (text == "e" && bytes == 2) return ElementType::kF16;
  if ((text == "I" || text == "L") && bytes == 4) return ElementType::kU32;
  if ((text == "i" || text == "l") && bytes == 4) return ElementType::kI32;
  if ((text == "L" || text == "Q") && bytes == 8) return ElementType::kU64;
  if ((text == "l" || text == "q") && bytes == 8) return ElementType::kI64;
  return std::nullopt;
}

std::optional<ElementType> type_of_dlpack(const dlpack::DataType& type) {
  constexpr std::array<std::pair<dlpack::DataType, ElementType>, 8> kTypes = {{
      {{dlpack::kFloat, 32, 1}, ElementType::kF32},
      {{dlpack::kFloat, 64, 1}, ElementType::kF64},
      {{dlpack::kFloat, 16, 1}, ElementType::kF16},
      {{dlpack::kBfloat, 16, 1}, ElementType::kBf16},
      {{dlpack::kUInt, 32, 1}, ElementType::kU32},
      {{dlpack::kInt, 32, 1}, ElementType::kI32},
      {{dlpack::kUInt, 64, 1}, ElementType::kU64},
      {{dlpack::kInt, 64, 1}, ElementType::kI64},
  }};
  for (const auto& [known, element] : kTypes) {
    if (known.code == type.code && known.bits == type.bits && known.lanes == type.lanes) return element;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_layout(std::string_view what) {
  throw py::value_error(sentence(what,
                                 "is not contiguous: pass a contiguous array, as numpy.ascontiguousarray(x) or "
                                 "x.contiguous() returns"));
}

/// Destroys a capsule that no consumer has taken.
void destroy_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kCapsule) == 0) return;
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  managed->deleter(managed);
}

dlpack::DataType dlpack_type(ElementType type) {
  return type == ElementType::kU32 ? dlpack::DataType{dlpack::kUInt, 32, 1} : dlpack::DataType{dlpack::kFloat, 32, 1};
}

/// Holds an array that another library reads.
struct Exported {
  dlpack::ManagedTensor managed;
  std::shared_ptr<const void> owner;
  int64_t shape;
};

py::object capsule_of(const Array& array) {
  auto exported = std::make_unique<Exported>();
  exported->owner = array.owner;
  exported->shape = static_cast<int64_t>(array.count);
  exported->managed = {.tensor = {.data = const_cast<void*>(array.data),
                                  .device = {dlpack::kCpu, 0},
                                  .dimensions = 1,
                                  .type = dlpack_type(array.type),
                                  .shape = &exported->shape,
                                  .strides = nullptr,
                                  .byte_offset = 0},
                       .context = exported.get(),
                       .deleter = [](dlpack::ManagedTensor* self) { delete static_cast<Exported*>(self->context); }};
  PyObject* capsule = PyCapsule_New(&exported->managed, dlpack::kCapsule, destroy_capsule);
  if (capsule == nullptr) throw py::error_already_set();
  (void)exported.release();
  return py::reinterpret_steal<py::object>(capsule);
}

py::buffer_info buffer_of(Array& array) {
  static uint32_t nothing = 0;  // an empty array has an address too
  void* data = array.count == 0 ? &nothing : const_cast<void*>(array.data);
  const auto bytes = static_cast<py::ssize_t>(element_bytes(array.type));
  const std::string format = array.type == ElementType::kU32 ? "I" : "f";
  return {data, bytes, format, 1, {static_cast<py::ssize_t>(array.count)}, {bytes}, /*readonly=*/true};
}

}  // namespace

bool is_contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t at = tensor.dimensions - 1; at >= 0; --at) {
    if (tensor.shape[at] == 0) return true;
    if (tensor.shape[at] != 1 && tensor.strides[at] != expected) return false;
    expected *= tensor.shape[at];
  }
  return true;
}

std::optional<BorrowedArray> BorrowedArray::of_buffer(py::handle object, std::string_view what, Access access) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return std::nullopt;
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
    // An array whose type has no format: DLPack may have it.
    if (!py::hasattr(object, "__dlpack__")) throw py::error_already_set();
    PyErr_Clear();
    return std::nullopt;
  }
  BorrowedArray array;
  array.buffer_.reset(buffer.release());
  const Py_buffer& view = *array.buffer_;
  const auto type = type_of_format(view.format, view.itemsize);
  if (!type) {
    throw py::type_error(sentence(what, "has elements of format '" +
                                            std::string(view.format == nullptr ? "B" : view.format) + "': known are " +
                                            std::string(kKnownTypes)));
  }
  if (PyBuffer_IsContiguous(&view, 'C') == 0) refuse_layout(what);
  if (access == Access::kWrite && view.readonly != 0) {
    throw py::value_error(sentence(what, "is read-only: pass an array that may be written"));
  }
  array.type_ = *type;
  array.data_ = view.buf;
  array.count_ = static_cast<size_t>(view.len / view.itemsize);
  return array;
}

BorrowedArray BorrowedArray::of_dlpack(py::handle object, std::string_view what) {
  BorrowedArray array;
  array.capsule_ = object.attr("__dlpack__")();
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(array.capsule_.ptr(), dlpack::kCapsule));
  if (managed == nullptr) throw py::error_already_set();
  const dlpack::Tensor& tensor = managed->tensor;
  // Its __dlpack_device__() says the same, and torch's takes 20 us.
  if (tensor.device.type != dlpack::kCpu && tensor.device.type != dlpack::kCudaHost) {
    throw py::value_error(sentence(what, "is in the memory of a device: pass a copy on the CPU, as x.cpu() returns"));
  }
  const auto type = type_of_dlpack(tensor.type);
  if (!type) {
    throw py::type_error(sentence(what, "has elements of another type: known are " + std::string(kKnownTypes)));
  }
  if (!is_contiguous(tensor)) refuse_layout(what);
  array.type_ = *type;
  array.data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  array.count_ = 1;
  for (int32_t at = 0; at < tensor.dimensions; ++at) array.count_ *= static_cast<size_t>(tensor.shape[at]);
  return array;
}

BorrowedArray BorrowedArray::of(py::handle object, std::string_view what, Access access) {
  if (auto array = of_buffer(object, what, access)) return std::move(*array);
  if (py::hasattr(object, "__dlpack__")) return of_dlpack(object, what);
  throw py::type_error(sentence(what, "is a " + type_name(object) +
                                          ": pass an array with the buffer protocol or __dlpack__, as of NumPy or "
                                          "torch"));
}

FloatInput::FloatInput(py::handle object, std::string_view what)
    : array_(BorrowedArray::of(object, what, Access::kRead)) {
  if (!is_real(array_.type())) {
    throw py::type_error(sentence(
        what, "has elements of type " + std::string(element_name(array_.type())) + ": it takes f32, f64, f16 or bf16"));
  }
}

std::span<const float> FloatInput::values() {
  if (array_.type() != ElementType::kF32 && !converted_) {
    converted_.emplace(array_.count());
    to_f32(array_.data(), array_.type(), converted_->span());
  }
  const std::span<const float> values = converted_ ? std::span<const float>(converted_->span()) : array_.floats();
  // Values in other memory than the caller's are a copy.
  if (!counted_ && values.data() != array_.data()) {
    counted_ = true;
    count_copied_in(values);
  }
  return values;
}

IndexInput::IndexInput(py::handle object) : array_(BorrowedArray::of(object, "indices", Access::kRead)) {
  if (is_real(array_.type())) {
    throw py::type_error(sentence("indices", "have elements of type " + std::string(element_name(array_.type())) +
                                                 ": they are integers of 32 or 64 bits"));
  }
}

std::span<const uint32_t> IndexInput::indices() {
  const std::span<const uint32_t> in_place(static_cast<const uint32_t*>(array_.data()), array_.count());
  if (array_.type() == ElementType::kU32) return in_place;
  // Of i32, those from 0 on have the same bits.
  constexpr uint32_t kSign = 1U << 31;
  const auto either = [](uint32_t all, uint32_t one) { return all | one; };
  if (array_.type() == ElementType::kI32 && (std::reduce(in_place.begin(), in_place.end(), 0U, either) & kSign) == 0)
    return in_place;
  if (!converted_) {
    converted_.emplace(array_.count());
    if (!to_indices(array_.data(), array_.type(), converted_->span())) {
      throw JobError(JobErrorCode::kInvalidArgument, "indices must be 0 or more, and below 2^32",
                     JobErrorOrigin::kWorker);
    }
    count_copied_in(converted_->span());
  }
  return converted_->span();
}

SparseEntries entries_of(const py::tuple& pair) {
  if (pair.size() != 2) throw py::value_error("entries are a pair (indices, values)");
  IndexInput indices(pair[0]);
  FloatInput values(pair[1], "values");
  const auto at = indices.indices();
  const auto held = values.values();
  count_copied_in(at);
  count_copied_in(held);
  return {{at.begin(), at.end()}, {held.begin(), held.end()}};
}

void bind_arrays(py::module_& module) {
  py::class_<Array>(
      module, "Array", py::buffer_protocol(),
      "Read-only array of one dimension, f32 or u32, in the library's memory. numpy.asarray(x) and "
      "torch.from_dlpack(x), which takes u32 from torch 2.3 on, read it without a copy and keep it alive. "
      "Do not write to it.")
      .def_buffer(&buffer_of)
      .def("__len__", [](const Array& array) { return array.count; })
      .def(
          "__dlpack__", [](const Array& array, const py::args&, const py::kwargs&) { return capsule_of(array); },
          "Returns a capsule of DLPack. stream and the other arguments have no effect on the CPU.")
      .def("__dlpack_device__", [](const Array&) { return py::make_tuple(int{dlpack::kCpu}, 0); });
}

}  // namespace millrace::python
