#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "millrace/device.h"
#include "millrace/entries.h"
#include "worker/python/src/elements.h"

/// Arrays of Python, by the buffer protocol or DLPack: NumPy, torch, JAX and CuPy have one of them.
namespace millrace::python {

namespace dlpack {
struct Tensor;
}
/// Says whether a tensor's elements follow each other in C order.
bool is_contiguous(const dlpack::Tensor& tensor);

enum class Access : uint8_t { kRead, kWrite };

/// Borrows the memory of an array of Python. It needs the interpreter's lock when it is made, moved and destroyed, and
/// not while its memory is used.
class BorrowedArray {
 public:
  /// object   an array in C order, in the memory of the CPU: any shape.
  /// what     its word in errors: "gradient".
  /// Errors   TypeError: no array, or elements of another type. ValueError: not contiguous, on a device, or read-only
  ///          where `access` is kWrite.
  static BorrowedArray of(pybind11::handle object, std::string_view what, Access access);

  size_t count() const { return count_; }
  ElementType type() const { return type_; }
  const void* data() const { return data_; }
  /// REQUIRES: kWrite.
  void* writable() const { return data_; }
  /// REQUIRES: type() is kF32.
  std::span<float> floats() const { return {static_cast<float*>(data_), count_}; }

 private:
  struct ReleaseBuffer {
    void operator()(Py_buffer* buffer) const {
      PyBuffer_Release(buffer);
      delete buffer;
    }
  };
  static std::optional<BorrowedArray> of_buffer(pybind11::handle object, std::string_view what, Access access);
  static BorrowedArray of_dlpack(pybind11::handle object, std::string_view what);

  std::unique_ptr<Py_buffer, ReleaseBuffer> buffer_;
  pybind11::object capsule_;  ///< DLPack's; its destructor releases the memory
  void* data_ = nullptr;
  size_t count_ = 0;
  ElementType type_ = ElementType::kF32;
};

/// Holds f32 values of an array: the array's own, or converted ones.
class FloatInput {
 public:
  FloatInput(pybind11::handle object, std::string_view what);
  /// Returns the values; converts them in the first call, which may be made without the interpreter's lock.
  std::span<const float> values();
  /// Frees converted values. It may be called without the interpreter's lock.
  void forget() { converted_.reset(); }

 private:
  BorrowedArray array_;
  std::optional<Uninitialized<float>> converted_;
  bool counted_ = false;  ///< as a copy
};

/// Borrows f32 values in the memory of a CUDA device: those of an array with __dlpack__ there, or with
/// __cuda_array_interface__. It needs the interpreter's lock as BorrowedArray does.
class DeviceInput {
 public:
  /// Returns empty where the object has neither there: it may be an array of the host.
  ///
  /// Errors   TypeError: elements of another type than f32. ValueError: not contiguous, or with a mask.
  static std::optional<DeviceInput> of(pybind11::handle object, std::string_view what);

  /// Returns the values, and the stream whose work writes them: of DLPack the default stream, which its producer makes
  /// wait for the current one.
  const DeviceSpan& span() const { return span_; }

 private:
  DeviceInput(pybind11::object owner, const DeviceSpan& span) : owner_(std::move(owner)), span_(span) {}
  static DeviceInput of_dlpack(pybind11::handle object, std::string_view what, int device);
  static DeviceInput of_interface(pybind11::handle object, std::string_view what);

  pybind11::object owner_;  ///< of the memory
  DeviceSpan span_;
};

/// Holds u32 indices of an array, in the same way. Those of i32 are the array's own unless one is negative.
class IndexInput {
 public:
  explicit IndexInput(pybind11::handle object);
  /// Errors   JobError invalid_argument: an index below 0, or of 2^32 or more.
  std::span<const uint32_t> indices();

 private:
  BorrowedArray array_;
  std::optional<Uninitialized<uint32_t>> converted_;
};

/// Returns a copy of the entries of a pair (indices, values). Errors  as of IndexInput and FloatInput.
SparseEntries entries_of(const pybind11::tuple& pair);

/// Is an array of the library for Python: one dimension, read-only, kept alive by `owner`.
struct Array {
  const void* data = nullptr;
  size_t count = 0;
  ElementType type = ElementType::kF32;
  std::shared_ptr<const void> owner;
};

/// Adds the class Array to the module.
void bind_arrays(pybind11::module_& module);

}  // namespace millrace::python
