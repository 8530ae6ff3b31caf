#pragma once

#include <memory>

#include "kernels/select/select.h"

namespace millrace {

/// What `selector` selects of the positive entries in even steps, of the negative ones in odd steps: one mean can then
/// stand for all of them. The selection by magnitude of what the other sign's entries are zeros in, so that whatever
/// `selector` says of counts, ties and zeros holds of the entries of that sign.
///
/// Memory   a copy of the accumulator's values, kept from step to step.
/// Cost     a read and a write pass more.
/// Errors   as the selector's; NaN and infinity of either sign are errors in every step.
/// Source   [RedSync19, 2.1.1].
std::unique_ptr<Selector> alternate_signs(std::unique_ptr<Selector> selector);

}  // namespace millrace
