// Faults: what tests may plant at the steps of the protocol. Off unless MOEBUS_FAULT asks for it.
// Room: engine · host.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sync/steps.hpp"

namespace moebus::engine {

/// What a test learns of the steps that were taken and of the fault that it planted. Zeroed memory; may be shared with
/// forked ranks.
struct FaultReport {
  static constexpr std::size_t kMaxCalls = 16;

  std::atomic<std::uint32_t> num_fired{};
  /// Steps that call c (from 0) took on each rank.
  std::array<std::array<std::atomic<std::uint32_t>, kMaxRanks>, kMaxCalls> num_steps{};
};

/// Where ranks of this process report to, from the next group on; null = nowhere. With a report every group counts its
/// steps, faults or not.
void report_faults_to(FaultReport* report) noexcept;

/// One fault: at step `step` (from 0) of call `call` (from 0, in the order in which the rank makes calls) on rank `rank`.
struct PlannedFault {
  enum class Action : std::uint8_t {
    none,
    kill,   ///< SIGKILL to the process
    stop,   ///< SIGSTOP to the process
    delay,  ///< sleep `milliseconds`
    drop,   ///< the signal of this step, or else the next one that the rank makes, is not made
    cut     ///< from here on nothing passes between this rank and `peer`
  };

  Action action = Action::none;
  int rank = 0;
  std::uint32_t call = 0;
  std::uint32_t step = 0;
  int peer = 0;
  std::uint32_t milliseconds = 20;
};

/// Read once per group from MOEBUS_FAULT:
/// `delay:SEED`          random pauses up to 300 us at every step;
/// `ACTION:rank=R,call=C,step=S[,ms=T][,peer=P]`  one fault, ACTION kill, stop, delay, drop or cut (peer is needed);
/// `stale-epoch`         planted bug: a wait is satisfied by the call before;
/// `skipped-fence`       planted bug: rows are announced before they are written.
/// Planted bugs are what `moebus check` must catch.
class Faults final : public sync::StepObserver {
 public:
  /// Parses `spec` (empty: steps are only counted); Error{invalid_argument} lists what is allowed.
  Faults(const std::string& spec, int rank);

  /// What MOEBUS_FAULT asks for on this rank, or null.
  static std::unique_ptr<Faults> from_environment(int rank);

  [[nodiscard]] bool is_epoch_stale() const noexcept { return is_epoch_stale_; }

  [[nodiscard]] bool is_fence_skipped() const noexcept { return is_fence_skipped_; }

  [[nodiscard]] const PlannedFault& planned() const noexcept { return planned_; }

  void at(std::uint32_t epoch, const sync::Step& step) noexcept override;
  [[nodiscard]] bool is_signal_lost(int peer) noexcept override;
  [[nodiscard]] bool is_cut_off(int peer) const noexcept override { return peer == cut_peer_; }

 private:
  void pause_randomly() noexcept;
  void pause_for_planted_bug(const sync::Step& step) const noexcept;
  void fire() noexcept;

  int rank_ = 0;
  bool is_epoch_stale_ = false;
  bool is_fence_skipped_ = false;
  bool has_delays_ = false;
  std::uint64_t state_ = 0;
  PlannedFault planned_;
  std::uint32_t num_calls_ = 0;
  std::uint32_t num_steps_ = 0;
  bool loses_next_ = false;
  int cut_peer_ = -1;
  FaultReport* report_ = nullptr;
};

}  // namespace moebus::engine
