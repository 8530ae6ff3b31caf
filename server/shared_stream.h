#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "kernels/base/buffer.h"
#include "kernels/stream/stream.h"

namespace millrace::server {

/// A stream of either value type that somebody keeps alive: its own arrays, or the payload that it came in. Immutable;
/// copying shares.
class SharedStream {
 public:
  SharedStream() = default;

  template <typename T>
  static SharedStream from(Stream<T>&& stream) {
    const uint64_t bytes = stream.memory_bytes();
    auto kept = std::make_shared<const Stream<T>>(std::move(stream));
    const StreamView<T> view = kept->view();
    return {std::move(kept), view, bytes};
  }
  /// `view` looks into the payload.
  template <typename T>
  static SharedStream within(const SharedBytes& payload, const StreamView<T>& view) {
    return {payload.owner, view, payload.bytes.size()};
  }

  explicit operator bool() const { return owner_ != nullptr; }

  ValueType value_type() const {
    return std::holds_alternative<StreamView<float>>(view_) ? ValueType::kF32 : ValueType::kF64;
  }
  /// REQUIRES: T is its value type.
  template <typename T>
  const StreamView<T>& view() const {
    return std::get<StreamView<T>>(view_);
  }
  template <typename Visit>
  auto visit(Visit&& visit) const {
    return std::visit(std::forward<Visit>(visit), view_);
  }
  uint64_t count() const {
    return visit([](const auto& view) { return view.count(); });
  }
  /// Of what is kept alive: all of a payload.
  uint64_t memory_bytes() const { return memory_bytes_; }
  /// Of one entry as a plain pair of index and value.
  uint64_t pair_bytes() const { return sizeof(uint32_t) + (value_type() == ValueType::kF32 ? 4 : 8); }

 private:
  using View = std::variant<StreamView<float>, StreamView<double>>;
  SharedStream(std::shared_ptr<const void> owner, const View& view, uint64_t bytes)
      : owner_(std::move(owner)), view_(view), memory_bytes_(bytes) {}

  std::shared_ptr<const void> owner_;
  View view_;
  uint64_t memory_bytes_ = 0;
};

}  // namespace millrace::server
