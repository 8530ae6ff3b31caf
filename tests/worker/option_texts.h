#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "worker/config/option_table.h"

namespace millrace::testing {

/// Sets an option of a job by its name and text, as a file or a flag does.
inline void set_option(JobConfig& job, std::string_view name, std::string_view text) {
  const Status set = worker::set_option(job, name, text);
  ASSERT_TRUE(set.has_value()) << set.error().message;
}

}  // namespace millrace::testing
