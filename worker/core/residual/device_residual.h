#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/base/retained.h"
#include "kernels/codec/codec.h"
#include "kernels/cuda/momentum_shares.h"
#include "kernels/reduce/audit_sums.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"

namespace millrace::worker {

/// Views a gradient in a device's memory. REQUIRES: the work that writes it has ended. Otherwise the session's thread,
/// which waits for pushes, would wait for that work.
struct DeviceGradient {
  const float* values = nullptr;
  uint64_t count = 0;
  int device = 0;
};

/// Names a range of a bucket's indices.
struct IndexRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Names a range of the entries that a selection took out, in their order.
struct EntryRange {
  uint64_t first = 0;
  uint64_t last = 0;
};

/// Says whether a device keeps the entries that a selection took out, for keep_errors(), until the next selection.
enum class TakenEntries : uint8_t { kForgotten, kKept };

/// Holds the sum that waits to be sent, of a tensor whose gradients are in a device's memory. Numbers only: Bucket has
/// the rules and the accounts, as for a sum in the host's memory.
///
/// Errors   after an error of the device every later call that returns a status returns it, and the sum is lost. A
///          shortage of memory there is limit_exceeded, of any call but copies: it changes nothing, and the next call
///          works.
/// Threads  one at a time; its owner is that of the bucket's residual.
class DeviceResidual {
 public:
  virtual ~DeviceResidual() = default;

  /// Adds weight * gradient, and waits until the gradient has been read. Returns how many values it left out.
  ///
  /// rule     of values that are NaN or infinite.
  /// Errors   non_finite: refused, the sum is unchanged. invalid_argument: of another device; the sum is unchanged.
  virtual Result<uint64_t> add(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) = 0;
  /// Adds a stream of the host from index `begin` on.
  virtual Status add(const StreamView& stream, uint64_t begin) = 0;
  /// Selects for the step and takes the selected entries out; sparse, in the memory of `arrays`.
  ///
  /// Errors   non_finite: the sums overflowed; nothing is taken.
  virtual Result<Stream> take_selected(uint64_t step, Stream&& arrays, TakenEntries taken) = 0;
  /// Adds the errors of a value code to the sum: of entries that the last take_selected() took out. The host has coded
  /// the same values by `options`.
  ///
  /// REQUIRES  they are kept, and nothing was added at them since. device_codes() of options.spec and the tensor's
  ///           dimension.
  virtual Status keep_errors(const EntryRange& entries, const EncodeOptions& options) = 0;

  // --- steps that send everything as a dense code. Ranges are not empty.

  /// Errors   non_finite: the sums overflowed.
  virtual Status check_finite() const = 0;
  /// Takes the range's code out, and appends it to `out` as ValueCodec::encode() of the host does. Returns the lost
  /// values: of dropped errors all, else what f32 does not hold of the errors. Empty: the sparse form of
  /// the values is smaller, and nothing is taken or appended.
  ///
  /// REQUIRES  device_codes() of options.spec and the tensor's dimension.
  /// Errors    as the codec's. Nothing is taken then, and `out` is unspecified.
  virtual Result<std::optional<Mass>> take_coded(const IndexRange& range, const EncodeOptions& options,
                                                 protocol::CodecError errors, ByteBuffer& out) = 0;
  /// Copies the values of the range to the host, in the smaller form; indices local to its begin. Needs no memory of
  /// the device.
  virtual Result<Stream> copy_part(const IndexRange& range) const = 0;
  /// Takes the values of the range out.
  virtual void forget(const IndexRange& range) = 0;

  /// Copies all values to the host; dense. Needs no memory of the device.
  virtual Result<Stream> copy() const = 0;
  /// Copies the values at the indices to the host.
  virtual Result<Buffer<float>> read_at(IndexSpan indices) const = 0;
  /// Returns the L2 norm. Errors: non_finite, where the sum has NaN or infinity.
  virtual Result<double> norm() const = 0;
  /// Copies a gradient of the device to the host; dense.
  virtual Result<Stream> copy(const DeviceGradient& gradient) const = 0;

  // --- momentum and clipping: a gradient is staged, and enters when the step selects. Velocity has the rules.

  /// Returns the sum of the squares of a gradient's finite values: the bits of squared_norm_of().
  virtual Result<double> squares(const DeviceGradient& gradient) = 0;
  /// Copies weight * gradient, in place of the gradient that was staged before. Otherwise as add().
  virtual Result<uint64_t> stage(const DeviceGradient& gradient, float weight, protocol::NonFinite rule) = 0;
  /// Does the same with a gradient of the host.
  virtual Status stage(const StreamView& gradient) = 0;
  /// Lets scale times the staged gradient enter the sum, by the velocity or without one. REQUIRES: there is one.
  virtual Status enter(float scale, const cuda::MomentumShares& shares) = 0;
  virtual Status enter(float scale) = 0;
  /// Copies the staged gradient to the host; dense.
  virtual Result<Stream> copy_staged() const = 0;
  /// Adds a stream of the host to the velocity, which begins with zeros.
  virtual Status add_velocity(const StreamView& stream) = 0;
  /// Sets the velocity to 0 at the indices. They differ.
  virtual Status end_velocity(IndexSpan indices) = 0;
  /// Copies the velocity to the host; dense. This call and the next one: REQUIRES that add_velocity() was called.
  virtual Result<Stream> copy_velocity() const = 0;
  /// Sets the velocity to zeros.
  virtual void forget_velocity() = 0;

  /// Takes all values out.
  virtual void forget() = 0;
  /// Return and replace the state of the selection, as Selector does: numbers of the host's selector of the same
  /// specification. They are in the host's memory, also after an error.
  virtual Retained retained() const = 0;
  virtual Status restore_retained(std::span<const uint64_t> retained) = 0;
  /// Returns the device's first error, without a wait. Of one that was just made: also that there was no memory for it.
  virtual Status status() const = 0;
};

/// Says whether a device can select by this specification from a tensor of `dimension`.
bool device_selects(const SelectionSpec& spec, uint64_t dimension);

/// Says whether a device codes dense values of a tensor of `dimension` by the specification.
bool device_codes(const CodecSpec& spec, uint64_t dimension);

/// Makes the sum of nothing on a device. REQUIRES: device_selects(spec, dimension), or selection none.
using MakeDeviceResidual =
    std::function<Result<std::unique_ptr<DeviceResidual>>(const SelectionSpec& spec, uint64_t dimension)>;

}  // namespace millrace::worker
