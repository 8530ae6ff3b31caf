#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace {

/// Describes a whole method of a paper as a combination of the parts in this repository: a job's options under one
/// name. Texts are those of a job's options (worker/OPTIONS.md).
struct Method {
  std::string_view name;     ///< "dgc": `millrace train --method`, and a row of `millrace-bench codec`
  std::string_view paper;    ///< "[SparCML19, 8.3]" (kernels/REFERENCES.md)
  std::string_view summary;  ///< one line for --help: the method, and its differences from the paper
  std::string_view select = "none";
  std::string_view reselect = "none";
  uint32_t threshold_period = 1;  ///< reselect: steps between exact global thresholds
  std::string_view codec_up = "gap+raw";
  std::string_view codec_error = "retain";
  std::string_view momentum = "none";
  double clip = 0;        ///< 0: the method has none
  bool unbiased = false;  ///< keeps nothing back
};

/// Returns every method of this build.
std::span<const Method> methods();

/// Returns the method, or nullptr: not of this build.
const Method* find_method(std::string_view name);

/// Returns their names: "three_lc, sketchml, ...".
std::string method_names();

/// Returns the selection of a method at another density or count: "topk:0.001:warm_up=400" at "0.01" is
/// "topk:0.01:warm_up=400".
///
/// Errors   invalid_argument: it has none, or not that amount.
Result<std::string> method_select(const Method& method, std::string_view amount);

/// Refuses a selection or a codec that makes another method of it. That is another kind of selection where the method
/// has one, or another index or value codec. Their parameters may be others, and so may the method's error rule,
/// momentum and clipping.
///
/// select, codec_up   in the place of the method's.
/// Errors             invalid_argument; and the errors of the texts themselves.
Status check_method(const Method& method, std::string_view select, std::string_view codec_up);

}  // namespace millrace
