#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "protocol/datagram/sent_log.h"
#include "protocol/datagram/switch_link.h"
#include "worker/switch/congestion_control.h"
#include "worker/switch/integer_limit.h"
#include "worker/switch/switch_client.h"
#include "worker/switch/turn.h"

namespace millrace::worker {

using protocol::SwitchLink;

/// Runs one lane of a client: a job of the protocol of its own, with its sessions, slots and removals. Steps are the
/// client's (client_state.h). Windows and slots are numbered as in packets: window w is the client's window w x lanes +
/// lane, and slots alike. One concern a file:
/// - client_lane_turns.cc: turns and their packets
/// - client_lane_results.cc: results of turns
/// - client_lane_epochs.cc: challenge, hello, welcome
/// - client_lane_returns.cc: removals
/// - client_lane_rack.cc: the session with the rack
/// - client_lane_timers.cc: time-outs, silence, congestion
struct SwitchClient::Lane {
  Lane(State& steps_given, uint32_t lane);

  enum class SlotState : uint8_t {
    kDone,     ///< this step is over here; begin_step() starts the next turn
    kDelayed,  ///< the answer is made and not sent: congestion, or a hello comes first
    kWaiting,  ///< sent; the result is out
  };

  /// Holds the entries sent in a turn, and their places in its update.
  struct Applied {
    int exponent = 0;
    uint32_t begin = 0;                      ///< of the window
    std::shared_ptr<const StepOffer> offer;  ///< null: nothing
    size_t first = 0;                        ///< of its entries
    size_t last = 0;
    std::vector<uint16_t> applied;  ///< CompletedWindow's
  };
  static SwitchRevoked revoke(const Applied& applied);

  /// Fields that every result reads of all slots are first, within one cache line.
  struct alignas(64) Slot {
    SlotState state = SlotState::kDone;
    uint32_t sends = 0;               ///< of this turn, in all epochs and incarnations
    uint64_t order = 0;               ///< of its last transmission, or of its waiting, among all slots'
    uint32_t overtaken = 0;           ///< turns that were sent later and whose results have arrived
    bool fast_retransmitted = false;  ///< its result is lost, and it is asked for
    uint32_t timeouts = 0;
    TimeNs sent_at = 0;  ///< first
    TimeNs last_sent_at = 0;
    TimeNs due = 0;       ///< kWaiting: time-out; kDelayed: goes out at the latest
    uint64_t turn = 1;    ///< the position (S3.3): the turn that is sent next, or was
    uint32_t window = 0;  ///< of that turn
    uint32_t next = protocol::kNoWindow;
    size_t piece = 0;  ///< of pieces: the first whose window has not had its turn
    std::vector<uint32_t> pieces;
    size_t first = 0;  ///< of the step's entries: those that this turn offers
    size_t last = 0;
    Contribution sent;
    Gathering result;
    std::vector<Fragment> kept;  ///< the whole result of turn - 1
    // This step's opening said FIN of all its contributors:
    bool ended = false;
    uint64_t ended_by = 0;           ///< these
    uint32_t ended_epoch = 0;        ///< in this epoch
    std::array<Applied, 2> applied;  ///< in turns - 1 and - 2: what would be revoked
  };

  // client_lane_turns.cc
  CompletedWindow completed_window(uint16_t number, uint32_t window, size_t first, size_t last) const;
  void open_step(TimeNs now, protocol::PacketSink& sink);
  bool step_is_over() const;
  void open_turn(uint16_t number, uint32_t window, TimeNs now, protocol::PacketSink& sink);
  void send_or_delay(uint16_t number, TimeNs now, protocol::PacketSink& sink);
  void send_turn(uint16_t number, TimeNs now, protocol::PacketSink& sink);
  enum class Way : uint8_t { kRack, kDecider };
  void transmit(uint16_t number, uint8_t flags, Way way, protocol::PacketSink& sink);
  void transmit_fragment(uint16_t number, uint16_t at, uint8_t flags, Way way, protocol::PacketSink& sink);
  void send_lost(const protocol::Notice& notice, Way way, TimeNs now, protocol::PacketSink& sink);
  void send_lost_packet(protocol::SentLog::Packet packet, Way way, TimeNs now, protocol::PacketSink& sink);
  void note_sent(Slot& slot, TimeNs now);
  void send_delayed(TimeNs now, protocol::PacketSink& sink);
  void note_overtaken(uint64_t order, TimeNs now);
  void hasten_results(TimeNs now);
  uint32_t waiting() const;

