#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "kernels/stream/shared_stream.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "worker/core/residual/device_residual.h"

namespace millrace::worker {

/// Holds the velocity U of one bucket of one worker: the term added to a gradient before it enters the residual. It is
/// not in the conservation law's sums: the law counts the values that enter.
///
///     correction         U := factor U + G,  U enters
///     nesterov           U := factor U + G,  G + factor U enters
///     nesterov_printed   U := factor U + G,  G + U enters
///
/// Masked: when an update has applied an entry that this worker sent, the entry's velocity ends there. Entries that
/// returned, or that were not counted, keep their velocity.
///
/// Place    the host's memory, or that of the device which has the residual. Masks wait for the next step then. After
///          an error of the device the velocity is lost.
/// Memory   sparse while pushes are sparse. An index has a velocity from its first push until it is masked or has faded
///          below the least normal f32. Dense from the first dense push on, or past the density where that is smaller.
/// Source   [RedSync19, appendix C, algorithm 4]. Differs in two points. Masks follow the update, not the selection
///          (with everything applied they are the same). `nesterov` is the usual look-ahead, and that of the program of
///          [DGC18]. `nesterov_printed` is that algorithm 4 as printed: each gradient counts 1 + 1 / (1 - factor) times
///          in all, not 1 / (1 - factor).
class Velocity {
 public:
  Velocity(const protocol::MomentumSpec& spec, uint64_t dimension);

  /// Returns the values that enter for this gradient, in the gradient's own arrays where it is dense. Computes
  /// postponed masks first.
  ///
  /// Cost   dense: one pass over both; sparse: one pass over the entries of both.
  ///
  /// REQUIRES  the velocity is on the host.
  Stream enter(Stream&& gradient);
  /// Does the same with a dense gradient [dimension] that stays the caller's.
  Stream enter(std::span<const float> gradient);

  /// Moves the velocity to a device, if it is not there. It has room for the velocity, which is dense there.
  Status move_to(DeviceResidual& there);
  /// Lets `scale` times the gradient enter that is staged on the device. Computes postponed masks first.
  ///
  /// Errors  limit_exceeded: no memory for a mask there; the gradient has not entered.
  Status enter_there(float scale);
  /// Moves the velocity to the host, if it is not there.
  Status leave_device();
  /// Returns the velocity and its masks, in the host's memory.
  Velocity copied() const;

  /// Notes a mask: an update applied entries sent for [begin, begin + dimension of `sent`). Of the entries that are not
  /// 0 those are all (`carried` is null), or those that it carries. resolve_one_deferred() or the next enter() computes
  /// it.
  void applied(uint64_t begin, const SharedStream& sent, const SharedStream* carried);

  /// Computes the oldest mask. Returns false where there is none.
  bool resolve_one_deferred();
  bool unresolved() const { return there_ == nullptr && !masks_.empty(); }

  /// Takes over that of a saved state. REQUIRES: nothing was masked yet, and the velocity is on the host.
  void load(Stream&& velocity) { velocity_ = std::move(velocity); }

  /// Hands out the velocity of [begin, end), sparse, indices local to begin, and sets it to zero. Computes postponed
  /// masks first.
  Stream take(uint64_t begin, uint64_t end);
  /// Adds entries; sparse, indices of the bucket.
  ///
  /// Errors  those of a device; limit_exceeded: nothing is added.
  Status add(const StreamView& entries);

  /// Returns a copy of the velocity with all masks applied.
  Stream values() const;

 private:
  struct Mask {
    uint64_t begin = 0;
    SharedStream sent;
    std::optional<SharedStream> carried;
  };

  /// Computes postponed masks. REQUIRES: the velocity is on the host.
  void resolve_here();
  /// Writes the values that enter; `entering` may be the gradient's own array.
  void enter_dense(std::span<const float> gradient, std::span<float> entering);
  Stream enter_sparse(const Stream& gradient);
  /// Calls `call` with the index of each entry that the mask ends, ascending.
  template <typename Call>
  static void for_each(const Mask& mask, Call&& call);
  static void end(Stream& velocity, const Mask& mask);
  Status resolve_all();

  cuda::MomentumShares shares_;
  Stream velocity_;                  ///< empty while it is on a device
  DeviceResidual* there_ = nullptr;  ///< which has the velocity; null: the host has it
  std::deque<Mask> masks_;
};

}  // namespace millrace::worker
