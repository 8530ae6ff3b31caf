#pragma once

#include <memory>

#include "kernels/select/select.h"

namespace millrace {

/// Selects, with `selector`, among the positive entries in even steps, and among the negative ones in odd steps. So one
/// mean can represent all of them. The selection is by magnitude, in a copy that has zeros in place of the other sign's
/// entries. So the contract of `selector` about counts, ties and zeros holds for the entries of that sign.
///
/// Memory   a copy of the accumulator's values, kept from step to step.
/// Cost     a read and a write pass more.
/// Errors   as the selector's; NaN and infinity of either sign are errors in every step.
/// Source   [RedSync19, 2.1.1].
std::unique_ptr<Selector> alternate_signs(std::unique_ptr<Selector> selector);

}  // namespace millrace
