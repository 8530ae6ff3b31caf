#pragma once

#include <cmath>

#include "kernels/reduce/audit_sums.h"

namespace millrace::worker {

/// Mass that was booked: its sum, and how far f64 may be from the exact one.
class Account {
 public:
  void add(const Mass& mass) {
    sum_.add(mass.sum);
    uncertainty_ += kMassError * mass.magnitude;
  }
  void subtract(const Mass& mass) { add(Mass{-mass.sum, mass.magnitude}); }
  void add_rounded(const Mass& mass) {
    sum_.add(mass.sum);
    uncertainty_ += kRoundedError * mass.magnitude;
  }
  void add(const Account& other) {
    sum_.add(other.sum_);
    uncertainty_ += other.uncertainty_;
  }
  void subtract(const Account& other) {
    sum_.subtract(other.sum_);
    uncertainty_ += other.uncertainty_;
  }
  /// A number that may be off by one rounding, as all that are kept as one f64.
  void add_number(double number) {
    sum_.add(number);
    uncertainty_ += 0x1p-53 * std::abs(number);
  }
  void doubt(double how_far) { uncertainty_ += how_far; }

  double value() const { return sum_.value(); }
  double uncertainty() const { return uncertainty_; }

 private:
  LongSum sum_;
  double uncertainty_ = 0;
};

/// What a slot has put into one part of its bucket.
struct EnteredAccount {
  Account entered;
  Account rounded_off;  ///< by adding it to the residual in f32
};

/// The books of one part, worked out from what is there: entered = held + lost + what updates carried + in flight, and
/// the last two are the core's.
struct PartAccounts {
  Account entered;      ///< with `opening`
  Account held;         ///< residual: also what is staged, selected and not sent, coming back, or waits apart
  Account lost;         ///< by name, and what f32 rounded off
  Account rounded_off;  ///< that alone
};

}  // namespace millrace::worker
