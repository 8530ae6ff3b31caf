#include "protocol/datagram/io/udp_bursts.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "kernels/base/check.h"
#include "protocol/datagram/header.h"

namespace millrace::protocol {
namespace {

constexpr size_t kBuffers = 128;          ///< datagrams of different bytes that are gathered
constexpr size_t kMessagesIn = 8;         ///< of a receive
constexpr size_t kMessageBytes = 65'536;  ///< the most that UDP carries
constexpr size_t kUdpSegmentsMax = 64;    ///< of a piece, as older kernels have it
constexpr size_t kPieceBytesMax = 65'000;
constexpr size_t kReceivedMax = 2048;
/// Number of tries of sendmmsg on a full queue before the unsent messages are dropped. A burst is sent faster than one
/// packet leaves the queue of a loopback device. The receiver's timer costs a thousand times as much.
constexpr int kSendTries = 3;
constexpr size_t kMappedAt = Endpoint::kIpv4Prefix.size();  ///< where an IPv4 address begins

/// The system's interface takes every kind of address as a sockaddr.
union SocketName {
  sockaddr_storage storage;
  sockaddr any;
};

socklen_t fill_address(const Endpoint& endpoint, int family, sockaddr_storage& out) {
  if (family == AF_INET) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(endpoint.port);
    std::memcpy(&address.sin_addr, endpoint.address.data() + kMappedAt, sizeof address.sin_addr);
    std::memcpy(&out, &address, sizeof address);
    return sizeof address;
  }
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(endpoint.port);
  std::memcpy(&address.sin6_addr, endpoint.address.data(), sizeof address.sin6_addr);
  std::memcpy(&out, &address, sizeof address);
  return sizeof address;
}

Endpoint read_address(const sockaddr_storage& from) {
  Endpoint endpoint;
  if (from.ss_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, &from, sizeof address);
    std::ranges::copy(Endpoint::kIpv4Prefix, endpoint.address.begin());
    std::memcpy(endpoint.address.data() + kMappedAt, &address.sin_addr, sizeof address.sin_addr);
    endpoint.port = ntohs(address.sin_port);
    return endpoint;
  }
  sockaddr_in6 address;
  std::memcpy(&address, &from, sizeof address);
  std::memcpy(endpoint.address.data(), &address.sin6_addr, endpoint.address.size());
  endpoint.port = ntohs(address.sin6_port);
  return endpoint;
}

/// Room for a message's control data, each way: a segment's length, and a TOS or traffic class.
struct Control {
  alignas(cmsghdr) std::array<uint8_t, 2 * CMSG_SPACE(sizeof(int))> bytes{};
};

struct ControlKind {
  int level = 0;
  int type = 0;
};

/// Puts one more number beside a message; msg_controllen counts those that are there.
template <typename T>
void put_control(msghdr& message, Control& control, ControlKind kind, T value) {
  const size_t at = message.msg_controllen;
  MILLRACE_CHECK(at + CMSG_SPACE(sizeof value) <= control.bytes.size(), at);
  cmsghdr header{};
  header.cmsg_level = kind.level;
  header.cmsg_type = kind.type;
  header.cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(control.bytes.data() + at, &header, sizeof header);
  std::memcpy(control.bytes.data() + at + CMSG_LEN(0), &value, sizeof value);
  message.msg_control = control.bytes.data();
  message.msg_controllen = at + CMSG_SPACE(sizeof value);
}

struct In {
  In() : bytes(kMessagesIn * kMessageBytes), received(kReceivedMax) {
    for (size_t i = 0; i < kMessagesIn; ++i) {
      pieces[i] = {bytes.data() + i * kMessageBytes, kMessageBytes};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
      messages[i].msg_hdr.msg_name = &addresses[i];
    }
  }
  In(const In&) = delete;
  In& operator=(const In&) = delete;

  ByteBuffer bytes;
  std::array<sockaddr_storage, kMessagesIn> addresses{};
  std::array<Control, kMessagesIn> controls{};
  std::array<iovec, kMessagesIn> pieces{};
  std::array<mmsghdr, kMessagesIn> messages{};
  std::vector<ReceivedPacket> received;
};

/// Holds the gathered datagrams, in order; a chain for each destination. A job there is a destination of its own. A
/// receiver with several sockets on one port gets a piece whole, at the socket of its first datagram's job
/// (open_group()).
struct Out {
  explicit Out(size_t packet_bytes) : slot_bytes(packet_bytes), bytes(packet_bytes * kBuffers) {}

