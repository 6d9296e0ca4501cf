// Faults: what tests may plant at the steps of the protocol. Off unless MOEBUS_FAULT asks for it.
// Room: engine · host.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moebus::engine {

/// The steps of a call at which a fault can happen, in protocol order.
enum class Step : std::uint8_t { begin, tables_written, arrived, rows_written, finished, received };

/// Read once per group from MOEBUS_FAULT: "delay:SEED" (random pauses up to 300 us at every step), or a planted bug
/// that `moebus check` must catch: "stale-epoch" (a wait is satisfied by the call before), "skipped-fence" (rows are
/// announced before they are written).
class Faults {
 public:
  Faults() noexcept = default;

  /// Parses `spec`; Error{invalid_argument} lists what is allowed.
  Faults(const std::string& spec, int rank);

  [[nodiscard]] bool is_any() const noexcept { return is_any_; }

  [[nodiscard]] bool is_epoch_stale() const noexcept { return is_epoch_stale_; }

  [[nodiscard]] bool is_fence_skipped() const noexcept { return is_fence_skipped_; }

  /// Does what is planted at this step (pauses).
  void at(Step step) noexcept;

 private:
  bool is_any_ = false;
  int rank_ = 0;
  bool is_epoch_stale_ = false;
  bool is_fence_skipped_ = false;
  bool has_delays_ = false;
  std::uint64_t state_ = 0;
};

}  // namespace moebus::engine
