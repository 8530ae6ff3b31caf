#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/automatic/codec_choice.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "kernels/stream/shared_stream.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/job/step_sends.h"
#include "worker/core/residual/audit_account.h"
#include "worker/core/residual/bucket_grid.h"
#include "worker/core/residual/ledger.h"
#include "worker/core/residual/momentum.h"
#include "worker/core/residual/push_slot.h"
#include "worker/core/residual/residual_sum.h"

namespace millrace::worker {

struct BucketCounters : Losses {
  uint64_t entries_sent = 0;
  uint64_t entries_sent_last = 0;  ///< of the last step whose parts are all coded
  uint64_t entries_received = 0;
  /// Sent, and omitted by the update or not counted: returned to the residual.
  uint64_t entries_returned = 0;
  uint64_t false_positives = 0;
  /// The choice of codecs for contributions, as text; empty: the job names its codecs, or nothing was sent yet.
  std::string codec_choice;
};

/// Returns the stream with its indices moved up by `base`, in a bucket of `dimension`; sparse.
Stream rebased(const StreamView& stream, uint64_t base, uint64_t dimension);

/// Holds a coded part of the bucket's contribution.
struct CodedPart {
  SharedBytes container;  ///< the payload
  SharedStream sent;      ///< as every receiver decodes it; indices local to the part
};

/// Holds a consistent copy of a bucket's state, without O.
struct BucketState {
  /// Includes pushed values that have not entered yet, as if they had.
  Stream residual;
  std::optional<Stream> velocity;  ///< of jobs with momentum
};

/// Holds one worker's residual of one bucket and the slots of its tensors; selects and codes. Numbers only: SessionCore
/// has the step rules and the messages.
///
/// A step: callers fill slots (any thread) and commit them -> select() -> code() for every part -> [updates]
/// give_back(). Between the last commit and the last code() the bucket belongs to the core's thread. At other times the
/// residual of a bucket of one tensor belongs to the thread that fills its slot. So entries that return meanwhile wait
/// until select(). With momentum or clipping, slots only stage. select() computes the values that enter, so that
/// residual and velocity are the core's alone.
///
/// Order    returned entries are added in the order of their events (code(), give_back(), return_uncarried()),
///          independent of the time at which resolve_one_deferred() computes them. So f32 sums have the same bits in
///          every run with the same events.
class Bucket {
 public:
  /// observer  as for Ledger
  Bucket(const protocol::JobSpec& spec, const protocol::BucketLayout& layout,
         std::span<const protocol::PartLayout> parts, LedgerObserver* observer = nullptr);
  ~Bucket();
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  uint64_t dimension() const { return dimension_; }
  size_t slot_count() const { return slots_.size(); }
  PushSlot& slot(size_t member) { return *slots_[member]; }
  const PushSlot& slot(size_t member) const { return *slots_[member]; }

  /// Adds the values of the committed slots and the returned entries to the residual, and selects from it. The selected
  /// entries leave the residual.
  ///
  /// An unbiased job draws the entries to send, and keeps no residual. The drawn sum may be more or less than the
  /// values that entered. The difference is in the ledger with the dropped errors. An uncompressed step
  /// (protocol::step_sends()) sends everything and draws nothing.
  ///
  /// clip      factor for the slots' gradients before they enter; 1 where the job does not clip.
  /// step      the job's. Draws, signs, warm-ups and masks add the steps of a restored state (IdleTensor).
  /// draws     names the random sequence of the selection. With equal sequences all workers would omit the same
  ///           entries.
  /// REQUIRES  every slot was filled for this step; the step before is coded whole.
  /// Errors    non_finite: sums overflowed, or drawn values would when scaled up. Nothing is selected, nothing is lost.
  Status select(uint64_t step, float clip = 1, uint64_t draws = 0);

  /// Codes part `at` (0 .. part count - 1, each once, any order) of the entries that select() took out. An entry counts
  /// as sent with its decoded value. The residual (retain) or the ledger (drop) takes the difference to the selected
  /// values. Where the code changes values alone, resolve_one_deferred() computes the difference later. An uncompressed
  /// step is coded without loss, independent of the job's codec: a container names its codecs.
  ///
  /// Cost    one copy of the part's entries, then the codec; raw indices and values: that copy alone.
  /// Errors  as the codecs' and the container's; std::bad_alloc is thrown. The part is not coded, its values stay.
  Result<CodedPart> code(size_t at, const EncodeOptions& options);

