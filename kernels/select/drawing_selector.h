#pragma once

#include <string>
#include <string_view>

#include "kernels/select/select.h"

namespace millrace {

/// Refuses select(): a selection that only draws has no residual, and one would add a second time what was not drawn.
class DrawingSelector : public Selector {
 public:
  explicit DrawingSelector(std::string_view name) : name_(name) {}
  Status select(const StreamView&, const SelectContext&, IndexBuffer& positions) final {
    positions.clear();
    return fail(ErrorCode::kUnsupported, name_ + " draws values scaled up, for unbiased jobs; use draw()");
  }

 private:
  std::string name_;
};

}  // namespace millrace