  struct Packet {
    size_t buffer = 0;
    size_t bytes = 0;
    size_t next = 0;  ///< to the same destination; kNone: the last
    Ecn ecn = Ecn::kEct0;
  };
  struct Destination {
    Endpoint at{};
    uint32_t job = 0;  ///< that the datagrams name
    size_t first = 0;
    size_t last = 0;
  };
  static constexpr size_t kNone = SIZE_MAX;

  size_t slot_bytes;
  ByteBuffer bytes;
  size_t next_buffer = 0;  ///< the buffers before it hold gathered datagrams
  std::vector<Packet> packets;
  std::vector<Destination> destinations;
  size_t last_destination = 0;  ///< where the last packet went: the next one mostly goes to the one behind it

  std::vector<SocketName> names;
  std::vector<iovec> pieces;
  std::vector<Control> controls;
  std::vector<mmsghdr> messages;
  std::vector<size_t> message_packets;
};

/// Holds the system's control data of a message.
struct ReceiveControls {
  size_t segment = 0;      ///< its length, of a message that is several datagrams; 0: it is one
  Ecn ecn = Ecn::kNotEct;  ///< of all of them: the system puts none together that differ
};

ReceiveControls read_controls(msghdr& message) {
  constexpr uint8_t kEcnBits = 3;
  ReceiveControls said;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    const auto is = [control](int level, int type) {
      return control->cmsg_level == level && control->cmsg_type == type;
    };
    int number = 0;
    if (is(SOL_UDP, UDP_GRO)) {
      std::memcpy(&number, CMSG_DATA(control), sizeof number);
      said.segment = number > 0 ? static_cast<size_t>(number) : 0;
    } else if (is(IPPROTO_IP, IP_TOS)) {
      said.ecn = static_cast<Ecn>(*CMSG_DATA(control) & kEcnBits);  // one byte, unlike all others
    } else if (is(IPPROTO_IPV6, IPV6_TCLASS)) {
      std::memcpy(&number, CMSG_DATA(control), sizeof number);
      said.ecn = static_cast<Ecn>(number & kEcnBits);
    }
  }
  return said;
}

/// Asks for congestion marks: the network may mark sent packets that it would otherwise drop, and received packets
/// carry their mark. A socket of both families has both protocols' options. A system without them loses packets as
/// before; that is no error.
void speak_of_congestion(int socket, int family) {
  const int on = 1;
  const auto ect = static_cast<int>(Ecn::kEct0);
  ::setsockopt(socket, IPPROTO_IP, IP_TOS, &ect, sizeof ect);
  ::setsockopt(socket, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
  if (family != AF_INET6) return;
  ::setsockopt(socket, IPPROTO_IPV6, IPV6_TCLASS, &ect, sizeof ect);
  ::setsockopt(socket, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
}

/// Returns whether the error means that the system or the path does not take several datagrams in one piece.
bool is_about_pieces(int error) {
  return error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP || error == ENOPROTOOPT;
}

bool is_full(int error) { return error == EAGAIN || error == ENOBUFS || error == EINTR; }

}  // namespace

struct UdpBursts::State {
  explicit State(size_t packet_bytes_max) : packet_bytes(packet_bytes_max), out(packet_bytes_max) {}
  ~State() {
    if (socket >= 0) ::close(socket);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Status bind_to(const Endpoint& listen, int socket_buffer_bytes, bool is_shared);
  Out::Destination& destination(const Endpoint& to, uint32_t job);
  bool gather(size_t buffer, size_t bytes, const Endpoint& to);
  void lay_out(const Out::Destination& to);
  size_t lay_out_piece(size_t first, SocketName& name, socklen_t name_bytes, ControlKind traffic_class);
  void send_messages();
  void take(const ReceivedPacket& packet);

  int socket = -1;
  int family = AF_INET;
  bool segments = true;  ///< the system takes pieces
  Ecn ecn = Ecn::kEct0;  ///< of the next sent packets
  size_t packet_bytes;
  Endpoint address;
  Counters counters;
  In in;
  Out out;
  std::array<uint8_t, kDatagramBytesMax> zeros{};  ///< the filling after a datagram that is shorter than its segment
  size_t taken = 0;
};

UdpBursts::UdpBursts(std::unique_ptr<State> state) : state_(std::move(state)) {}
UdpBursts::~UdpBursts() = default;

Status UdpBursts::State::bind_to(const Endpoint& listen, int socket_buffer_bytes, bool is_shared) {
  const auto failed = [](const char* what) {
    return fail(ErrorCode::kIo, std::string(what) + ": " + std::generic_category().message(errno));
  };
  family = listen.is_ipv4() ? AF_INET : AF_INET6;
  socket = ::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return failed("no socket");
  const int off = 0;
  const int on = 1;
  if (family == AF_INET6) ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (is_shared && ::setsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0)
    return failed("cannot share a port");
  // Less than was asked for is no failure.
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &socket_buffer_bytes, sizeof socket_buffer_bytes);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &socket_buffer_bytes, sizeof socket_buffer_bytes);
  ::setsockopt(socket, SOL_UDP, UDP_GRO, &on, sizeof on);
  speak_of_congestion(socket, family);
  SocketName name{};
  socklen_t name_bytes = fill_address(listen, family, name.storage);
  if (::bind(socket, &name.any, name_bytes) != 0) return failed("cannot bind");
  name_bytes = sizeof name;
  if (::getsockname(socket, &name.any, &name_bytes) != 0) return failed("cannot bind");
  address = read_address(name.storage);
  return {};
}

