#include "switch_agg/packet_io/dpdk/dpdk_device_text.h"

#include <charconv>

#include "switch_agg/packet_io/dpdk/ethernet_frames.h"

namespace millrace::switch_agg {
namespace {

constexpr std::string_view kAfPacket = "net_af_packet";
constexpr size_t kAfPacketFrameBytes = 2048;  ///< the driver's own choice
/// The kernel's words about a frame, in front of it in its slot; what net_af_packet leaves free for them is less.
constexpr size_t kSlotHeaderBytes = 128;
/// Four slots of 9216 are nine pages: the driver needs blocks of whole slots, and the kernel blocks of whole pages.
constexpr std::string_view kLongSlots = ",framesz=9216,blocksz=36864";
constexpr size_t kLongSlotBytes = 9216;
static_assert(kSlotHeaderBytes + kUdpHeadersBytes + 8972 <= kLongSlotBytes);

}  // namespace

bool is_pci_address(std::string_view device) {
  return device.substr(0, device.find(',')).find(':') != std::string_view::npos;
}

std::string numbered_device(std::string_view device) {
  const size_t comma = device.find(',');
  std::string name(device.substr(0, comma));
  if (!name.empty() && (name.back() < '0' || name.back() > '9')) name += '0';
  if (comma != std::string_view::npos) name += device.substr(comma);
  return name;
}

bool has_driver(std::string_view device, std::string_view driver) {
  std::string_view name = device.substr(0, device.find(','));
  if (!name.starts_with(driver)) return false;
  name.remove_prefix(driver.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<std::string_view> device_argument(std::string_view device, std::string_view key) {
  for (size_t comma = device.find(','); comma != std::string_view::npos;) {
    device.remove_prefix(comma + 1);
    comma = device.find(',');
    const std::string_view argument = device.substr(0, comma);
    const size_t equals = argument.find('=');
    if (equals != std::string_view::npos && argument.substr(0, equals) == key) return argument.substr(equals + 1);
  }
  return std::nullopt;
}

std::optional<size_t> argument_number(std::string_view device, std::string_view key) {
  const std::optional<std::string_view> text = device_argument(device, key);
  size_t number = 0;
  if (!text || text->empty()) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return number;
}

std::string with_room_for(std::string_view device, size_t packet_bytes_max) {
  std::string text(device);
  if (!has_driver(device, kAfPacket) || device_argument(device, "framesz") || device_argument(device, "blocksz") ||
      kSlotHeaderBytes + kUdpHeadersBytes + packet_bytes_max <= kAfPacketFrameBytes)
    return text;
  return text.append(kLongSlots);
}

size_t copied_bytes_max(std::string_view device) {
  return has_driver(device, kAfPacket) ? argument_number(device, "framesz").value_or(kAfPacketFrameBytes) : 0;
}

}  // namespace millrace::switch_agg
