// Two lcores over DPDK: the product's loop on a thread each, frames in whichever queue RSS would have chosen. Skips
// where DPDK cannot start.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "switch_agg/bench/traffic.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"
#include "switch_agg/packet_io/lane_of_datagram.h"
#include "switch_agg/process/packet_loop.h"

namespace millrace::switch_agg {
namespace {

constexpr uint16_t kSwitchPort = 7700;
constexpr uint16_t kWorkerPort = 10'000;
constexpr uint32_t kLanes = 2;
constexpr uint32_t kWorkers = 3;
constexpr uint32_t kSlots = 4;
constexpr uint32_t kWindow = 640;
constexpr uint64_t kTurns = 50;

/// A number of a job that the lane has.
uint32_t job_of(uint32_t lane) { return 10 * kLanes + lane; }

/// Workers of one lane's job, at a wire that all lanes share. Every frame goes into the next queue: half of them into
/// another lane's.
class SharedWire {
 public:
  SharedWire(DpdkRingWire& wire, uint32_t queues) : wire_(wire), queues_(queues) {}

  bool inject(ByteSpan datagram, uint16_t worker) {
    std::vector<uint8_t> frame(kUdpHeadersBytes + datagram.size());
    std::ranges::copy(datagram, frame.begin() + kUdpHeadersBytes);
    const WireAddress from = {{0x02, 0, 0, 0, 1, static_cast<uint8_t>(worker)},
                              {10, 0, 1, static_cast<uint8_t>(worker)}};
    build_udp_headers({from, wire_.address(), static_cast<uint16_t>(kWorkerPort + worker), kSwitchPort}, frame);
    return wire_.inject_frame(frame, next_queue_++ % queues_);
  }
  /// Sorts the sent packets by the lane of their job.
  void look() {
    for (uint32_t queue = 0; queue < queues_; ++queue) {
      wire_.take_frames(queue, [&](ByteSpan frame) {
        const auto udp = parse_udp_frame(frame);
        if (!udp) return;
        ASSERT_EQ(udp->from_port, kSwitchPort);
        const auto job = protocol::job_number_of(udp->payload);
        ASSERT_TRUE(job);
        sent_[lane_of_job(*job, kLanes)].push_back(
            {static_cast<uint16_t>(udp->to_port - kWorkerPort), {udp->payload.begin(), udp->payload.end()}});
      });
    }
  }
  /// Waits until the lane has sent `packets` packets that the test has not taken yet.
  void wait_for(uint32_t lane, size_t packets) {
    for (look(); sent_[lane].size() < packets; look()) std::this_thread::yield();
  }
  auto take(uint32_t lane) { return std::exchange(sent_[lane], {}); }

 private:
  using Sent = std::pair<uint16_t, std::vector<uint8_t>>;
  DpdkRingWire& wire_;
  uint32_t queues_;
  uint32_t next_queue_ = 0;
  std::array<std::vector<Sent>, kLanes> sent_;
};

class LaneEnd final : public BenchEnd {
 public:
  LaneEnd(SharedWire& wire, uint32_t lane) : wire_(wire), lane_(lane) {}
  bool inject(ByteSpan datagram, uint16_t worker) override { return wire_.inject(datagram, worker); }
  void take(const std::function<void(ByteSpan, uint16_t)>& taker) override {
    wire_.look();
    for (const auto& [worker, bytes] : wire_.take(lane_)) taker(bytes, worker);
  }

 private:
  SharedWire& wire_;
  uint32_t lane_;
};

/// A lane's job: its contributions go out turn by turn; the results are compared with the drawn entries.
class LaneJob {
 public:
  LaneJob(SharedWire& wire, uint32_t lane)
      : wire_(wire),
        lane_(lane),
        end_(wire, lane),
        workers_({.job = bench_job(kWorkers, kSlots, kWindow, job_of(lane)),
                  .entries = 40,
                  .packet_bytes = 1400,
                  .seed = 9 + lane}) {}

