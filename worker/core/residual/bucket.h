#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/automatic/codec_choice.h"
#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "kernels/stream/held_stream.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/job/step_sends.h"
#include "worker/core/residual/audit_account.h"
#include "worker/core/residual/bucket_grid.h"
#include "worker/core/residual/momentum.h"
#include "worker/core/residual/push_slot.h"

namespace millrace::worker {

struct BucketCounters {
  uint64_t entries_sent = 0;
  uint64_t entries_sent_last = 0;  ///< of the last step that is coded whole
  uint64_t entries_received = 0;
  uint64_t entries_returned = 0;  ///< sent, not carried by the update (or not counted): back in the residual
  uint64_t false_positives = 0;
  uint64_t entries_discarded = 0;  ///< unbiased jobs: sent, or to be sent, into a step that went without them
  double discarded = 0;            ///< their sum
  double dropped_error = 0;        ///< sum of what was lost by name, signs kept: selected - decoded, entered - drawn
  double dropped_magnitude = 0;    ///< the same, without the signs: never falls
};

/// The stream with its indices moved up by `base`, in a bucket of `dimension`; sparse.
Stream rebased(const StreamView& stream, uint64_t base, uint64_t dimension);

/// A part of the bucket's contribution, coded.
struct CodedPart {
  SharedBytes container;  ///< the payload
  HeldStream sent;        ///< as every receiver decodes it; indices local to the part
};

/// What a cut of a bucket holds (O apart).
struct BucketState {
  Stream residual;                 ///< with what was pushed and has not entered yet, as if it had
  std::optional<Stream> velocity;  ///< of jobs with momentum
};

/// One bucket of one worker: its residual, the slots that its tensors are pushed into, selection and coding. Numbers
/// only: no step rules, no messages (SessionCore has these).
///
/// A step goes: slots are filled (any thread) and committed -> select() -> code() for every part -> [updates]
/// give_back(). Between the last commit and the last code() the bucket belongs to the core's thread; else the residual
/// of a bucket of one tensor belongs to whoever fills its slot, which is why what comes back meanwhile is put aside
/// until select(). With momentum or clipping slots only stage: what enters is worked out by select(), so that residual
/// and velocity are the core's alone.
///
/// Order    what comes back is added in the order of its events (code(), give_back(), give_back_rest()), whenever
///          settle_one() works it out: f32 sums are the same bits in every run that has the same events.
class Bucket {
 public:
  Bucket(const protocol::JobSpec& spec, const protocol::BucketLayout& layout,
         std::span<const protocol::PartLayout> parts, LedgerMode ledger);
  ~Bucket();
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  uint64_t dimension() const { return dimension_; }
  size_t slot_count() const { return slots_.size(); }
  PushSlot& slot(size_t member) { return *slots_[member]; }
  const PushSlot& slot(size_t member) const { return *slots_[member]; }

  /// Takes the committed slots and what came back into the residual and selects from it: what is to be sent leaves the
  /// residual.
  ///
  /// In an unbiased job what is to be sent is drawn, and nothing stays: what was drawn is more than what had entered,
  /// or less, and the difference is in the ledger with the errors dropped. An uncompressed step
  /// (protocol::step_sends()) sends everything and draws nothing.
  ///
  /// clip      what the slots' gradients are scaled by before they enter; 1 where the job does not clip.
  /// draws     whose random numbers a selection takes: workers that drew the same ones would all leave out the same.
  /// REQUIRES  every slot was filled for this step; the step before is coded whole.
  /// Errors    non_finite: sums overflowed (or what is drawn would, scaled up); nothing is selected, nothing is lost.
  Status select(uint64_t step, float clip = 1, uint64_t draws = 0);

  /// Codes part `at` (0 .. part count - 1, each once, any order) of what select() took out. Sent means decoded: what
  /// the code loses or adds is settled here, in the residual (retain) or in the ledger (drop); where it is values
  /// alone, by settle_one(). An uncompressed step is coded without loss, whatever the job's codec: a container names
  /// its codecs.
  ///
  /// Cost    one copy of the part's entries, then the codec; raw indices and values: that copy alone.
  /// Errors  as the codecs' and the container's.
  Result<CodedPart> code(size_t at, const EncodeOptions& options);

