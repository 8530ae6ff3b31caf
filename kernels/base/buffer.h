#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace {

/// Allocates without initialising: resize() leaves trivial elements unset. So a buffer that is about to be overwritten
/// is not cleared first (a memory pass that would show in every kernel).
template <typename T>
struct UninitializedAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };
  UninitializedAllocator() = default;
  template <typename U>
  explicit UninitializedAllocator(const UninitializedAllocator<U>&) {}
  template <typename U>
  void construct(U* at) noexcept(std::is_nothrow_default_constructible_v<U>) {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

template <typename T>
using Buffer = std::vector<T, UninitializedAllocator<T>>;

using ByteBuffer = Buffer<uint8_t>;
using IndexBuffer = Buffer<uint32_t>;
using ByteSpan = std::span<const uint8_t>;
using IndexSpan = std::span<const uint32_t>;

/// Refers to bytes with a shared owner (a received message, an encoded update sent to many). Copying shares.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  ByteSpan bytes;

  static SharedBytes from(ByteBuffer&& buffer) {
    auto kept = std::make_shared<const ByteBuffer>(std::move(buffer));
    return {kept, ByteSpan(*kept)};
  }
};

}  // namespace millrace
