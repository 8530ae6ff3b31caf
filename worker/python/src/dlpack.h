#pragma once

#include <cstdint>

/// The structures of DLPack 0, by which Python libraries hand arrays to each other without a copy. A capsule named
/// "dltensor" points to a DLManagedTensor. Names and layout are those of the specification.
namespace millrace::python::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4 };

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t dimensions;
  DataType type;
  int64_t* shape;
  int64_t* strides;  ///< in elements; nullptr: rows of the last dimension follow each other
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

inline constexpr const char* kCapsule = "dltensor";

}  // namespace millrace::python::dlpack
