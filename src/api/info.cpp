#include "moebus/info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "api/cuda_library.hpp"
#include "backend/cpu/backend_cpu.hpp"
#include "moebus/error.hpp"
#include "moebus/version.hpp"

namespace moebus {

namespace {

std::string compiler_text() {
#if defined(__clang__)
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

std::vector<Capability> simd_capabilities() {
  std::vector<Capability> levels;
  for (const auto level : {backend::SimdLevel::scalar, backend::SimdLevel::avx2, backend::SimdLevel::avx512}) {
    const bool is_here = backend::has_simd_level(level);
    const char* remark = level == backend::SimdLevel::scalar ? "portable; the reference for all others"
                         : is_here                           ? "used for casts and sums"
                                                             : "this CPU or its system lacks the instructions";
    levels.push_back({std::string(backend::to_string(level)), is_here, remark});
  }
  return levels;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

void add_cuda(Capabilities& result) {
  const api::CudaDevices found = api::cuda_devices();
  for (const backend::DeviceFacts& facts : found.devices) {
    result.devices.push_back({facts.ordinal,
                              facts.name,
                              facts.uuid,
                              fmt::format("{}.{}", facts.compute_capability / 10, facts.compute_capability % 10),
                              facts.memory_bytes,
                              facts.num_multiprocessors,
                              version_text(facts.driver_version)});
  }
  const bool is_here = !found.devices.empty();
  result.backends.push_back({"cuda",
                             is_here,
                             is_here ? fmt::format("{} device(s); built with CUDA {}, driver for {}",
                                                   found.devices.size(),
                                                   version_text(found.toolkit_version),
                                                   version_text(found.devices.front().driver_version))
                                     : found.reason});
}

/// The level that exchanges copy with; a wrong MOEBUS_SIMD is for Group::join to complain about.
backend::SimdLevel copy_level() noexcept {
  try {
    return backend::best_simd_level();
  } catch (const Error&) {
    return backend::SimdLevel::scalar;
  }
}

}  // namespace

Capabilities capabilities() {
  Capabilities result;
  result.version = version();
  result.compiler = compiler_text();
  result.backends = {{"cpu", true, "host memory; the reference"}};
  add_cuda(result);
  result.transports = {{"loopback", true, "ranks are threads of one process"},
                       {"shm", true, "ranks are processes of one machine and one user"},
                       {"ucx", false, "not part of this version; all ranks must be on one machine"}};
  result.simd_levels = simd_capabilities();
  result.simd_level = backend::to_string(backend::best_simd_level());
  return result;
}

void copy_rows(std::byte* dst,
               std::size_t dst_stride,
               const std::byte* src,
               std::size_t src_stride,
               std::size_t row_bytes,
               std::size_t rows) noexcept {
  static const std::unique_ptr<backend::Backend> kBackend = backend::make_cpu_backend(copy_level());
  constexpr std::size_t kBlock = 1024;
  std::vector<model::RowMove> moves(std::min(rows, kBlock));
  for (std::size_t i = 0; i < moves.size(); ++i)
    moves[i] = {static_cast<std::int32_t>(i), static_cast<std::int32_t>(i)};
  for (std::size_t first = 0; first < rows; first += kBlock) {
    kBackend->copy_slots(src + first * src_stride,
                         static_cast<std::int64_t>(src_stride),
                         dst + first * dst_stride,
                         static_cast<std::int64_t>(dst_stride),
                         row_bytes,
                         {moves.data(), std::min(kBlock, rows - first)},
                         kBackend->stores_for(rows * row_bytes));
  }
}

}  // namespace moebus
