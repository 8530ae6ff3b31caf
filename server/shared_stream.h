#pragma once

#include <cstdint>
#include <utility>
#include <variant>

#include "kernels/stream/held_stream.h"

namespace millrace::server {

/// A HeldStream of either value type: what a job sums in is known when it runs. Owner and threads as there.
class SharedStream {
 public:
  SharedStream() = default;
  template <typename T>
  explicit SharedStream(HeldStream<T>&& held) : held_(std::move(held)) {}
  template <typename T>
  static SharedStream from(Stream<T>&& stream) {
    return SharedStream(HeldStream<T>::from(std::move(stream)));
  }

  explicit operator bool() const {
    return std::visit([](const auto& held) { return held.owner != nullptr; }, held_);
  }
  ValueType value_type() const {
    return std::holds_alternative<HeldStream<float>>(held_) ? ValueType::kF32 : ValueType::kF64;
  }
  /// REQUIRES: T is its value type.
  template <typename T>
  const StreamView<T>& view() const {
    return std::get<HeldStream<T>>(held_).view;
  }
  template <typename Visit>
  auto visit(Visit&& visit) const {
    return std::visit([&visit](const auto& held) { return visit(held.view); }, held_);
  }
  uint64_t count() const {
    return visit([](const auto& view) { return view.count(); });
  }
  /// Of what is kept alive: all of a payload.
  uint64_t memory_bytes() const {
    return std::visit([](const auto& held) { return held.memory_bytes; }, held_);
  }
  /// Of one entry as a plain pair of index and value.
  uint64_t pair_bytes() const { return sizeof(uint32_t) + (value_type() == ValueType::kF32 ? 4 : 8); }

 private:
  std::variant<HeldStream<float>, HeldStream<double>> held_;
};

}  // namespace millrace::server
