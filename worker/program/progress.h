#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/clock.h"

namespace millrace::program {

/// Shows a person on stderr that long work continues: "reading a.svm: 40,960 rows". Prints at most twice a second on a
/// terminal (one line, rewritten) and every five seconds elsewhere. Silent for work that ends before its first line is
/// due.
///
/// Threads  one.
class Progress {
 public:
  /// what  names the work ("reading a.svm"); unit  of the count ("rows").
  Progress(std::string what, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(uint64_t count);
  std::function<void(uint64_t)> callback() {
    return [this](uint64_t count) { at(count); };
  }

 private:
  std::string what_;
  std::string unit_;
  bool terminal_;
  bool shown_ = false;
  TimeNs next_ns_;
};

/// Returns "1,234,567" for 1234567.
std::string grouped(uint64_t number);

}  // namespace millrace::program
