#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// What --pmd names, as text: a PCI address, or a driver with its arguments, as "net_af_packet,iface=eth1,qpairs=2".
/// Pure.
namespace millrace::switch_agg {

/// Says whether it is a PCI address: a driver's name has no colon, a PCI address always.
bool is_pci_address(std::string_view device);

/// Adds a number, as DPDK numbers its virtual devices: "net_af_packet,iface=eth1" -> "net_af_packet0,iface=eth1".
std::string numbered_device(std::string_view device);

/// Says whether it is that driver, with or without a number.
bool has_driver(std::string_view device, std::string_view driver);

/// Returns the value of an argument; empty where there is none. With digits alone: argument_number().
std::optional<std::string_view> device_argument(std::string_view device, std::string_view key);
std::optional<size_t> argument_number(std::string_view device, std::string_view key);

/// Returns the device text of net_af_packet with frames for packets of this length: its own frames hold an MTU of 1500.
/// Returns the text unchanged for every other driver, for shorter packets, and where it has a framesz or blocksz.
std::string with_room_for(std::string_view device, size_t packet_bytes_max);

/// Returns the most bytes of a frame that net_af_packet copies into a buffer without a check of the buffer's size. 0
/// for any other driver.
size_t copied_bytes_max(std::string_view device);

}  // namespace millrace::switch_agg
