#include <cstdint>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/stream/stream.h"
#include "tests/support/libsvm_text.h"
#include "worker/training/data/libsvm.h"

// The parser's result is well formed for any text that it accepts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using millrace::StreamView;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  for (const uint32_t parts : {1U, 2U}) {
    const auto data = millrace::testing::parse_libsvm(text, "fuzz", {.part = parts - 1, .parts = parts});
    if (!data) continue;
    MILLRACE_CHECK(data->row_begin.size() == data->rows() + 1, data->row_begin.size(), data->rows());
    for (size_t at = 0; at < data->rows(); ++at) {
      const auto row = data->row(at);
      const StreamView view{data->dimension, false, row.indices, row.values};
      MILLRACE_CHECK(millrace::validate(view).has_value(), at);
      MILLRACE_CHECK(millrace::all_finite(row.values), at);
      MILLRACE_CHECK(row.label == 1 || row.label == -1, row.label);
    }
  }
  return 0;
}