Result<std::unique_ptr<UdpBursts>> UdpBursts::open(const Endpoint& listen, size_t packet_bytes_max,
                                                   int socket_buffer_bytes) {
  MILLRACE_CHECK(packet_bytes_max >= kDatagramHeaderBytes && packet_bytes_max <= kPieceBytesMax, packet_bytes_max);
  auto state = std::make_unique<State>(packet_bytes_max);
  if (const Status bound = state->bind_to(listen, socket_buffer_bytes, /*is_shared=*/false); !bound)
    return std::unexpected(bound.error());
  return std::unique_ptr<UdpBursts>(new UdpBursts(std::move(state)));
}

namespace {

/// Makes the group choose a socket by the job. Its sockets are numbered in the order in which they were bound. A packet
/// that is too short for the number ends the program with 0.
Status choose_by_job(int socket, uint32_t count) {
  constexpr auto kAt = static_cast<uint32_t>(kJobNumberAt);
  std::vector<sock_filter> program;
  for (uint32_t byte = 4; byte > 0; --byte) {  // little-endian: from the last one on
    program.push_back(BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 8));
    program.push_back(BPF_STMT(BPF_MISC | BPF_TAX, 0));
    program.push_back(BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kAt + byte - 1));
    program.push_back(BPF_STMT(BPF_ALU | BPF_OR | BPF_X, 0));
  }
  program.push_back(BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, count));
  program.push_back(BPF_STMT(BPF_RET | BPF_A, 0));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::setsockopt(socket, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &filter, sizeof filter) == 0) return {};
  return fail(ErrorCode::kIo, "this kernel cannot choose a socket by the job (SO_ATTACH_REUSEPORT_CBPF): " +
                                  std::generic_category().message(errno));
}

}  // namespace

Result<std::vector<std::unique_ptr<UdpBursts>>> UdpBursts::open_group(const Endpoint& listen, uint32_t count,
                                                                      size_t packet_bytes_max,
                                                                      int socket_buffer_bytes) {
  MILLRACE_CHECK(count >= 1, count);
  std::vector<std::unique_ptr<UdpBursts>> group;
  // A port that is shared could be taken by another process of this user, too: one socket for itself says whether it is
  // free.
  auto alone = open(listen, packet_bytes_max, socket_buffer_bytes);
  if (!alone) return std::unexpected(alone.error());
  const Endpoint address = (*alone)->address();
  if (count == 1) {
    group.push_back(std::move(*alone));
    return group;
  }
  alone->reset();
  for (uint32_t at = 0; at < count; ++at) {
    auto state = std::make_unique<State>(packet_bytes_max);
    Status ready = state->bind_to(address, socket_buffer_bytes, /*is_shared=*/true);
    if (ready && at == 0) ready = choose_by_job(state->socket, count);
    if (!ready) return std::unexpected(ready.error());
    group.push_back(std::unique_ptr<UdpBursts>(new UdpBursts(std::move(state))));
  }
  return group;
}

const Endpoint& UdpBursts::address() const { return state_->address; }
int UdpBursts::descriptor() const { return state_->socket; }
void UdpBursts::Counters::add(const Counters& other) {
  packets_in += other.packets_in;
  bytes_in += other.bytes_in;
  packets_out += other.packets_out;
  bytes_out += other.bytes_out;
  too_long += other.too_long;
  send_full += other.send_full;
  send_refused += other.send_refused;
}

