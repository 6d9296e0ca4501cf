// Info: what this build and this machine can do, and the row copy that floors are measured with.
// Room: public verbs · host.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace moebus {

/// One thing that may be here or not, and why.
struct Capability {
  std::string name;  ///< e.g. "shm", "avx512"
  bool is_available = false;
  std::string remark;  ///< available: what it is good for; else: why not, and what would mend it
};

/// A device that exchanges can use.
struct DeviceCapability {
  int ordinal = 0;                 ///< number of the device in this process
  std::string name;                ///< e.g. "NVIDIA H200"
  std::string uuid;                ///< "GPU-..."; the same in every process of the machine
  std::string compute_capability;  ///< e.g. "9.0"
  std::size_t memory_bytes = 0;
  int num_multiprocessors = 0;
  std::string driver;  ///< CUDA version that its driver supports, e.g. "13.0"
};

/// What the linked library can do on this machine.
struct Capabilities {
  std::string version;                    ///< of the library, e.g. "0.1.0"
  std::string compiler;                   ///< that built it, e.g. "g++ 12.2.0"
  std::vector<Capability> backends;       ///< "cpu" first
  std::vector<Capability> transports;     ///< "loopback", "shm"
  std::vector<Capability> simd_levels;    ///< of the CPU backend, best last
  std::string simd_level;                 ///< the one in use
  std::vector<DeviceCapability> devices;  ///< of the backend "cuda"; empty if that is not available
};

/// Looks at the machine and the build and tells what works. Nothing is allocated for exchanges and no peer is
/// contacted. The first call loads the CUDA backend and the driver, if they are there; no device gets a context.
///
/// Errors:  Error{unsupported} if MOEBUS_SIMD asks for a level that this CPU lacks.
Capabilities capabilities();

/// Copies `rows` rows of `row_bytes` with the code that exchanges copy rows with, cached or streaming by the size of
/// the batch.
///
/// Units:   strides in bytes.
/// Order:   what was written is visible to whoever acquires a flag that the caller releases afterwards.
void copy_rows(std::byte* dst,
               std::size_t dst_stride,
               const std::byte* src,
               std::size_t src_stride,
               std::size_t row_bytes,
               std::size_t rows) noexcept;

}  // namespace moebus
