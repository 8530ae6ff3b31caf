#include "worker/peer/transport/mpi_yields.h"

#include <mpi.h>

#include <algorithm>
#include <array>

namespace millrace::peer {
namespace {

/// Of a setting of one value, of any type: whether it is anything but zero.
bool is_set(int setting) {
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  int count = 0;
  if (MPI_T_cvar_handle_alloc(setting, nullptr, &handle, &count) != MPI_SUCCESS) return false;
  alignas(16) std::array<unsigned char, 16> value{};
  const bool is_read = count == 1 && MPI_T_cvar_read(handle, value.data()) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return is_read && std::ranges::any_of(value, [](unsigned char byte) { return byte != 0; });
}

}  // namespace

bool mpi_yields() {
  int level = MPI_THREAD_SINGLE, setting = 0;
  if (MPI_T_init_thread(MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return false;
  const bool yields = MPI_T_cvar_get_index("mpi_yield_when_idle", &setting) == MPI_SUCCESS && is_set(setting);
  MPI_T_finalize();
  return yields;
}

}  // namespace millrace::peer