  /// Codec auto: chooses how what select() took out is coded, parts alike. Returns true where the choice has
  /// changed; false in an uncompressed step, which takes no choice.
  /// REQUIRES  before the step's first code(); input.spec and input.pieces are set here.
  bool choose_codecs(ChoiceInput input);
  const CodecChooser& chooser() const { return chooser_; }

  /// Path switch, in place of code() for every part: all that select() took out, sparse, indices of the bucket. What
  /// becomes of it says settle_offer().
  Stream offer();
  /// What of an offer was not applied in part `at`: back into the residual, indices local to it.
  ///
  /// whole  how many of the entries came back as they were offered; of the others it is what rounding to the grid left.
  void settle_offer(size_t at, Stream&& back, uint64_t whole);
  /// Into the ledger: mass that is gone for good. Index within part `at`.
  void lose(size_t at, uint64_t index, double amount);

  /// In place of code(): the part's step is decided already, what was selected for it stays here.
  void keep_part(size_t at);

  /// Entries that an update did not carry, or that were not counted: back into the residual. Indices local to part
  /// `at`. In an unbiased job they go into the ledger.
  void give_back(size_t at, Stream&& stream);

  /// What of `sent` the update did not carry is to come back. Found out later, by settle_one() or when it is next
  /// needed: the update has been waited for, the bookkeeping has not.
  void give_back_rest(size_t at, HeldStream&& sent, const HeldStream& carried);

  /// Returns whether an update of the step ends the velocity of the entries that it applies: where other entries of the
  /// step wait for later steps, in the residual or through re-selection. step: as given to select().
  bool masks(uint64_t step) const;
  /// Ends the velocity of the entries of part `at` that an update has applied: all that the step sent (`carried` is
  /// null), or those that the update carries. Does nothing where masks(step) is false. give_back_rest() takes what
  /// comes back.
  void mask_applied(size_t at, uint64_t step, const HeldStream& sent, const HeldStream* carried);

  // --- jobs with `reproducible`, over shards: select() rounds to the grid, and what that leaves comes back with the
  // update.

  bool on_grid() const { return grid_.has_value(); }
  /// In place of give_back() and give_back_rest(): what comes back of all that was selected of the part. carried: the
  /// update's entries; null: all was applied. What was not counted: give_back(), of anything.
  /// REQUIRES: on_grid().
  void settle_on_grid(size_t at, const StreamView* carried);
  /// A part's update of the step has been applied: exponents of the next step go by it. Nothing in other jobs.
  void observe_update(size_t at, const StreamView& sums);

  /// Does one piece of what code() and give_back_rest() have put off, the oldest. False: there was nothing to do.
  /// Nothing that can be asked for depends on it but unsettled() and what the asking costs.
  bool settle_one();
  bool unsettled() const { return put_off_ > 0 || (velocity_ && velocity_->unsettled()); }

  /// Hands out what is kept back of [begin, end) and forgets it, as if it had never entered; indices local to begin.
  /// REQUIRES  the bucket is idle: nothing filled, selected or coded that is not settled.
  Stream take_residual(uint64_t begin, uint64_t end);

  // --- coming back (R9): what is kept back waits apart until each part of it is judged, and what is pushed meanwhile
  // is no part of it. Until merge_aside().