  /// Chooses, for codec auto, the codecs of the entries that select() took out, the same for all parts. Returns the
  /// choice where it has changed; null in an uncompressed step, which takes no choice.
  /// REQUIRES  before the step's first code(); input.spec and input.pieces are set here.
  const CodecChoice* choose_codecs(ChoiceInput input);

  /// Returns, on path switch and in place of code() for every part, all entries that select() took out, sparse, indices
  /// of the bucket. resolve_offer() later reports their outcome.
  Stream offer();
  /// Returns to the residual the entries of an offer that were not applied in part `at`; indices local to it.
  ///
  /// whole  number of entries that return as they were offered; the others are remainders of rounding to the grid.
  void resolve_offer(size_t at, Stream&& back, uint64_t whole);

  /// Replaces code() where the part's step is decided already: its selected entries stay in the bucket.
  void skip_part(size_t at);

  /// Returns to the residual the entries that an update omitted, or that were not counted. Indices local to part `at`.
  /// In an unbiased job they go into the ledger.
  void give_back(size_t at, Stream&& stream);

  /// Returns to the residual the entries of `sent` that the update omitted. resolve_one_deferred(), or the next action
  /// that needs them, computes them later: a caller may be blocked on the update, and is not on the bookkeeping.
  void return_uncarried(size_t at, SharedStream&& sent, const SharedStream& carried);

  /// Says whether an update of the step ends the velocity of the entries that it applies. It does where other entries
  /// of the step are sent later, from the residual or through re-selection. step: as given to select().
  bool masks(uint64_t step) const;
  /// Ends the velocity of the entries of part `at` that an update has applied. Those are all entries that the step sent
  /// (`carried` is null), or those that the update carries. Does nothing where masks(step) is false. return_uncarried()
  /// handles the returned entries.
  void mask_applied(size_t at, uint64_t step, const SharedStream& sent, const SharedStream* carried);

  // --- jobs with `reproducible`, over shards: select() rounds to the grid, and the remainders return with the update.

  bool on_grid() const { return grid_.has_value(); }
  /// Replaces give_back() and return_uncarried(): returns the uncarried values of the part's selected entries to the
  /// residual. carried: the update's entries; null: all was applied. For a contribution that was not counted:
  /// give_back(), in any job.
  /// REQUIRES: on_grid().
  void resolve_on_grid(size_t at, const StreamView* carried);
  /// Takes a part's applied update of the step: it determines the exponents of the next step. Does nothing in other
  /// jobs.
  void observe_update(size_t at, const StreamView& sums);

  /// Does one piece of the work that code() and return_uncarried() postponed, the oldest. Returns false where there was
  /// none. It changes no result but unresolved() and the cost of later queries.
  bool resolve_one_deferred();
  bool unresolved() const { return deferred_ > 0 || (velocity_ && velocity_->unresolved()); }

  /// Hands out the residual of [begin, end) and forgets it, as if it had never entered; indices local to begin.
  /// REQUIRES  the bucket is idle: nothing filled, selected or coded that is not settled.
  Stream take_residual(uint64_t begin, uint64_t end);

  // --- rejoin (R9): the residual is quarantined until each of its parts is settled. Values pushed meanwhile are not
  // part of it. Ends with merge_quarantined().

  /// Quarantines the whole residual. Returns false while a caller fills a slot; the core tries again.
  /// REQUIRES  nothing is selected and not coded.
  bool quarantine_residual();
  /// Quarantines the residual of a saved state. No account has it until accept_quarantined().
  void quarantine_loaded(Stream&& residual);
  /// Returns the velocity of a job with momentum, else null. Its owner is that of the residual.
  Velocity* velocity() { return velocity_ ? &*velocity_ : nullptr; }
  bool is_quarantined() const { return quarantine_ != nullptr; }
  /// Act as give_back() and return_uncarried(), on the quarantined residual.
  void return_to_quarantine(size_t at, Stream&& stream);
  void return_uncarried_to_quarantine(size_t at, SharedStream&& sent, const SharedStream& carried);
  /// Say whether the part's share is a loaded one that no account has; or one that was taken over and not dropped
  /// since.
  bool is_loaded(size_t at) const { return quarantine_ && quarantine_->shares[at] == ShareState::kLoaded; }
  bool has_opening_share(size_t at) const { return quarantine_ && quarantine_->shares[at] == ShareState::kInBooks; }
  /// Counts the part's share: a loaded one is in opening() and residual() from now on.
  void accept_quarantined(size_t at);
  /// Drops the part's share into the ledger, but for a loaded one that was never taken over. Returns the sum of
  /// |value|.
  double drop_quarantined(size_t at);
  /// Merges the quarantined residual into the residual. REQUIRES: every loaded part's share was taken over or dropped.
  void merge_quarantined();
  /// Returns the quarantined entries that no account has, indices of the bucket.
  std::vector<Stream> loaded_quarantined() const;

