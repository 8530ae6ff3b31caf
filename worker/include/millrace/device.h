#pragma once

#include <cstddef>

/// Arrays in the memory of a CUDA device. This header needs no header of CUDA.
namespace millrace {
inline namespace v0 {

/// Views an array of f32 in a CUDA device's memory. Does not own. It has no default arguments: {pointer, count} is a
/// std::span of the host's memory.
struct DeviceSpan {
  constexpr DeviceSpan(const float* pointer_, size_t count_, int device_, void* stream_)
      : pointer(pointer_), count(count_), device(device_), stream(stream_) {}

  static constexpr int kOfPointer = -1;

  const float* pointer;
  size_t count;
  int device;    ///< as CUDA numbers the devices of this process; kOfPointer: that of the memory
  void* stream;  ///< cudaStream_t whose work so far writes the array; null: the device's default stream
};

/// Views an array of f32 in a CUDA device's memory that the library writes: weights.
struct DeviceArray {
  constexpr DeviceArray(float* pointer_, size_t count_, int device_, void* stream_)
      : pointer(pointer_), count(count_), device(device_), stream(stream_) {}

  float* pointer;
  size_t count;
  int device;    ///< as of DeviceSpan
  void* stream;  ///< cudaStream_t of the caller's work with the array; null: the device's default stream
};

}  // namespace v0
}  // namespace millrace