  // client_lane_results.cc
  void on_result(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  bool fits_turn(const protocol::DatagramHeader& header);
  bool keeps_the_rules(const Slot& slot, uint16_t number, const protocol::DatagramHeader& header) const;
  void count_taken(Gathering::Taken taken);
  bool complete_if_whole(uint16_t number, TimeNs now);
  void keep_applied(Slot& slot, std::span<const uint16_t> where);
  void advance(uint16_t number, uint32_t next, TimeNs now, protocol::PacketSink& sink);

  // client_lane_epochs.cc
  void enter_epoch(TimeNs now, protocol::PacketSink& sink);
  void receive(const protocol::Datagram& datagram, const protocol::ReceivedPacket& packet, TimeNs now,
               protocol::PacketSink& sink);
  void go_outside();
  void leave_incarnation();
  void say_hello(TimeNs now, protocol::PacketSink& sink);
  void ask_incarnation(TimeNs now, protocol::PacketSink& sink);
  void on_challenge(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  void on_session_packet(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  void on_welcome(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  void on_fetch(const protocol::Datagram& datagram, protocol::PacketSink& sink);
  void on_notice(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  void record_back_off(protocol::NoticeCode code, TimeNs now);
  void heard(TimeNs now);

  // client_lane_returns.cc
  SwitchHandover::Lane handover() const;
  void take_over(const SwitchHandover::Lane& handover);
  void note_removal(const protocol::WelcomeTerms& welcome);
  void note_result_of_removal(uint16_t number);
  bool all_ended() const;
  void revoke_behind(const SwitchRemoval& removal, std::vector<SwitchRevoked>& revoked);
  void abandon_turns(const SwitchRemoval* removal);
  void abandon_turn(uint16_t number, const SwitchRemoval* removal);
  void return_pieces(uint16_t number);
  void return_window(uint16_t number, uint32_t window, size_t first, size_t last);

  // client_lane_rack.cc
  enum class RackPhase : uint8_t {
    kNone,  ///< no rack in this epoch, or one of another shape
    kAsking,
    kHello,
    kWelcome,  ///< contributions go there first
  };
  void begin_rack(TimeNs now, protocol::PacketSink& sink);
  void ask_rack(TimeNs now, protocol::PacketSink& sink);
  void greet_rack(TimeNs now, protocol::PacketSink& sink);
  bool is_from_rack(const protocol::Datagram& datagram, const protocol::Endpoint& from) const;
  void on_rack_packet(const protocol::Datagram& datagram, protocol::Ecn ecn, TimeNs now, protocol::PacketSink& sink);
  void on_rack_challenge(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  void on_rack_welcome(const protocol::Datagram& datagram);
  void on_rack_notice(const protocol::Datagram& datagram, TimeNs now, protocol::PacketSink& sink);
  void leave_rack(RackPhase then);
  void suspect_rack(TimeNs now, protocol::PacketSink& sink);
  void tick_rack(TimeNs now, protocol::PacketSink& sink);
  TimeNs rack_deadline() const;

  // client_lane_timers.cc
  void tick(TimeNs now, protocol::PacketSink& sink);
  TimeNs next_deadline() const;
  TimeNs turn_deadline() const;
  void time_out(uint16_t number, TimeNs now, protocol::PacketSink& sink);
  void note_silence(TimeNs now, protocol::PacketSink& sink);
  void note_mark(protocol::Ecn ecn, TimeNs now);
  void probe_idle(TimeNs now, protocol::PacketSink& sink);
  bool may_probe(const Slot& slot) const;
  TimeNs idle_timeout() const;
  TimeNs still_due() const;
  TimeNs still_min() const { return lossy_steps != 0 ? kStillMinLossy : kStillMin; }
  bool idle() const;
  TimeNs idle_probe_due() const;
  void probe_idly(TimeNs now, protocol::PacketSink& sink);

  /// Transmissions of a turn before its time-out.
  static constexpr uint32_t kHastySendsMax = 3;
  static constexpr uint32_t kOvertakenMax = 3;  ///< as duplicate acknowledgements of TCP [RFC5681].
  /// Silence that counts as a lost packet. A shorter one may be a worker without a core. Where every step loses
  /// packets, a shorter silence suffices.
  static constexpr TimeNs kStillMin = 5 * kNsPerMs;
  static constexpr TimeNs kStillMinLossy = 2 * kNsPerMs;
  static constexpr uint32_t kLossySteps = 3;  ///< from a loss on

  uint16_t slot_count() const { return static_cast<uint16_t>(slots.size()); }
  /// Returns the number of a window of this lane in the client's array.
  uint32_t window_of_all(uint32_t window) const { return window * options.lanes + lane; }

  State& steps;
  const SwitchClientOptions& options;
  SwitchClientCounters& counters;
  const SwitchEpoch& epoch;
  const uint32_t lane;
  const uint32_t windows;  ///< of this lane
  SwitchLink link;
  SwitchLink rack_link;
  RoundTrip round_trip;
  CongestionWindow congestion;

  SwitchPhase phase = SwitchPhase::kOutside;
  std::vector<Slot> slots;

  AggregatorIncarnations opened_incarnations{};  ///< of the last epoch that was opened
  uint64_t opened_live = 0;
  std::vector<SwitchRemoval> removals;  ///< the latest first

  RackPhase rack_phase = RackPhase::kNone;
  bool rack_doubted = false;  ///< kWelcome: a CHALREQ is out
  TimeNs rack_due = 0;
  TimeNs rack_asked_at = INT64_MIN;
  uint32_t rack_timeouts = 0;

  uint64_t orders = 0;  ///< transmissions and answers held back, counted
  protocol::SentLog decider_log;
  protocol::SentLog rack_log;
  /// Number of steps, this one included, that still count as steps with lost packets.
  uint32_t lossy_steps = 0;
  /// Lost packets to all workers for which no slot with a missing result was found.
  uint32_t results_lost = 0;
  bool step_is_answered = false;  ///< a result of this step arrived: all workers have begun it
  TimeNs moved_at = 0;            ///< time of the last result, or of the last retransmission after silence

  uint32_t silent_timeouts = 0;
  /// NO_SLOTS, or an error that no retransmission cures, in this epoch and since its last WELCOME.
  bool refused = false;
  /// Time since which the aggregator has reported another job or epoch; INT64_MIN: it has not.
  TimeNs backed_off_at = INT64_MIN;
  TimeNs hello_due = 0;  ///< kAsking, kHello
  uint32_t hello_timeouts = 0;
  TimeNs asked_at = INT64_MIN;  ///< time of the last request; INT64_MIN: none
  TimeNs greeted_at = 0;        ///< time of the last HELLO to the decider
  TimeNs silence_counted_at = 0;
  TimeNs heard_at = 0;
};

}  // namespace millrace::worker
