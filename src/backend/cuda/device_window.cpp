#include "backend/cuda/device_window.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include "backend/cuda/cuda_check.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"

namespace moebus::backend::cuda {
namespace {

/// A reference to memory of a device; mappings and descriptors of it live on without it.
class Allocation {
 public:
  explicit Allocation(CUmemGenericAllocationHandle handle) noexcept : handle_(handle) {}

  ~Allocation() { log_failure(driver().cuMemRelease(handle_), "cuMemRelease"); }

  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  [[nodiscard]] CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_;
};

CUmemAllocationProp properties_of(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

std::size_t granularity_of(const CUmemAllocationProp& properties) {
  std::size_t granularity = 0;
  MOEBUS_DRIVER_CALL(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  return granularity;
}

void check_size(int rank, int num_ranks, std::size_t size_bytes) {
  if (num_ranks < 1 || num_ranks > kMaxRanks || rank < 0 || rank >= num_ranks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} of {} can have no window; a group has 1 to {} ranks", rank, num_ranks, kMaxRanks));
  }
  // Rounding up and all ranks' strides must still be a size.
  constexpr std::size_t kMaxBytes = std::numeric_limits<std::size_t>::max() / (4 * kMaxRanks);
  if (size_bytes == 0 || size_bytes > kMaxBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a window of {} bytes; allowed are 1 to {}", size_bytes, kMaxBytes),
                rank);
  }
}

}  // namespace

CudaWindow::CudaWindow(ContextRef context, cudaStream_t fill_stream, int rank, int num_ranks, std::size_t size_bytes)
    : context_(std::move(context)), rank_(rank) {
  check_size(rank, num_ranks, size_bytes);
  is_mapped_.resize(base::idx(num_ranks));
  const Current current(*context_);
  const std::size_t granularity = granularity_of(properties_of(context_->ordinal()));
  stride_ = base::ceil_div(size_bytes, granularity) * granularity;
  MOEBUS_DRIVER_CALL(cuMemAddressReserve(&base_, stride_ * base::idx(num_ranks), granularity, 0, 0));
  try {
    allocate_own(fill_stream);
  } catch (...) {
    release();
    throw;
  }
}

CudaWindow::~CudaWindow() {
  try {
    const Current current(*context_);
    release();
  } catch (const Error&) {
    release();  // what can be given back without the context is
  }
}

std::byte* CudaWindow::base() const noexcept {
  return reinterpret_cast<std::byte*>(base_);  // NOLINT(performance-no-int-to-ptr): the driver's addresses are numbers
}

CUdeviceptr CudaWindow::address_of(int rank) const noexcept { return base_ + base::idx(rank) * stride_; }

void CudaWindow::allocate_own(cudaStream_t fill_stream) {
  const CUmemAllocationProp properties = properties_of(context_->ordinal());
  CUmemGenericAllocationHandle handle = 0;
  MOEBUS_DRIVER_CALL(cuMemCreate(&handle, stride_, &properties, 0));
  const Allocation memory(handle);
  int descriptor = -1;
  MOEBUS_DRIVER_CALL(
      cuMemExportToShareableHandle(&descriptor, memory.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  descriptor_ = base::UniqueFd(descriptor);
  // A program that this process starts must not hold the window.
  if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    throw Error(
        ErrorCode::device_failure, fmt::format("fcntl(FD_CLOEXEC): {}", std::generic_category().message(errno)), rank_);
  }
  map(rank_, memory.get());
  MOEBUS_CUDA_CALL(cudaMemsetAsync(base() + base::idx(rank_) * stride_, 0xFF, stride_, fill_stream));
  MOEBUS_CUDA_CALL(cudaStreamSynchronize(fill_stream));
}

void CudaWindow::map(int rank, CUmemGenericAllocationHandle memory) {
  MOEBUS_DRIVER_CALL(cuMemMap(address_of(rank), stride_, 0, memory, 0));
  is_mapped_[base::idx(rank)] = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = context_->ordinal();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MOEBUS_DRIVER_CALL(cuMemSetAccess(address_of(rank), stride_, &access, 1));
}

void CudaWindow::check_peer(int peer, const base::UniqueFd& descriptor) const {
  const int num_ranks = static_cast<int>(is_mapped_.size());
  if (peer < 0 || peer >= num_ranks || peer == rank_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("peer is {}; peers of rank {} are the others of 0 to {}", peer, rank_, num_ranks - 1),
                rank_);
  }
  if (is_mapped_[base::idx(peer)]) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the window of peer {} is mapped already", peer), rank_);
  }
  if (!descriptor.is_open()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("no descriptor for the window of peer {}", peer), rank_);
  }
}

void CudaWindow::check_location(int peer, CUmemGenericAllocationHandle memory) const {
  CUmemAllocationProp properties{};
  MOEBUS_DRIVER_CALL(cuMemGetAllocationPropertiesFromHandle(&properties, memory));
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    throw Error(ErrorCode::transport_failure, fmt::format("what peer {} gave is not memory of a device", peer), rank_);
  }
  if (properties.location.id == context_->ordinal()) return;
  CUdevice own = 0;
  CUdevice other = 0;
  int can_access = 0;
  MOEBUS_DRIVER_CALL(cuDeviceGet(&own, context_->ordinal()));
  MOEBUS_DRIVER_CALL(cuDeviceGet(&other, properties.location.id));
  MOEBUS_DRIVER_CALL(cuDeviceCanAccessPeer(&can_access, own, other));
  if (can_access != 0) return;
  throw Error(ErrorCode::transport_failure,
              fmt::format("device {} cannot reach the memory of device {}, where the window of peer {} is",
                          context_->ordinal(),
                          properties.location.id,
                          peer),
              rank_);
}

void CudaWindow::map_peer(int peer, base::UniqueFd descriptor) {
  check_peer(peer, descriptor);
  const Current current(*context_);
  CUmemGenericAllocationHandle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes the number in a pointer's place
  void* const shared = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor.get()));
  const CUresult result =
      driver().cuMemImportFromShareableHandle(&handle, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::transport_failure,
                fmt::format("the descriptor that peer {} gave is no window: cuMemImportFromShareableHandle: {}",
                            peer,
                            error_text(result)),
                rank_);
  }
  const Allocation memory(handle);
  check_location(peer, memory.get());
  try {
    map(peer, memory.get());
  } catch (const Error& error) {
    if (is_mapped_[base::idx(peer)]) {
      log_failure(driver().cuMemUnmap(address_of(peer), stride_), "cuMemUnmap");
      is_mapped_[base::idx(peer)] = false;
    }
    throw Error(ErrorCode::transport_failure,
                fmt::format("cannot map the window of peer {} as {} bytes: {}", peer, stride_, error.what()),
                rank_);
  }
}

void CudaWindow::release() noexcept {
  for (std::size_t rank = 0; rank < is_mapped_.size(); ++rank) {
    if (is_mapped_[rank]) log_failure(driver().cuMemUnmap(base_ + rank * stride_, stride_), "cuMemUnmap");
  }
  log_failure(driver().cuMemAddressFree(base_, stride_ * is_mapped_.size()), "cuMemAddressFree");
}

}  // namespace moebus::backend::cuda
