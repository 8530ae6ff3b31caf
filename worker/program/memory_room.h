#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/result.h"

namespace millrace::program {

/// Returns how many bytes this process can still take, as far as the system reports: the smallest of three limits.
/// These are the machine's free memory, the remainder of the control group (v2) and its ancestors, and that of the
/// address-space limit (ulimit -v). Taking more ends in an exception, or in the kernel killing a process.
uint64_t memory_available_bytes();

/// Returns how many bytes a control group (v2) and those around it leave; the largest number: none has a limit. The
/// cache of files (active_file and inactive_file in memory.stat) counts as free: the kernel drops it before it kills a
/// process.
///
/// root   folder of the outermost group: /sys/fs/cgroup
/// group  path of the group in it: "/", "/system.slice/train.service"
uint64_t bytes_left_in_groups(const std::string& root, std::string group);

/// Returns the bytes of the weights of a linear model of `features` features, the intercept's among them. A worker that
/// trains it with sparse gradients takes a tenth more (`millrace train` with 50 million features).
constexpr uint64_t model_bytes(uint64_t features) { return (features + 1) * sizeof(float); }

/// Returns the error of a program that ran out of memory in training: limit_exceeded. The sentence has the bytes of
/// the model's weights, and advice.
///
/// what  at the front of the sentence: the data, and the part of it that is too large.
Error out_of_memory_in_training(const std::string& what, uint64_t features);

/// Refuses a model whose weights alone do not fit.
///
/// what     as for out_of_memory_in_training().
/// Errors   limit_exceeded, with the bytes that the weights take and those that are free, and what to do.
Status check_model_fits(const std::string& what, uint64_t features, uint64_t available);

}  // namespace millrace::program
