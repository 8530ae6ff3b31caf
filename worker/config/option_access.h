#pragma once

#include "kernels/codec/codec.h"
#include "kernels/optimize/optimize.h"
#include "kernels/select/select.h"
#include "millrace/options.h"
#include "protocol/job/job_spec.h"

namespace millrace {
inline namespace v0 {

/// Converts between the public types of compression and the fields of the job specification. The first of each pair
/// gives what validate() accepts or refuses; the second takes a valid value.
struct OptionAccess {
  static SelectionSpec spec_of(const Selection& selection);
  static Selection selection_of(const SelectionSpec& spec);

  static protocol::ReselectSpec spec_of(const Reselect& reselect);
  static Reselect reselect_of(const protocol::ReselectSpec& spec);

  static CodecSpec spec_of(const Codec& codec);
  static Codec codec_of(const CodecSpec& spec);

  static protocol::MomentumSpec spec_of(const Momentum& momentum);
  static Momentum momentum_of(const protocol::MomentumSpec& spec);
};

}  // namespace v0
}  // namespace millrace
