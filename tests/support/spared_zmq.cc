#include <zmq.h>

#include "tests/support/replaced_new.h"

/// ZeroMQ crashes where it has no memory to open a socket or a connection. Allocations of Millrace around these calls
/// are to fail without that. The linker leads the calls here (--wrap), see millrace_spare_zmq() in
/// tests/CMakeLists.txt.

using millrace::testing::SparedAllocations;

extern "C" {

// The linker's names for the functions themselves, and for their replacements.
// NOLINTBEGIN(bugprone-reserved-identifier)
void* __real_zmq_socket(void* context, int type);
int __real_zmq_connect(void* socket, const char* address);
int __real_zmq_socket_monitor(void* socket, const char* address, int events);
int __real_zmq_close(void* socket);

void* __wrap_zmq_socket(void* context, int type) {
  const SparedAllocations spared;
  return __real_zmq_socket(context, type);
}

int __wrap_zmq_connect(void* socket, const char* address) {
  const SparedAllocations spared;
  return __real_zmq_connect(socket, address);
}

int __wrap_zmq_socket_monitor(void* socket, const char* address, int events) {
  const SparedAllocations spared;
  return __real_zmq_socket_monitor(socket, address, events);
}

int __wrap_zmq_close(void* socket) {
  const SparedAllocations spared;
  return __real_zmq_close(socket);
}
// NOLINTEND(bugprone-reserved-identifier)

}  // extern "C"
