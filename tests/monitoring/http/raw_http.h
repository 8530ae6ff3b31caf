#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <string>

/// Requests byte by byte, also those that no client of ours sends.
namespace millrace::monitoring {

/// Connects to a port of 127.0.0.1. -1: it does not accept.
inline int connect_to(uint16_t port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return socket;
  ::close(socket);
  return -1;
}

/// Sends the bytes as they are and reads until the port closes the connection.
inline std::string answer_to(uint16_t port, const std::string& request) {
  const int socket = connect_to(port);
  if (socket < 0) return "no connection";
  size_t sent = 0;
  while (sent < request.size()) {
    const ssize_t now = ::send(socket, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) break;
    sent += static_cast<size_t>(now);
  }
  std::string answer;
  char bytes[4096];
  for (ssize_t now; (now = ::recv(socket, bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(now));
  ::close(socket);
  return answer;
}

}  // namespace millrace::monitoring
