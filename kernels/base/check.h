#pragma once

#include <sstream>
#include <string>

namespace millrace {

/// Prints the failed condition with its operands to stderr and aborts. Called by MILLRACE_CHECK only.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& operands);

namespace detail {
template <typename... Operands>
std::string check_operands(const char* names, const Operands&... operands) {
  std::ostringstream out;
  if constexpr (sizeof...(operands) > 0) {
    out << names << " =";
    ((out << ' ' << operands), ...);
  }
  return out.str();
}
}  // namespace detail

}  // namespace millrace

/// A bug of ours if it does not hold: on in release builds, prints its operands, aborts. Never for a failure that a
/// peer, a file or a flag can cause: those return an Error.
#define MILLRACE_CHECK(condition, ...)                                                                       \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]] {                                                                         \
      ::millrace::check_failed(__FILE__, __LINE__, #condition,                                               \
                               ::millrace::detail::check_operands(#__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                                        \
  } while (false)