const UdpBursts::Counters& UdpBursts::counters() const { return state_->counters; }

std::span<const ReceivedPacket> UdpBursts::receive() {
  State& state = *state_;
  for (size_t i = 0; i < kMessagesIn; ++i) {
    msghdr& message = state.in.messages[i].msg_hdr;
    message.msg_namelen = sizeof(sockaddr_storage);
    message.msg_control = state.in.controls[i].bytes.data();
    message.msg_controllen = state.in.controls[i].bytes.size();
    message.msg_flags = 0;
  }
  // An error belongs to no packet here: EAGAIN, or an ICMP error for a packet sent before.
  const int count = ::recvmmsg(state.socket, state.in.messages.data(), kMessagesIn, MSG_DONTWAIT, nullptr);
  state.taken = 0;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    mmsghdr& message = state.in.messages[at];
    const Endpoint from = read_address(state.in.addresses[at]);
    ByteSpan whole = ByteSpan(state.in.bytes).subspan(at * kMessageBytes, message.msg_len);
    const ReceiveControls said = read_controls(message.msg_hdr);
    do {
      const size_t bytes = said.segment == 0 ? whole.size() : std::min(said.segment, whole.size());
      state.take({.bytes = whole.first(bytes), .from = from, .ecn = said.ecn});
      whole = whole.subspan(bytes);
    } while (!whole.empty());
  }
  return std::span(state.in.received).first(state.taken);
}

void UdpBursts::State::take(const ReceivedPacket& packet) {
  if (packet.bytes.size() > packet_bytes || taken == in.received.size()) {
    ++counters.too_long;
    return;
  }
  in.received[taken++] = packet;
  ++counters.packets_in;
  counters.bytes_in += packet.bytes.size();
}

std::span<uint8_t> UdpBursts::room() {
  Out& out = state_->out;
  if (out.next_buffer == kBuffers || out.packets.size() == kGatheredMax) flush();
  return {out.bytes.data() + out.next_buffer * out.slot_bytes, out.slot_bytes};
}

void UdpBursts::send(size_t bytes, const Endpoint& to) {
  if (state_->gather(state_->out.next_buffer, bytes, to)) ++state_->out.next_buffer;
}

void UdpBursts::set_ecn(Ecn ecn) { state_->ecn = ecn; }

size_t UdpBursts::send_to_each(ByteSpan packet, std::span<const Endpoint> to) {
  Out& out = state_->out;
  if (out.packets.size() + to.size() > kGatheredMax) flush();
  MILLRACE_CHECK(to.size() <= kGatheredMax, to.size());
  const std::span<uint8_t> shared = room();
  MILLRACE_CHECK(packet.size() <= shared.size(), packet.size(), shared.size());
  std::ranges::copy(packet, shared.begin());
  bool used = false;
  for (const Endpoint& one : to) used |= state_->gather(out.next_buffer, packet.size(), one);
  out.next_buffer += used ? 1 : 0;
  return to.size();
}

Out::Destination& UdpBursts::State::destination(const Endpoint& to, uint32_t job) {
  const size_t known = out.destinations.size();
  for (size_t i = 1; i <= known; ++i) {
    const size_t at = (out.last_destination + i) % known;
    if (out.destinations[at].at != to || out.destinations[at].job != job) continue;
    out.last_destination = at;
    return out.destinations[at];
  }
  out.last_destination = known;
  return out.destinations.emplace_back(Out::Destination{to, job, Out::kNone, Out::kNone});
}

bool UdpBursts::State::gather(size_t buffer, size_t bytes, const Endpoint& to) {
  MILLRACE_CHECK(out.packets.size() < kGatheredMax && buffer < kBuffers, out.packets.size(), buffer);
  MILLRACE_CHECK(bytes <= out.slot_bytes, bytes);
  if (family == AF_INET && !to.is_ipv4()) {
    ++counters.send_refused;
    return false;
  }
  const ByteSpan packet = ByteSpan(out.bytes).subspan(buffer * out.slot_bytes, bytes);
  Out::Destination& chain = destination(to, job_number_of(packet).value_or(0));
  const size_t at = out.packets.size();
  out.packets.push_back({.buffer = buffer, .bytes = bytes, .next = Out::kNone, .ecn = ecn});
  (chain.first == Out::kNone ? chain.first : out.packets[chain.last].next) = at;
  chain.last = at;
  ++counters.packets_out;
  counters.bytes_out += bytes;
  return true;
}

