#pragma once

#include "kernels/select/registry.h"

/// The selections of this build, in the order in which lists show them. NAME is kernels/select/NAME.cc, which defines
/// NAME_selection(). CMakeLists.txt compiles the files of this list.
#define MILLRACE_SELECTIONS(SELECTION) \
  SELECTION(none)                      \
  SELECTION(top_k)                     \
  SELECTION(threshold)                 \
  SELECTION(threshold_reuse)           \
  SELECTION(bucket_top_k)              \
  SELECTION(trimmed)                   \
  SELECTION(binary_search)             \
  SELECTION(sampled)                   \
  SELECTION(radix)                     \
  SELECTION(by_size)                   \
  SELECTION(gaussian)                  \
  SELECTION(random)                    \
  SELECTION(gspar)                     \
  SELECTION(gspar_closed)              \
  SELECTION(uniform)

namespace millrace {

#define MILLRACE_DECLARE_SELECTION(word) SelectionEntry word##_selection();
MILLRACE_SELECTIONS(MILLRACE_DECLARE_SELECTION)
#undef MILLRACE_DECLARE_SELECTION

}  // namespace millrace
