#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "kernels/stream/shared_stream.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"

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
  Stream enter(Stream&& gradient);

  /// Notes a mask: an update applied entries sent for [begin, begin + dimension of `sent`). Of the entries that are not
  /// 0 those are all (`carried` is null), or those that it carries. resolve_one_deferred() or the next enter() computes
  /// it.
  void applied(uint64_t begin, const SharedStream& sent, const SharedStream* carried);

  /// Computes the oldest mask. Returns false where there is none.
  bool resolve_one_deferred();
  bool unresolved() const { return !masks_.empty(); }

  /// Takes over that of a saved state. REQUIRES: nothing was masked yet.
  void load(Stream&& velocity) { velocity_ = std::move(velocity); }

  /// Hands out the velocity of [begin, end), sparse, indices local to begin, and sets it to zero. Computes postponed
  /// masks first.
  Stream take(uint64_t begin, uint64_t end);
  /// Adds entries; sparse, indices of the bucket.
  void add(const StreamView& entries);

  /// Returns a copy of the velocity with all masks applied.
  Stream values() const;

 private:
  struct Mask {
    uint64_t begin = 0;
    SharedStream sent;
    std::optional<SharedStream> carried;
  };

  Stream enter_dense(Stream&& gradient);
  Stream enter_sparse(const Stream& gradient);
  static void end(Stream& velocity, const Mask& mask);

  float factor_ = 0;
  float gradient_share_ = 0;  ///< this times the gradient enters
  float velocity_share_ = 1;  ///< and this times the velocity
  Stream velocity_;
  std::deque<Mask> masks_;
};

}  // namespace millrace::worker
