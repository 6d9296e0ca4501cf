// Atomics: loads and stores that other ranks see, strength in the name. Nothing else in the library touches shared
// words. Room: sync · host+device (the device branch arrives with the CUDA backend, inside these bodies).

#pragma once

#include <atomic>
#include <cstdint>

namespace moebus::sync {

/// A word in memory that several processes map. std::atomic_ref keeps it an ordinary integer in the layout structs.
using Word = std::uint64_t;

[[nodiscard]] inline Word load_acquire(const Word& word) noexcept {
  // atomic_ref<const T> arrives only with C++26; the referenced word is never a const object.
  return std::atomic_ref<Word>(const_cast<Word&>(word)).load(std::memory_order_acquire);
}

inline void store_release(Word& word, Word value) noexcept {
  std::atomic_ref<Word>(word).store(value, std::memory_order_release);
}

}  // namespace moebus::sync