/// Lays out the datagrams from `first` on to one destination, as many as one piece takes; returns the first that is not
/// in it.
size_t UdpBursts::State::lay_out_piece(size_t first, SocketName& name, socklen_t name_bytes,
                                       ControlKind traffic_class) {
  const Ecn ecn_of_all = out.packets[first].ecn;
  size_t count = 0;
  size_t longest = 0;
  size_t shortest = SIZE_MAX;
  size_t end = first;
  for (; end != Out::kNone; end = out.packets[end].next) {
    const size_t bytes = out.packets[end].bytes;
    const size_t segment = std::max(longest, bytes);
    // The filling after datagrams is at most a quarter of their bytes.
    const bool fits = out.packets[end].ecn == ecn_of_all && segment * (count + 1) <= kPieceBytesMax &&
                      std::min(shortest, bytes) * 4 >= segment * 3;
    if (count > 0 && (!segments || count == kUdpSegmentsMax || !fits)) break;
    longest = segment;
    shortest = std::min(shortest, bytes);
    ++count;
  }
  const size_t pieces_first = out.pieces.size();
  for (size_t at = first; at != end; at = out.packets[at].next) {
    const Out::Packet& packet = out.packets[at];
    out.pieces.push_back({out.bytes.data() + packet.buffer * out.slot_bytes, packet.bytes});
    if (packet.bytes < longest && packet.next != end) out.pieces.push_back({zeros.data(), longest - packet.bytes});
  }
  mmsghdr message{};
  message.msg_hdr.msg_iovlen = out.pieces.size() - pieces_first;
  message.msg_hdr.msg_iov = out.pieces.data() + pieces_first;
  message.msg_hdr.msg_name = &name;
  message.msg_hdr.msg_namelen = name_bytes;
  const bool is_usual = ecn_of_all == Ecn::kEct0;  // the socket's own
  if (count > 1 || !is_usual) {
    Control& control = out.controls.emplace_back();
    if (count > 1) put_control(message.msg_hdr, control, {SOL_UDP, UDP_SEGMENT}, static_cast<uint16_t>(longest));
    if (!is_usual) put_control(message.msg_hdr, control, traffic_class, static_cast<int>(ecn_of_all));
  }
  out.messages.push_back(message);
  out.message_packets.push_back(count);
  return end;
}

void UdpBursts::State::lay_out(const Out::Destination& to) {
  SocketName& name = out.names.emplace_back();
  const socklen_t name_bytes = fill_address(to.at, family, name.storage);
  const ControlKind traffic_class =
      to.at.is_ipv4() ? ControlKind{IPPROTO_IP, IP_TOS} : ControlKind{IPPROTO_IPV6, IPV6_TCLASS};
  for (size_t at = to.first; at != Out::kNone;) at = lay_out_piece(at, name, name_bytes, traffic_class);
}

void UdpBursts::State::send_messages() {
  size_t sent = 0;
  int tries = 0;
  while (sent < out.messages.size()) {
    const auto left = static_cast<unsigned>(out.messages.size() - sent);
    const int count = ::sendmmsg(socket, out.messages.data() + sent, left, MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
      continue;
    }
    if (is_full(errno)) {
      if (++tries < kSendTries) continue;
      for (; sent < out.messages.size(); ++sent) counters.send_full += out.message_packets[sent];
      return;
    }
    // The first one was refused, or the error belongs to an earlier one and is reported here: the others are sent.
    // Pieces that are not taken are lost as on the wire, and there are no more of them.
    if (out.message_packets[sent] > 1 && is_about_pieces(errno)) segments = false;
    counters.send_refused += out.message_packets[sent];
    ++sent;
  }
}

void UdpBursts::flush() {
  State& state = *state_;
  Out& out = state.out;
  if (out.packets.empty()) return;
  // Messages point into these: they must not move while messages are made.
  out.names.reserve(out.destinations.size());
  out.pieces.reserve(2 * out.packets.size());
  out.controls.reserve(out.packets.size());
  for (const Out::Destination& to : out.destinations) state.lay_out(to);
  state.send_messages();
  out.names.clear();
  out.pieces.clear();
  out.controls.clear();
  out.messages.clear();
  out.message_packets.clear();
  out.packets.clear();
  out.destinations.clear();
  out.last_destination = 0;
  out.next_buffer = 0;
}

}  // namespace millrace::protocol
