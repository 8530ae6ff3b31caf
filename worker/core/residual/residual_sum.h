#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/accumulate/accumulator.h"
#include "kernels/base/buffer.h"
#include "kernels/base/check.h"
#include "kernels/base/result.h"
#include "kernels/base/retained.h"
#include "kernels/codec/codec.h"
#include "kernels/reduce/audit_sums.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "worker/core/residual/device_residual.h"
#include "worker/core/residual/momentum.h"

namespace millrace::worker {

/// Holds the sum of a bucket that waits to be sent, and selects from it. The sum is in the host's memory. From a
/// device's first gradient on it is in that device's memory, until there is no room for a step. It has the same bits in
/// both. Bucket has the rules and the accounts, and does not know the place.
///
/// Errors   after an error of the device the values there are lost; status() has the error.
/// Threads  one at a time; its owner is that of the bucket's residual.
class ResidualSum {
 public:
  /// Says whether values may be NaN or infinite.
  enum class Values : uint8_t { kKnownFinite, kUnknown };

  /// velocity  of a job with momentum, which outlives this object; else null. It goes where the sum goes.
  ResidualSum(const SelectionSpec& spec, uint64_t dimension, Velocity* velocity = nullptr);

  const SelectionSpec& spec() const { return spec_; }
  /// Returns the stored entries of the sum, for rules that change them in place: audit, unbiased jobs, Bloom filters.
  /// REQUIRES: adds_in_push(), as in these jobs, which take no gradient of a device.
  Accumulator& entries() {
    MILLRACE_CHECK(adds_in_push());
    return on_host_;
  }
  /// Says whether a push adds a gradient of the host's memory to the sum. A device would wait: there the push stages
  /// it, and the selection adds it.
  bool adds_in_push() const { return device_ == nullptr; }
  /// Says how the sum is stored; on a device dense.
  enum class Form : uint8_t { kEmpty, kSparse, kDense };
  Form form() const;
  /// Returns the selection from the host's sum; null for SelectionId::kNone.
  Selector* selector() const { return selector_.get(); }

  /// Adds a stream of the sum's dimension.
  void add(Stream&& stream);
  /// Adds weight * stream to a dense form of the sum, the product rounded first. REQUIRES: adds_in_push().
  ///
  /// wanted  entries of the sum that a dense stream's addition collects for the selection, the largest ones.
  void add_to_dense(const StreamView& stream, float weight, uint64_t wanted);
  /// Adds streams of disjoint ranges, ascending.
  ///
  /// Cost  a sparse sum: one pass over it. Else the entries of the streams.
  void add(const std::vector<PlacedStream>& pieces);

  /// Selects, and takes the selected entries out; sparse.
  ///
  /// context   without `largest`.
  /// spare     its memory may become the result's.
  /// REQUIRES  there is a selector.
  /// Errors    non_finite: nothing is taken. Those of the device.
  Result<Stream> take_selected(const SelectContext& context, Stream& spare,
                               TakenEntries entries = TakenEntries::kForgotten);
  /// Adds the errors of a part's value code to the sum, where its place still has the selected values: on a device.
  /// Returns false where nothing was added: the caller returns the errors.
  ///
  /// entries   of the last take_selected(), which kept them. Nothing was added at them since.
  /// options   by which the host has coded their values.
  Result<bool> keep_errors(const EntryRange& entries, const EncodeOptions& options);
  /// Selects all values, and takes them out in their present form. Where holds_selection() is true then, they stay in
  /// the sum instead, until their parts are coded: the stream is empty. Errors: as take_selected().
  Result<Stream> take_finite(Values values);
  bool holds_selection() const { return holds_selection_; }
  /// Takes all entries out, finite or not; sparse where they were on a device.
  Stream take_all();
  /// Takes the entries of [begin, end) out, without zeros; sparse, indices local to begin.
  Stream take_range(uint64_t begin, uint64_t end);
  /// Returns all values. copied: has those of a device.
  StreamView view(Stream& copied) const;

  /// Returns the L2 norm of the sum and the entries of `more` together.
  ///
  /// Rounding  to about 2^-26 of the norm of either, where their entries cancel out.
  /// Cost      sparse `more`: a read pass over a dense sum, which is not copied, nor over the bus. Else a sum of both.
  double norm(const StreamView& more) const;

  /// Return and replace the state of the selection, as Selector does.
  Retained retained() const;
  Status restore_retained(std::span<const uint64_t> retained);

  // --- the parts of a selection that the sum holds. REQUIRES: holds_selection().

  /// Copies a part's values, in the smaller form; indices local to its begin.
  Result<Stream> copy_part(const IndexRange& part) const;
  /// Takes a part's code out, as take_coded() of DeviceResidual. Empty: also where there is no memory for it.
  Result<std::optional<Mass>> take_coded(const IndexRange& part, const EncodeOptions& options,
                                         protocol::CodecError errors, ByteBuffer& out);
  /// Takes a part's values out.
  void forget(const IndexRange& part);

  // --- gradients in a device's memory. REQUIRES: move_to_device() has succeeded since the last selection.

  /// Moves the sum to a device, if it is on the host. REQUIRES: as MakeDeviceResidual.
  Status move_to_device(const MakeDeviceResidual& make);
  /// Says when a gradient enters: now, or by enter(), in jobs with momentum or clipping. Then it is copied now.
  enum class Enters : uint8_t { kNow, kLater };
  /// Act as those of DeviceResidual.
  Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule, Enters when);
  Result<double> squares(const DeviceGradient& gradient);
  Result<Stream> copy(const DeviceGradient& gradient) const;

  // --- momentum and clipping

  /// Copies the gradient that waits for enter(); empty: there is none.
  Result<std::optional<Stream>> copy_staged() const;
  /// Says whether enter() returns the values also where it has added them: for the observer of a test.
  enum class Watch : uint8_t { kNo, kYes };
  struct Entering {
    Stream values;
    bool is_added = false;  ///< to the sum; else the caller adds the values
  };
  /// Computes the values that enter for clip times the staged gradient, by the velocity if there is one. Without a
  /// staged one: for clip times `gradient`, which is of the host. On a device the values join the sum.
  Result<Entering> enter(Stream&& gradient, float clip, Watch watch);
  /// Adds entries to the velocity, as Velocity does. Without memory on the device all moves to the host.
  Status add_velocity(const StreamView& entries);
  /// Returns the device's first error.
  Status status() const { return device_ ? device_->status() : Status(); }

 private:
  /// Adds to a dense form of the sum. The sum leaves a device that has no memory for that.
  void add_at(const PlacedStream& piece);
  /// Moves the values to the host, and leaves zeros on the device. After an error of the device: does nothing.
  void bring_values();
  Status enter_there(const StreamView& gradient, float clip);
  /// Says whether a call failed because the device, which works, has no memory for it.
  bool is_shortage(const Error& error) const;
  /// Moves sum and velocity to the host. Errors  of the device: the values are lost.
  Status leave_device();

  SelectionSpec spec_;
  std::unique_ptr<Selector> selector_;      ///< none for SelectionId::kNone
  Accumulator on_host_;                     ///< sparse; dense from the first dense push of a lone tensor on
  std::unique_ptr<DeviceResidual> device_;  ///< in place of on_host_, which is empty; or null
  Velocity* velocity_ = nullptr;
  bool has_staged_ = false;       ///< on the device
  bool holds_selection_ = false;  ///< on the device
};

}  // namespace millrace::worker
