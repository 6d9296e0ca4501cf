#include "transport/shm/memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/system_call.hpp"

namespace moebus::transport {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

off_t as_offset(std::size_t bytes) noexcept { return static_cast<off_t>(bytes); }

/// Returns nothing mapped if the machine gives no huge pages for it.
SharedMemory try_huge(std::size_t mapped_bytes) {
  SharedMemory memory;
  base::UniqueFd file(::memfd_create("moebus", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!file.is_open() || ::ftruncate(file.get(), as_offset(mapped_bytes)) != 0) return memory;
  // Mapping reserves the pages, so that what succeeds here cannot fail at the first touch.
  void* address = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (address == MAP_FAILED) return memory;
  Mapping mapping(address, mapped_bytes);
  if (::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return memory;
  memory.descriptor = std::move(file);
  memory.mapping = std::move(mapping);
  return memory;
}

[[noreturn]] void throw_no_memory(const char* call, int error, std::size_t bytes) {
  throw_system_error(
      call, error, fmt::format("{} bytes of shared memory were asked for; `free -h` shows what there is", bytes));
}

Mapping map_shared(int descriptor, std::size_t mapped_bytes) {
  void* address = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (address == MAP_FAILED) throw_no_memory("mmap", errno, mapped_bytes);
  return {address, mapped_bytes};
}

}  // namespace

SharedMemory make_shared_memory(std::size_t size_bytes) {
  if (size_bytes > kMaxMappingBytes) throw_no_memory("ftruncate", ENOMEM, size_bytes);
  const std::size_t wanted_bytes = std::max<std::size_t>(size_bytes, 1);
  if (size_bytes >= kHugePageBytes) {
    SharedMemory huge = try_huge(base::align_up(wanted_bytes, kHugePageBytes));
    if (huge.mapping.data() != nullptr) return huge;
  }
  const std::size_t mapped_bytes = base::align_up(wanted_bytes, page_bytes());
  SharedMemory memory;
  memory.descriptor = base::UniqueFd(MOEBUS_SYSTEM_CALL(::memfd_create("moebus", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  const int file = memory.descriptor.get();
  MOEBUS_SYSTEM_CALL(::ftruncate(file, as_offset(mapped_bytes)));
  // Populating by mmap alone would be silent about memory that is not there; the first touch would then kill the
  // process.
  int status = 0;
  do {
    status = ::fallocate(file, 0, 0, as_offset(mapped_bytes));
  } while (status != 0 && errno == EINTR);
  if (status != 0) throw_no_memory("fallocate", errno, mapped_bytes);
  MOEBUS_SYSTEM_CALL(::fcntl(file, F_ADD_SEALS, kSeals));
  memory.mapping = map_shared(file, mapped_bytes);
  return memory;
}

Mapping map_peer_memory(int descriptor, std::size_t mapped_bytes, std::size_t size_bytes) {
  struct stat status{};
  MOEBUS_SYSTEM_CALL(::fstat(descriptor, &status));
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  const bool is_sealed = seals != -1 && (seals & F_SEAL_SHRINK) != 0;
  if (!is_sealed || status.st_size != as_offset(mapped_bytes) || mapped_bytes < size_bytes || mapped_bytes == 0) {
    throw Error(
        ErrorCode::transport_failure,
        fmt::format(
            "a peer's memory is not what was agreed: {} bytes, sealed: {}; expected {} bytes (at least {}), sealed",
            status.st_size,
            is_sealed ? "yes" : "no",
            mapped_bytes,
            size_bytes));
  }
  return map_shared(descriptor, mapped_bytes);
}

}  // namespace moebus::transport
