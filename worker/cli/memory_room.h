#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/result.h"

namespace millrace::cli {

/// Returns how many bytes this process can still take, as far as the system says: what the machine has free, what the
/// control group (v2) leaves, and what the address-space limit (ulimit -v) leaves. Taking more ends in an exception, or
/// in the kernel killing a process.
uint64_t memory_available_bytes();

/// Returns the bytes of the weights of a linear model of so many features, the intercept's among them. A worker that
/// trains it with sparse gradients takes a tenth more (`millrace train` with 50 million features).
constexpr uint64_t model_bytes(uint64_t features) { return (features + 1) * sizeof(float); }

/// Returns the error of a model that memory has no room for: limit_exceeded, with the bytes that its weights take and
/// those that are free.
///
/// what  at the front of the sentence: the data, and what of it is so large.
Error no_memory_for_model(const std::string& what, uint64_t features, uint64_t available);

/// Refuses a model whose weights alone do not fit.
///
/// Errors   as no_memory_for_model().
Status check_model_fits(const std::string& what, uint64_t features, uint64_t available);

}  // namespace millrace::cli
