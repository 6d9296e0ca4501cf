// PTX: the bare instructions that kernels need, each with its memory order in its name.
// Room: backend/cuda · device.
// Source: [ptx-isa] memory consistency model; [ours] design 4.9: spin relaxed, acquire once; a 128-bit access is not
// torn.

#pragma once

#include <cstdint>

#include "sync/device_block.hpp"

namespace moebus::backend::cuda {

using sync::WideWord;

/// Stores 16 bytes that a peer may be polling. Not torn; orders nothing.
__device__ __forceinline__ void store_wide_relaxed(WideWord* at, const WideWord& value) {
  const std::uint64_t low = std::uint64_t{value.y} << 32 | value.x;
  const std::uint64_t high = std::uint64_t{value.w} << 32 | value.z;
#if __CUDA_ARCH__ >= 900
  asm volatile("{.reg .b128 q; mov.b128 q,{%1,%2}; st.relaxed.sys.global.b128 [%0],q;}" ::"l"(at), "l"(low), "l"(high)
               : "memory");
#else
  // Before sm_90 PTX promises nothing for 16 bytes; the hardware writes an aligned vector of one thread in one piece.
  asm volatile("st.volatile.global.v2.u64 [%0],{%1,%2};" ::"l"(at), "l"(low), "l"(high) : "memory");
#endif
}

__device__ __forceinline__ WideWord load_wide_relaxed(const WideWord* at) {
  std::uint64_t low;
  std::uint64_t high;
#if __CUDA_ARCH__ >= 900
  asm volatile("{.reg .b128 q; ld.relaxed.sys.global.b128 q,[%2]; mov.b128 {%0,%1},q;}"
               : "=l"(low), "=l"(high)
               : "l"(at)
               : "memory");
#else
  asm volatile("ld.volatile.global.v2.u64 {%0,%1},[%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
#endif
  return {static_cast<std::uint32_t>(low),
          static_cast<std::uint32_t>(low >> 32),
          static_cast<std::uint32_t>(high),
          static_cast<std::uint32_t>(high >> 32)};
}

/// Everything that this thread wrote or has seen comes before what it stores next, for every rank and the host.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ void store_release_system(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0],%1;" ::"l"(at), "l"(value) : "memory");
}

__device__ __forceinline__ std::uint64_t load_relaxed_system(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0,[%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0,[%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

__device__ __forceinline__ std::uint64_t load_relaxed(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

/// Adds 1; orders what came before on this thread and what other blocks did before theirs. Returns the old value.
__device__ __forceinline__ std::uint32_t count_acquire_release(std::uint32_t* at) {
  std::uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0,[%1],1;" : "=r"(old) : "l"(at) : "memory");
  return old;
}

__device__ __forceinline__ std::uint64_t nanoseconds() {
  std::uint64_t time;
  asm volatile("mov.u64 %0,%globaltimer;" : "=l"(time));
  return time;
}

/// Reads 16 bytes once, past caches that others need more.
__device__ __forceinline__ WideWord load_streaming(const WideWord* at) {
  WideWord value;
  asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(at));
  return value;
}

}  // namespace moebus::backend::cuda