  /// Puts all that is kept back apart. False: a slot is being filled at this moment; to be tried again.
  /// REQUIRES  nothing is selected and not coded.
  bool set_aside();
  /// The residual of a saved state: apart, and in none of the books until take_over_aside().
  void set_aside_loaded(Stream&& residual);
  /// That of a saved state; nothing in a job without momentum.
  void load_velocity(Stream&& velocity);
  bool is_aside() const { return aside_ != nullptr; }
  /// As give_back() and give_back_rest(), to what is apart.
  void return_aside(size_t at, Stream&& stream);
  void return_rest_aside(size_t at, HeldStream&& sent, const HeldStream& carried);
  /// The part's share is a loaded one that is in no book; or one that was taken over and not dropped since.
  bool is_loaded(size_t at) const { return aside_ && aside_->shares[at] == Share::kLoaded; }
  bool holds_opening(size_t at) const { return aside_ && aside_->shares[at] == Share::kInBooks; }
  /// The part's share counts: a loaded one is in opening() and residual() from now on.
  void take_over_aside(size_t at);
  /// It does not: into the ledger, but for a loaded one that was never taken over. The sum of |value|.
  double drop_aside(size_t at);
  /// Back into the residual. REQUIRES: every part's share was taken over or dropped, where it was loaded.
  void merge_aside();
  /// What is apart and in none of the books, indices of the bucket.
  std::vector<Stream> loaded_aside() const;

  /// Into the ledger: all of the stream, indices local to part `at`. The sum of |value|.
  double lose_all(size_t at, const StreamView& stream);

  /// Residual with everything given back and everything filled or selected and not coded yet. With momentum or clipping
  /// what is filled has not entered before select(), and is not in it.
  Stream residual() const;

  /// clip  as for select(), as far as it is known.
  BucketState state(float clip) const;

  BucketCounters counters() const;
  void count_received(uint64_t entries) { counters_.entries_received += entries; }

  /// Audit: the books of part `at`, of all that is here. Settles what is put off.
  /// REQUIRES  the job audits; no slot of several is being filled.
  PartAccounts audit(size_t at);
  /// What was pushed into the part, and what that rounded off. REQUIRES: as audit().
  EnteredAccount pushed_in(size_t at) const;
  /// What of the part a loaded state began with; and what was lost of it here. REQUIRES: the job audits.
  Account opened_in(size_t at) const { return opened_[at]; }
  Account lost_in(size_t at) const;
  /// How many entries audit() would go over.
  uint64_t held_entries(size_t at) const;

  /// LedgerMode::kPerIndex only, [dimension]. What was lost is a copy: of what is put off it is worked out for the
  /// caller alone, so that it fits residual() at any moment.
  std::span<const double> entered() const { return entered_; }
  std::vector<double> lost() const;
  std::span<const double> opening() const { return opening_; }

 private:
  friend class PushSlot;
  /// Coded; what the code changed comes back: selected - sent.
  struct Recoded {
    Stream selected;
    HeldStream sent;  ///< other values at the same indices
  };
  /// Counted; what of `sent` was not carried comes back.
  struct Rest {
    HeldStream sent;
    HeldStream carried;
  };
  /// Something that comes back to part `at`: the entries, or what they are to be worked out from.
  struct Returning {
    size_t at = 0;
    std::variant<Stream, Recoded, Rest> what;
    bool is_put_off() const { return !std::holds_alternative<Stream>(what); }
  };
  struct WorkedOut {
    Stream back;
    Buffer<float> beyond;  ///< of Recoded, by entry: what f32 does not hold of the difference
  };

  /// Of what is apart, by part.
  enum class Share : uint8_t { kLoaded = 1, kInBooks = 2, kGone = 3 };
  struct Aside {
    struct Piece {
      size_t at = 0;
      Stream stream;
    };
    Stream residual;
    std::vector<Share> shares;    ///< what of `residual` each part's is
    std::vector<Piece> returned;  ///< in the books
  };
  Stream share_of(size_t at) const;
  void add_aside(std::vector<Stream>& streams) const;

  // bucket_audit.cc. What the books need where the job audits.
  Account held_in(size_t at) const;
  void book_lost(size_t at, const Mass& mass);
  void book_opening(size_t at, const Stream& share);
  /// target += stream, of part `at` or of all, and what that rounds off.
  void add_in_f32(std::span<float> target, const StreamView& stream, size_t at);
  void add_all_in_f32(std::span<float> target, const StreamView& stream);
  /// What adding the two streams, or the piece to the residual, is about to round off.
  void book_rounding(const StreamView& a, const StreamView& b);
  void book_rounding(size_t at, const StreamView& piece);

