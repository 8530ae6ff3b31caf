#include <bit>
#include <string>

#include "worker/python/src/arrays.h"
#include "worker/python/src/dlpack.h"

namespace py = pybind11;

/// Arrays in a device's memory.
namespace millrace::python {
namespace {

/// The number of CUDA's default stream in both protocols. The library does the same with it and with null.
constexpr uintptr_t kDefaultStream = 1;

[[noreturn]] void refuse_device_type(std::string_view what) {
  throw py::type_error(std::string(what) + " in a device's memory has elements of another type: f32 is taken there");
}

[[noreturn]] void refuse_device_layout(std::string_view what) {
  throw py::value_error(std::string(what) + " in a device's memory is not contiguous: pass a contiguous array");
}

/// Makes a tensor's device current while it lives: torch exports for, and orders by, the current device. Other arrays'
/// exporters look at their own device.
///
/// stream()  that of an export: torch's current one, whose work so far writes the tensor; for others the default one,
///           which the exporter makes wait.
class TorchDevice {
 public:
  TorchDevice(py::handle object, int device) {
    const py::dict modules = py::module_::import("sys").attr("modules");
    if (!modules.contains("torch")) return;
    const py::object torch = modules["torch"];
    if (!py::hasattr(torch, "Tensor") || !py::isinstance(object, torch.attr("Tensor"))) return;
    scope_ = torch.attr("cuda").attr("device")(device);
    scope_.attr("__enter__")();
    const auto handle = torch.attr("cuda").attr("current_stream")().attr("cuda_stream").cast<uintptr_t>();
    if (handle != 0) stream_ = handle;
  }
  TorchDevice(const TorchDevice&) = delete;
  TorchDevice& operator=(const TorchDevice&) = delete;
  ~TorchDevice() {
    if (!scope_) return;
    try {
      scope_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("millrace: the current device");
    }
  }
  uintptr_t stream() const { return stream_; }

 private:
  py::object scope_;
  uintptr_t stream_ = kDefaultStream;
};

const float* floats_at(uintptr_t address) { return std::bit_cast<const float*>(address); }

}  // namespace

DeviceInput DeviceInput::of_dlpack(py::handle object, std::string_view what, int device) {
  const TorchDevice current(object, device);
  py::object capsule = object.attr("__dlpack__")(py::arg("stream") = current.stream());
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
  if (managed == nullptr) throw py::error_already_set();
  const dlpack::Tensor& tensor = managed->tensor;
  if (tensor.type.code != dlpack::kFloat || tensor.type.bits != 32 || tensor.type.lanes != 1) refuse_device_type(what);
  if (!is_contiguous(tensor)) refuse_device_layout(what);
  size_t count = 1;
  for (int32_t at = 0; at < tensor.dimensions; ++at) count *= static_cast<size_t>(tensor.shape[at]);
  const auto address = std::bit_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  return {std::move(capsule), {floats_at(address), count, device, std::bit_cast<void*>(current.stream())}};
}

DeviceInput DeviceInput::of_interface(py::handle object, std::string_view what) {
  const py::dict interface = object.attr("__cuda_array_interface__");
  if (py::str(interface["typestr"]).cast<std::string>() != "<f4") refuse_device_type(what);
  const auto member = [&](const char* name) -> py::object {
    return interface.contains(name) ? py::object(interface[name]) : py::none();
  };
  if (!member("mask").is_none()) {
    throw py::value_error(std::string(what) + " in a device's memory has a mask: pass an array without one");
  }
  const auto shape = interface["shape"].cast<py::tuple>();
  const py::object strides = member("strides");
  size_t count = 1;
  for (size_t at = shape.size(); at-- > 0;) {
    const auto size = shape[at].cast<size_t>();
    const bool follows = strides.is_none() || size <= 1 ||
                         strides.cast<py::tuple>()[at].cast<int64_t>() == static_cast<int64_t>(count * sizeof(float));
    if (!follows) refuse_device_layout(what);
    count *= size;
  }
  const auto address = interface["data"].cast<py::tuple>()[0].cast<uintptr_t>();
  const py::object stream = member("stream");
  const uintptr_t number = stream.is_none() ? 0 : stream.cast<uintptr_t>();
  return {py::reinterpret_borrow<py::object>(object),
          {floats_at(address), count, DeviceSpan::kOfPointer, std::bit_cast<void*>(number)}};
}

std::optional<DeviceInput> DeviceInput::of(py::handle object, std::string_view what) {
  if (py::hasattr(object, "__dlpack_device__")) {
    const auto device = py::cast<py::tuple>(object.attr("__dlpack_device__")());
    if (py::object(device[0]).cast<int32_t>() == dlpack::kCuda) {
      return of_dlpack(object, what, py::object(device[1]).cast<int>());
    }
    return std::nullopt;
  }
  if (py::hasattr(object, "__cuda_array_interface__")) return of_interface(object, what);
  return std::nullopt;
}

}  // namespace millrace::python