  void join() {
    const Status joined = workers_.join(end_, [this] { wire_.wait_for(lane_, kWorkers); });
    ASSERT_TRUE(joined) << joined.error().message;
  }
  bool done() const { return turn_ > kTurns; }
  uint64_t right() const { return right_; }

  /// Sends a turn where the one before is complete, and takes the packets that have come.
  void go_on() {
    if (left_ == 0 && !done()) {
      PacketList packets;
      for (uint32_t slot = 0; slot < kSlots; ++slot) workers_.append(turn_, static_cast<uint16_t>(slot), packets);
      for (size_t at = 0; at < packets.size(); ++at) ASSERT_TRUE(end_.inject(packets[at], packets.worker(at)));
      left_ = kSlots * kWorkers;
    }
    end_.take([&](ByteSpan packet, uint16_t) { take(packet); });
  }

 private:
  void take(ByteSpan packet) {
    const auto datagram = protocol::parse_datagram(packet);
    ASSERT_TRUE(datagram);
    // By two queues frames come out of order, which may look like a loss.
    if (datagram->header.type == protocol::DatagramType::kNotice) {
      const auto notice = protocol::read_notice(datagram->extension);
      ASSERT_TRUE(notice && notice->code == protocol::NoticeCode::kLost);
      return;
    }
    ASSERT_EQ(datagram->header.type, protocol::DatagramType::kResult);
    ASSERT_TRUE(workers_.results_key().verify(*datagram));
    ASSERT_EQ(datagram->header.turn, turn_);
    ASSERT_EQ(datagram->header.fragment, 0) << "all of it fits one packet";
    std::vector<uint16_t> indices(protocol::kFragmentEntriesMax);
    std::vector<int32_t> values(protocol::kFragmentEntriesMax);
    const auto count = decode_window(datagram->header, datagram->payload, kWindow, {indices, values});
    ASSERT_TRUE(count);
    ASSERT_TRUE(workers_.is_sum(turn_, datagram->header.slot, std::span(indices).first(*count),
                                std::span(values).first(*count)));
    ++right_;
    if (--left_ == 0) ++turn_;
  }

  SharedWire& wire_;
  uint32_t lane_;
  LaneEnd end_;
  BenchWorkers workers_;
  uint64_t turn_ = 1;
  uint32_t left_ = 0;  ///< packets of the turn that are to come
  uint64_t right_ = 0;
};

/// Every sum of both lanes' jobs, with `queues` of the device.
void sums_are_right_with(uint32_t queues) {
  auto wire =
      DpdkRingWire::open({.address = {10, 0, 0, 1}, .port = kSwitchPort, .lanes = kLanes, .memory_mib = 1024}, queues);
  if (!wire) GTEST_SKIP() << "DPDK cannot start here: " << wire.error().message;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes.push_back(
        std::make_unique<Lane>(std::move((*wire)->ports()[lane]), AggregatorOptions{.slots_max = kSlots}, 5 + lane));
    ASSERT_TRUE(lanes.back()->add_jobs({bench_job(kWorkers, kSlots, kWindow, job_of(lane))}, monotonic_now_ns()));
  }
  std::vector<std::jthread> threads;
  for (const auto& lane : lanes) threads.emplace_back([&lane] { lane->run(); });
  SharedWire shared(**wire, queues);
  std::array<LaneJob, kLanes> jobs = {LaneJob(shared, 0), LaneJob(shared, 1)};
  for (LaneJob& job : jobs) job.join();
  while (!::testing::Test::HasFatalFailure() && !(jobs[0].done() && jobs[1].done())) {
    for (LaneJob& job : jobs) job.go_on();
  }
  for (const auto& lane : lanes) lane->request_stop();
  threads.clear();
  for (const LaneJob& job : jobs) EXPECT_EQ(job.right(), kTurns * kSlots * kWorkers);
}

TEST(DpdkLanes, SumsAreRightWhicheverOfTwoQueuesAFrameComesBy) { sums_are_right_with(2); }

TEST(DpdkLanes, SumsAreRightWhereOneLanePassesFramesToTheOther) { sums_are_right_with(1); }

}  // namespace
}  // namespace millrace::switch_agg