  /// Slots of fused tensors hold streams of their own; they are joined here.
  void take_staged();
  Stream join_staged();
  void let_enter(float clip);
  /// Whether gradients enter in select(), not in their slots.
  bool enters_in_select() const { return velocity_.has_value() || spec_.clip != 0; }
  /// Whether a slot adds to the residual itself.
  bool enters_in_slot() const { return slots_.size() == 1 && !enters_in_select(); }
  void take_returned();
  bool staged_alone() const;
  void add_to_residual(Stream&& stream);
  void drop_zeros();
  Status take_selection(const SelectContext& context);
  void split_off(const IndexBuffer& positions);
  void round_to_grid();
  Stream remainder_in_flight(size_t at) const;
  Status draw(const SelectContext& context);
  bool draws() const { return spec_.unbiased && selector_ != nullptr; }
  /// Into the ledger: all of the stream, indices of the bucket.
  void lose_stream(const StreamView& stream);
  Stream take_part(size_t at);
  EncodeOptions options_of_step(EncodeOptions options) const;
  bool goes_plain(const CodecSpec& codec) const;
  Result<CodedPart> code_dense(size_t at, Stream&& local, const Stream& dense, const EncodeOptions& options);
  Result<CodedPart> code_plain(size_t at);
  void part_is_coded(size_t at, uint64_t entries);
  void settle_code(size_t at, const StreamView& selected, const StreamView& decoded, const StreamView& rest);
  void put_off(Returning&& piece);
  void discard(size_t at, const StreamView& stream);
  void merge_piece(size_t at, Stream&& stream);
  /// REQUIRES  it is put off.
  static WorkedOut work_out(const Returning& piece);
  static void count(const Returning& piece, const WorkedOut& found, BucketCounters& counters);
  void book(size_t at, const StreamView& where, std::span<const float> amounts, std::vector<double>& ledger) const;
  void book_beyond(const Returning& piece, const WorkedOut& found, std::vector<double>& ledger) const;
  void drop_error(size_t at, const StreamView& selected, const StreamView& sent);

  const protocol::JobSpec& spec_;
  uint64_t dimension_ = 0;
  SelectionSpec select_spec_;
  CodecSpec codec_;
  CodecChooser chooser_;  ///< of an automatic codec
  std::vector<protocol::PartLayout> parts_;
  std::vector<std::unique_ptr<PushSlot>> slots_;
  std::unique_ptr<Selector> selector_;  ///< none for Selection::kNone
  std::optional<Velocity> velocity_;    ///< jobs with momentum
  protocol::UpdateCarries update_ =
      protocol::UpdateCarries::kWholeSum;  ///< whether shards may leave entries out of an update
  bool uncompressed_ = false;              ///< the step that select() took out is sent uncompressed
  std::optional<BucketGrid> grid_;         ///< reproducible jobs whose updates come from shards

  std::mutex fill_;  ///< held while a lone tensor's slot is filled into residual_
  std::unique_ptr<Aside> aside_;
  Stream residual_;                   ///< sparse; dense from the first dense push of a lone tensor on
  Stream merged_;                     ///< where the residual is merged to; then they change places
  Stream spare_;                      ///< arrays of the step before, to be written over
  std::vector<Returning> returning_;  ///< since the last select(), in the order of their events
  size_t put_off_ = 0;                ///< how many of them are not worked out
  size_t settled_to_ = 0;             ///< those before this one are
  Stream selected_;                   ///< taken out by select(), indices of the bucket
  std::vector<uint8_t> coded_;        ///< by part: its share of selected_ is out
  size_t parts_left_ = 0;
  uint64_t entries_in_step_ = 0;

  BucketCounters counters_;
  LedgerMode ledger_ = LedgerMode::kSums;
  std::vector<Account> opened_;      ///< audit, by part
  std::vector<Account> lost_books_;  ///< audit, by part: by name
  std::vector<Account> rounded_;     ///< audit, by part: what f32 additions here rounded off
  std::vector<double> entered_;
  std::vector<double> lost_;
  std::vector<double> opening_;
};

}  // namespace millrace::worker
