#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/switch/client_lane.h"
#include "worker/switch/switch_client.h"

namespace millrace::worker {

/// Holds the client's state: steps, and the state that all lanes share (client_state.cc). A step is over when it is
/// over in all lanes, and the next one begins in all of them at once. So exponents are of whole steps, and positions of
/// two lanes agree.
struct SwitchClient::State {
  State(const SwitchClientOptions& options_given, SwitchOutcome& outcome_given);

  /// Holds a step's entries of one window.
  struct Piece {
    uint32_t window = 0;  ///< as its lane numbers it
    size_t first = 0;
    size_t last = 0;
  };

  Status begin_step(uint32_t number, std::shared_ptr<StepOffer> own_offer);
  void share_out_pieces();
  void begin_or_wait(TimeNs now, protocol::PacketSink& sink);
  void open_step(TimeNs now, protocol::PacketSink& sink);
  void end_step_if_over(TimeNs now, protocol::PacketSink& sink);
  void go_on_finishing(TimeNs now, protocol::PacketSink& sink);
  bool at_rest() const { return !stepping || unopened; }
  std::vector<SwitchRevoked> abandon_step(uint64_t incarnation, const SwitchHandover& known);
  void set_epoch(const SwitchEpoch& given, TimeNs now, protocol::PacketSink& sink);
  void record_incarnations(const SwitchEpoch& given);
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink);
  SwitchHandover handover() const;
  void take_over(const SwitchHandover& handover);

  SwitchClientOptions options;
  SwitchOutcome& outcome;
  int32_t limit;
  ExponentTable exponents;
  SwitchClientCounters counters;

  SwitchEpoch epoch{};
  bool has_epoch = false;
  uint32_t epoch_seen = 0;
  /// First epoch of each worker's present incarnation.
  std::array<uint32_t, protocol::kSwitchWorkersMax> live_since{};

  uint32_t next_step = 0;  ///< begin_step()'s
  uint32_t step = 0;       ///< under way, or the last
  bool stepping = false;
  bool finishing = false;
  bool finished = false;
  bool paused = false;
  bool unopened = false;  ///< `stepping`, and the pause holds the step back
  std::shared_ptr<StepOffer> offer = std::make_shared<StepOffer>();
  std::vector<Piece> pieces;

  std::vector<std::unique_ptr<Lane>> lanes;
};

}  // namespace millrace::worker
