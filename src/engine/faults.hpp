// Faults: what tests may plant at the steps of the protocol. Off unless MOEBUS_FAULT asks for it.
// Room: engine · host.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moebus/types.hpp"
#include "sync/steps.hpp"

namespace moebus::engine {

/// A step by its name: the `nth` (from 0) of its kind, field and peer in the call. Unlike its number it does not depend
/// on which waits had to stand still.
struct StepName {
  sync::StepKind kind = sync::StepKind::call_begins;
  sync::Field field = sync::Field::arrived;  ///< not with call_begins
  int peer = 0;                              ///< not with call_begins
  std::uint32_t nth = 0;

  friend bool operator==(const StepName&, const StepName&) = default;
};

/// Returns "KIND", or "KIND:FIELD:PEER:NTH" for all kinds but call_begins, e.g. "signal_made:finished:2:0".
[[nodiscard]] std::string to_text(const StepName& name);
[[nodiscard]] std::optional<StepName> parse_step_name(std::string_view text) noexcept;

/// A step that a rank took in its call `call` (from 0, in the order in which it makes calls).
struct SeenStep {
  std::uint32_t call = 0;
  StepName name;

  friend bool operator==(const SeenStep&, const SeenStep&) = default;
};

/// What a test learns of the steps that were taken and of the faults that it planted. Zeroed memory; may be shared with
/// forked ranks.
struct FaultReport {
  static constexpr std::size_t kMaxFaults = 4;
  static constexpr std::size_t kMaxSeen = 1024;  ///< steps of a rank that are kept; all are counted

  std::array<std::atomic<std::uint32_t>, kMaxFaults> num_fired{};  ///< in the order of MOEBUS_FAULT
  std::array<std::atomic<std::uint32_t>, kMaxRanks> num_steps{};

  /// Returns the steps of `rank`, in order.
  [[nodiscard]] std::vector<SeenStep> steps_of(int rank) const;

  void add(int rank, const SeenStep& step) noexcept;

 private:
  std::array<std::array<std::atomic<std::uint64_t>, kMaxSeen>, kMaxRanks> seen_{};
};

/// Where ranks of this process report to, from the next group on; null = nowhere. With a report every group notes its
/// steps, faults or not.
void report_faults_to(FaultReport* report) noexcept;

/// One fault: in call `call` of rank `rank`, at the step with this name or, without a name, with this number (from 0).
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
  std::optional<StepName> at;
  int peer = 0;
  std::uint32_t milliseconds = 20;
};

/// Read once per group from MOEBUS_FAULT: one or several of these, with `;` between them:
/// `delay:SEED`          random pauses up to 300 us at every step;
/// `ACTION:rank=R,call=C,PLACE[,ms=T][,peer=P]`  one fault, ACTION kill, stop, delay, drop or cut (peer is needed),
/// PLACE
///                       step=S or at=NAME (to_text(StepName)); at most FaultReport::kMaxFaults of them;
/// `stale-epoch`         planted bug: a wait is satisfied by the call before;
/// `skipped-fence`       planted bug: rows are announced before they are written.
/// Planted bugs are what `moebus check` must catch.
class Faults final : public sync::StepObserver {
 public:
  /// Parses `spec` (empty: steps are only noted); Error{invalid_argument} lists what is allowed.
  Faults(const std::string& spec, int rank);

  /// What MOEBUS_FAULT asks for on this rank, or null.
  static std::unique_ptr<Faults> from_environment(int rank);

  [[nodiscard]] bool is_epoch_stale() const noexcept { return is_epoch_stale_; }

  [[nodiscard]] bool is_fence_skipped() const noexcept { return is_fence_skipped_; }

  [[nodiscard]] const std::vector<PlannedFault>& planned() const noexcept { return planned_; }

  void at(std::uint32_t epoch, const sync::Step& step) noexcept override;
  [[nodiscard]] bool is_signal_lost(int peer) noexcept override;

  [[nodiscard]] bool is_cut_off(int peer) const noexcept override { return (cut_peers_ >> peer & 1) != 0; }

 private:
  static_assert(kMaxRanks <= 64, "cut_peers_ has a bit a rank");

  [[nodiscard]] bool parse_clause(std::string_view clause);
  [[nodiscard]] StepName name_of(const sync::Step& step) noexcept;
  void pause_randomly() noexcept;
  void pause_for_planted_bug(const sync::Step& step) const noexcept;
  void fire(std::size_t idx) noexcept;

  int rank_ = 0;
  bool is_epoch_stale_ = false;
  bool is_fence_skipped_ = false;
  bool has_delays_ = false;
  std::uint64_t state_ = 0;
  std::vector<PlannedFault> planned_;
  std::uint32_t num_calls_ = 0;
  std::uint32_t num_steps_ = 0;
  // How often each kind of step was taken in this call.
  std::array<std::array<std::array<std::uint32_t, kMaxRanks>, sync::kNumFields>, sync::kNumStepKinds> num_taken_{};
  bool loses_next_ = false;
  std::uint64_t cut_peers_ = 0;
  FaultReport* report_ = nullptr;
};

}  // namespace moebus::engine
