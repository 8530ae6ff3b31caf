#pragma once

#include <string>
#include <string_view>

#include "kernels/select/select.h"

namespace millrace {

/// Refuses select(): a selection that only draws has no residual, and a residual would add the entries that were not
/// drawn a second time.
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
