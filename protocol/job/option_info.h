#pragma once

#include <cstdint>
#include <string_view>

namespace millrace::protocol {

/// Says under which heading help and documents list an option.
enum class OptionGroup : uint8_t { kJob, kCompression, kConsistency, kStore, kSwitch, kTiming, kWorker };

/// Says what a number counts, or what a text names, where the type does not.
enum class OptionQuantity : uint8_t { kPlain, kRate, kFile, kAddress };

/// Describes an option, in the line of the visitor that has its field. `name` is its word in sentences; its flag is the
/// same with dashes. The default is the field's value in a default-made object. The unit follows from the field's type:
/// a duration is text as "200ms" or "10s".
struct OptionInfo {
  std::string_view name;
  OptionGroup group;
  std::string_view help;
  std::string_view flag = {};  ///< where it is another word than the name: "job"
  uint64_t least = 0;          ///< of whole numbers, and of durations in milliseconds
  uint64_t most = UINT64_MAX;
  OptionQuantity quantity = OptionQuantity::kPlain;
};

}  // namespace millrace::protocol
