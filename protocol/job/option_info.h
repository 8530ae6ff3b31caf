#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace millrace::protocol {

/// Says under which heading help and documents list an option.
enum class OptionGroup : uint8_t { kJob, kCompression, kConsistency, kStore, kSwitch, kTiming, kWorker };

/// Names the quantity of a number, or the object of a text, where the type does not.
enum class OptionQuantity : uint8_t { kPlain, kRate, kFile, kAddress };
/// Longest duration that files and flags take.
inline constexpr double kDayMs = 24.0 * 60 * 60 * 1'000;

/// Describes an option, in the line of the visitor that has its field. `name` is its word in sentences; its flag is the
/// same with dashes. The default is the field's value in a default-made object. The unit follows from the field's type:
/// a duration is text as "200ms" or "10s".
struct OptionInfo {
  std::string_view name;
  OptionGroup group;
  std::string_view help;
  std::string_view flag = {};  ///< where it is another word than the name: "job"
  double least = 0;            ///< of numbers, and of durations in milliseconds; 1, of a text: it is not empty
  double most = std::numeric_limits<double>::infinity();  ///< of numbers, and of durations in milliseconds
  OptionQuantity quantity = OptionQuantity::kPlain;
};

}  // namespace millrace::protocol