  /// Returns the residual with everything given back and everything filled or selected and not coded yet. With momentum
  /// or clipping, filled values enter in select() and are not included before.
  Stream residual() const;
  /// Returns its L2 norm, without a copy of a dense sum (ResidualSum::norm()).
  double residual_norm() const;

  /// clip  as for select(), as far as it is known.
  BucketState state(float clip) const;

  BucketCounters counters() const;
  /// Returns the ledger without the losses that postponed work will book.
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  /// Reports to `observer` the losses that postponed work will book, computed for this caller alone. With them the
  /// ledger agrees with residual() at any moment.
  void report_postponed(LedgerObserver& observer) const;
  void count_received(uint64_t entries) { counters_.entries_received += entries; }

  /// Returns, for the audit, the accounts of part `at`, of all values in the bucket. Computes postponed work first.
  /// REQUIRES  the job audits; no slot of several is being filled.
  PartAccounts audit(size_t at);
  /// Returns the sum of the values pushed into the part, and of their rounding errors. REQUIRES: as audit().
  EnteredAccount pushed_in(size_t at) const;
  /// Returns the number of entries that audit() would check.
  uint64_t residual_entries(size_t at) const;

 private:
  friend class PushSlot;
  friend struct IdleTensor;
  /// Names the place of a code's errors, the differences selected - sent.
  enum class ErrorsOf : uint8_t {
    kPiece,  ///< they return
    kSum,    ///< the sum has them
  };
  /// Holds a coded piece.
  struct Recoded {
    Stream selected;
    SharedStream sent;  ///< other values at the same indices
    ErrorsOf errors = ErrorsOf::kPiece;
  };
  /// Holds a counted piece: the entries of `sent` that were not carried return.
  struct Uncarried {
    SharedStream sent;
    SharedStream carried;
  };
  /// Holds entries that return to part `at`, or the streams from which they are computed.
  struct ReturnedPiece {
    size_t at = 0;
    std::variant<Stream, Recoded, Uncarried> what;
    bool is_deferred() const { return !std::holds_alternative<Stream>(what); }
  };
  struct Resolved {
    Stream back;
    Buffer<float> beyond;  ///< of Recoded, by entry: the part of the difference that f32 cannot hold
  };

  /// Says the state of a part's share of the quarantined residual.
  enum class ShareState : uint8_t { kLoaded = 1, kInBooks = 2, kGone = 3 };
  struct Quarantine {
    struct Piece {
      size_t at = 0;
      Stream stream;
    };
    Stream residual;
    std::vector<ShareState> shares;  ///< by part: state of its share of `residual`
    std::vector<Piece> returned;     ///< in the accounts
  };
  Stream share_of(size_t at) const;
  void append_quarantined(std::vector<Stream>& streams) const;

  // bucket_audit.cc. Accounts of jobs with `audit`.
  Account residual_account(size_t at) const;
  /// Adds a dense stream to a dense residual, and accounts the rounding errors, in one pass.
  void add_audited(const StreamView& stream);
  /// Accounts the rounding errors of adding the stream to the residual, or the piece of part `at`.
  void book_rounding(const StreamView& stream);
  void book_rounding(size_t at, const StreamView& piece);

