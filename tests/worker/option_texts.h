#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "worker/config/job_config.h"
#include "worker/config/option_table.h"

namespace millrace::testing {

/// Sets an option of a job by its name and text, as a file or a flag does.
inline void set_option(JobConfig& job, std::string_view name, std::string_view text) {
  worker::JobDraft draft = worker::draft_of(job);
  std::vector<worker::Option> options = worker::options_of(draft);
  const Status set = worker::option_named(options, name).set(text);
  ASSERT_TRUE(set.has_value()) << set.error().message;
  auto changed = worker::config_of(draft);
  ASSERT_TRUE(changed.has_value()) << changed.error().message;
  job = *changed;
}

}  // namespace millrace::testing
