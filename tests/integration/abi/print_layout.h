#pragma once

#include <cstddef>
#include <cstdio>

/// Prints sizes and places of public types, a line each; abi_test.py compares them with those of a library's number.
namespace millrace::testing {

template <typename T>
void print_type(const char* name) {
  std::printf("type %s size %zu align %zu\n", name, sizeof(T), alignof(T));
}

template <typename T, typename M>
void print_member(const T& whole, const char* type, const char* name, const M& member) {
  const auto offset = reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&whole);
  std::printf("  %s::%s at %td size %zu\n", type, name, offset, sizeof(M));
}

/// Returns a value of T. Types with members that have no default specialize it.
template <typename T>
T example_of() {
  return T{};
}

template <typename T, typename Print>
void print_members(const char* name, Print print) {
  print_type<T>(name);
  const T whole = example_of<T>();
  print(whole);
}

}  // namespace millrace::testing

#define MILLRACE_MEMBER(name) millrace::testing::print_member(whole, type, #name, whole.name)
#define MILLRACE_TYPE(T, ...)                                                         \
  {                                                                                   \
    [[maybe_unused]] const char* const type = #T;                                     \
    millrace::testing::print_members<millrace::T>(#T, [&](const millrace::T& whole) { \
      (void)whole;                                                                    \
      __VA_ARGS__;                                                                    \
    });                                                                               \
  }

#define MILLRACE_NUMBER(E, name) std::printf("  %s::%s is %lld\n", #E, #name, static_cast<long long>(millrace::E::name))
