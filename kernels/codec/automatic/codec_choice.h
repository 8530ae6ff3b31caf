#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/stream/stream.h"

/// Codec "auto": chooses the form, index codec and value codec that take the least time. The model is in DESIGN.md,
/// "auto". Pure: the measurements are an input, and equal inputs give equal choices.
namespace millrace {

/// Densities of uniform indices at which speeds are known, ascending.
inline constexpr std::array<double, 5> kSpeedDensities = {0.001, 0.01, 0.1, 0.5, 0.9};

/// Numbers of units in the measured streams, ascending. A unit is an index of a sparse form, or a value of the dense
/// form. Arrays of kNearUnits stay in the nearest caches, those of kFarUnits do not; those of the last are in no cache.
inline constexpr uint64_t kNearUnits = 2'112;
inline constexpr std::array<uint64_t, 3> kFarUnits = {16'384, 131'072, 4'194'304};
/// Numbers of units in the streams that measure the fixed cost, ascending. A code must first start its loops, tables
/// and predictions, and eight units may not need all of them. Codes of blocks of 128 have half a block left over, as
/// streams have on average; so have those of kNearUnits.
inline constexpr std::array<uint64_t, 3> kFewUnits = {8, 64, 576};
inline constexpr uint64_t kDenseUnitsPerUnit = 10;     ///< the dense form of the same streams, at density 0.1
inline constexpr uint64_t kDenseUnitsPerFarthest = 2;  ///< of the last of kFarUnits, at density 0.5

/// Values that were measured of a value codec, ascending: Deflate's tables and blocks take their time up to thousands.
inline constexpr std::array<uint64_t, 5> kValueUnits = {kFewUnits[0], kFewUnits[1], kFewUnits[2], kNearUnits,
                                                        kFarUnits[0]};

/// Units in streams of clustered indices that were measured, ascending, and what CodecChoice::gap_spread is of such.
inline constexpr std::array<uint64_t, 2> kClusteredUnits = {kFewUnits.back(), kFarUnits.front()};
inline constexpr double kClusteredSpread = 1.2;
inline constexpr double kClusteredDensity = 0.1;

/// Holds the time of one direction of a code: `fixed_ns` + units * (`unit_ns` + `far_ns`), each interpolated as below.
/// A unit is an index of a sparse form, or a value of the dense form. For clustered indices, `clustered` multiplies the
/// time.
struct WaySpeed {
  std::array<double, kFewUnits.size()> fixed_ns = {};  ///< at kFewUnits; between them by the logarithm of the units
  /// Near, at kSpeedDensities; between them on logarithmic axes.
  std::array<double, kSpeedDensities.size()> unit_ns = {};
  /// More a unit, where the arrays are far; between by the logarithm.
  std::array<double, kFarUnits.size()> far_ns = {};
  std::array<double, kClusteredUnits.size()> clustered = {1, 1};  ///< at kClusteredUnits; between by the logarithm
};

struct CodingSpeed {
  WaySpeed encode;  ///< to the container's last byte
  WaySpeed decode;
};

/// Holds the time of coding on a machine, of f32 values on one thread. A codec without a row is no candidate.
struct CodecSpeeds {
  struct Index {
    IndexCodecId codec = IndexCodecId::kNone;
    CodingSpeed speed;  ///< with raw values
  };
  /// Holds times over raw values, at kValueUnits: straight lines between; beyond, the last one's time a value.
  struct ValueWay {
    std::array<double, kValueUnits.size()> ns = {};

