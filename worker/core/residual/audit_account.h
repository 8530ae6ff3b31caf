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
  /// Adds a number that may be off by one rounding, as every sum in one f64.
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

/// Holds the values that a slot has put into one part of its bucket.
struct EnteredAccount {
  Account entered;
  Account rounded_off;  ///< by adding it to the residual in f32
};

/// Holds the accounts of one part, computed from its present state. entered = held + lost + carried by updates + in
/// flight. The core has the last two.
struct PartAccounts {
  Account entered;  ///< with `opening`
  /// Residual, including values that are staged, selected and not sent, returning, or quarantined.
  Account in_residual;
  Account lost;         ///< lost values, and the rounding errors of f32
  Account rounded_off;  ///< the rounding errors alone
};

}  // namespace millrace::worker