  /// Joins the streams of fused tensors' slots.
  void take_staged();
  Stream join_staged();
  Status let_enter(float clip);
  /// Says whether gradients enter in select(), not in their slots.
  bool enters_in_select() const { return velocity_.has_value() || spec_.clip != 0; }
  /// Says whether a slot adds to the residual itself.
  bool enters_in_slot() const { return slots_.size() == 1 && !enters_in_select() && residual_.adds_in_push(); }
  /// How many entries a push collects. 0 where entries returned to the last step: they change the sum after the push.
  uint64_t largest_wanted() const {
    return residual_.selector() != nullptr && !had_returned_ ? residual_.selector()->largest_wanted() : 0;
  }
  /// Says whether gradients in a device's memory can be pushed here.
  ///
  /// Errors  unsupported: a rule of the job needs the values in the host's memory.
  Status may_be_on_device() const;
  /// Returns the entries of residual() that are not in the sum; indices of the bucket.
  std::vector<Stream> beside_sum() const;
  Status take_selection(uint64_t step, uint64_t draws, ResidualSum::Values values);
  void take_returned();
  bool staged_alone() const;
  void add_to_residual(Stream&& stream);
  void round_to_grid();
  Stream remainder_in_flight(size_t at) const;
  Status draw(const SelectContext& context);
  bool draws() const { return spec_.unbiased && residual_.selector() != nullptr; }
  IndexRange range_of_part(size_t at) const { return {parts_[at].begin, parts_[at].end}; }
  Result<Stream> copy_part(size_t at) const;
  Result<CodedPart> code_copy(size_t at, const EncodeOptions& chosen);
  Result<std::optional<CodedPart>> code_in_sum(size_t at, const EncodeOptions& options);
  TakenEntries keeps() const;
  bool has_returned(size_t at) const;
  Result<ErrorsOf> keep_errors(size_t at, const EncodeOptions& options);
  EncodeOptions options_of_step(EncodeOptions options) const;
  bool goes_plain(const CodecSpec& codec) const;
  Result<CodedPart> code_dense(size_t at, Stream&& local, const Stream& dense, const EncodeOptions& options);
  Result<CodedPart> code_plain(size_t at);
  void part_is_coded(size_t at, uint64_t entries);
  void resolve_encoded(size_t at, const StreamView& selected, const StreamView& decoded, const StreamView& rest);
  void put_off(ReturnedPiece&& piece);
  void merge_piece(size_t at, Stream&& stream);
  /// REQUIRES  it is put off.
  static Resolved resolve(const ReturnedPiece& piece);
  static void book(const ReturnedPiece& piece, const Resolved& found, BucketCounters& counters, Ledger& ledger);
  /// Returns the ledger, and counts, as if all postponed work was done. Reports the additional bookings to `observer`.
  Ledger with_postponed(BucketCounters& counters, LedgerObserver* observer) const;
  /// Books selected - sent as lost, and where errors stay what f32 does not hold of it.
  void lose_difference(size_t at, const StreamView& selected, const StreamView& sent);

  const protocol::JobSpec& spec_;
  uint64_t dimension_ = 0;
  CodecSpec codec_;
  CodecChooser chooser_;  ///< of an automatic codec
  std::vector<protocol::PartLayout> parts_;
  std::vector<std::unique_ptr<PushSlot>> slots_;
  std::optional<Velocity> velocity_;  ///< jobs with momentum
  /// Whether shards may leave entries out of an update.
  protocol::UpdateCarries update_ = protocol::UpdateCarries::kWholeSum;
  uint64_t steps_ = 0;         ///< of the last selection, and one; with those of a restored state
  uint64_t steps_before_ = 0;  ///< saved steps: added to the job's number of a step
  std::optional<uint64_t> resumes_at_ = std::nullopt;  ///< restored number of the next step
  bool uncompressed_ = false;                          ///< the step that select() took out is sent uncompressed
  std::optional<BucketGrid> grid_;                     ///< reproducible jobs whose updates come from shards

  std::mutex fill_;  ///< held while a lone tensor's slot is filled into residual_
  std::unique_ptr<Quarantine> quarantine_;
  ResidualSum residual_;
  Stream spare_;                         ///< arrays of the step before, for reuse
  std::vector<ReturnedPiece> returned_;  ///< since the last select(), in the order of their events
  size_t deferred_ = 0;                  ///< number of them that are not computed
  size_t resolved_to_ = 0;               ///< those before this one are computed
  bool had_returned_ = false;            ///< the last select() added some
  Stream selected_;                      ///< taken out by select(), indices of the bucket; or the sum holds them
  std::vector<uint8_t> coded_;           ///< by part: its share of selected_ is taken out
  size_t parts_left_ = 0;
  uint64_t entries_in_step_ = 0;

  BucketCounters counters_;  ///< without losses, which the ledger has, and codec_choice
  Ledger ledger_;
};

}  // namespace millrace::worker