    static constexpr ValueWay even(double unit_ns) {
      ValueWay way;
      for (size_t at = 0; at < way.ns.size(); ++at) way.ns[at] = unit_ns * static_cast<double>(kValueUnits[at]);
      return way;
    }
    double at(double units) const;
  };
  struct Value {
    ValueCodecId codec = ValueCodecId::kRaw;
    ValueWay encode;
    ValueWay decode;
  };
  std::vector<Index> index;
  std::vector<Value> value;
  CodingSpeed dense;
};

/// Speeds that were measured once, rounded: where choices must be the same on all machines (tests, the simulator).
const CodecSpeeds& fallback_speeds();

/// Where speeds come from: fallback_speeds, or measured_speeds (protocol/container/codec_speeds.h), which measures when
/// it is first called.
using SpeedSource = const CodecSpeeds& (*)();

/// The assumed rate of a link without a stated or measured rate.
inline constexpr double kLinkRateUnknown = 1e9;

enum class CodedForm : uint8_t {
  kEither = 1,  ///< absent entries may be sent as zeros, and zeros left out
  kAsItIs = 2   ///< being in the stream says something: an update that was cut to its largest entries
};
enum class Detail : uint8_t {
  kToChoose = 1,   ///< candidates that cannot win are given up as soon as that is known
  kEverything = 2  ///< every candidate in full, to be shown
};

struct ChoiceInput {
  CodecSpec spec;  ///< automatic. Its value codec is the one; where it is raw, any that is lossless
  const CodecSpeeds* speeds = nullptr;
  double link_bits_per_s = kLinkRateUnknown;
  uint32_t pieces = 1;  ///< that the stream is coded in, one after the other: coding, wire and decoding overlap
  uint32_t copies = 1;  ///< how often the bytes cross the link
  CodedForm form = CodedForm::kEither;
  Detail detail = Detail::kToChoose;
};

/// Describes a way to code the stream, and its expected time. Times and bytes are those of a piece, but for total_ns.
struct CodecCandidate {
  bool dense = false;
  IndexCodecId index = IndexCodecId::kNone;
  ValueCodecId value = ValueCodecId::kRaw;
  double encode_ns = 0;
  double wire_ns = 0;
  double decode_ns = 0;
  double bytes = 0;
  double total_ns = 0;   ///< of all pieces
  bool complete = true;  ///< false: given up, bytes and times are lower bounds

  bool codes_as(const CodecCandidate& other) const {
    return dense == other.dense && index == other.index && value == other.value;
  }
};

/// Returns "adaptive+raw", "dense", "dense+deflate", ...
std::string candidate_text(const CodecCandidate& candidate);

struct CodecChoice {
  CodecCandidate chosen;
  /// The one of least time first; those given up last. Empty: every candidate's codec refuses the stream, as bf16
  /// refuses a value that it would round to infinity. `chosen` then has the specification's own codecs and infinite
  /// time.
  std::vector<CodecCandidate> candidates;
  double density = 0;
  double link_bits_per_s = 0;
  uint64_t count = 0;
  /// Standard deviation of log2 of the gaps, over that of as many uniform indices: above 1 where indices cluster.
  double gap_spread = 1;

  /// Returns one line with the reason: "adaptive+raw: 41 us against 58 us gap+raw, 210 us dense at 1 Gbit/s, density
  /// 0.01".
  std::string text() const;
};

/// Returns the candidate of least total_ns; of equals, the one of lower numbers, a sparse one before a dense.
///
/// stream   well-formed, with at least one entry. A sparse one is sent dense only where its values stay as they are:
///          zeros of a code that changes values need not stay zeros.
/// Cost     a sample of 4096 entries coded by every candidate that could win; a dense stream is looked through once
///          besides.
/// Threads  reentrant.
CodecChoice choose_codecs(const StreamView& stream, const ChoiceInput& input);

/// Chooses the coding of one tensor and direction over its steps. Chooses again every 32 steps, and when the count of
/// entries or the link's rate has changed by a quarter. Changes only to a candidate that takes 5 % less time.
///
/// Copies   a copy shares the choice so far; a choice of one copy does not change the other.
class CodecChooser {
 public:
  /// Chooses before a step is coded. True: the choice is the first or another one. An empty stream changes nothing, and
  /// neither does one that every candidate refuses.
  bool choose(const StreamView& stream, const ChoiceInput& input);

  /// Returns the choice; nullptr: nothing was chosen yet.
  const CodecChoice* choice() const { return choice_.get(); }
  uint64_t changes() const { return changes_; }

  /// Returns `spec` with the chosen codecs, not automatic any more; before the first choice those that it names.
  CodecSpec resolved(const CodecSpec& spec) const;
  /// Returns the stream in the chosen form; empty: unchanged.
  std::optional<Stream> formed(const StreamView& stream, CodedForm form) const;

 private:
  bool is_due(uint64_t count, double rate) const;

  std::shared_ptr<const CodecChoice> choice_;
  uint32_t steps_since_ = 0;
  uint64_t changes_ = 0;
};

/// Estimates a link's rate from the bytes that moved over it. Rises at once, and falls by a sixteenth of the difference
/// a sample. Delays outside the link make a sample too low; nothing makes one too high.
class LinkRate {
 public:
  /// stated_bits_per_s  above 0: the rate itself; nothing is estimated.
  explicit LinkRate(double stated_bits_per_s = 0) : stated_(stated_bits_per_s) {}

  /// Adds a sample: `bytes` arrived after `ns` nanoseconds. Ignores fewer than 64 KiB, which show delay rather than
  /// rate.
  void moved(uint64_t bytes, int64_t ns);
  double bits_per_s() const;

 private:
  double stated_ = 0;
  double measured_ = 0;
};

}  // namespace millrace
