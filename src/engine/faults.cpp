#include "engine/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "base/env.hpp"
#include "moebus/error.hpp"

namespace moebus::engine {

namespace {

constexpr std::string_view kDelay = "delay:";
constexpr std::uint64_t kMaxDelayMicros = 300;
constexpr std::chrono::milliseconds kMutantDelay{2};
constexpr int kMaxMutantDelays = 4;

FaultReport* current_report = nullptr;

template <class Number>
bool parse_number(std::string_view text, Number& value) noexcept {
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && at == text.data() + text.size() && !text.empty();
}

PlannedFault::Action action_of(std::string_view name) noexcept {
  using Action = PlannedFault::Action;
  constexpr std::pair<std::string_view, Action> kNames[] = {{"kill", Action::kill},
                                                            {"stop", Action::stop},
                                                            {"delay", Action::delay},
                                                            {"drop", Action::drop},
                                                            {"cut", Action::cut}};
  for (const auto& [known, action] : kNames) {
    if (name == known) return action;
  }
  return Action::none;
}

/// Reads "name=value" into the field of that name.
bool parse_field(std::string_view field, PlannedFault& fault) noexcept {
  const std::size_t equals = field.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = field.substr(0, equals);
  const std::string_view value = field.substr(equals + 1);
  if (name == "rank") return parse_number(value, fault.rank);
  if (name == "call") return parse_number(value, fault.call);
  if (name == "step") return parse_number(value, fault.step);
  if (name == "peer") return parse_number(value, fault.peer);
  if (name == "ms") return parse_number(value, fault.milliseconds);
  return false;
}

/// "ACTION:rank=R,call=C,step=S,...", or nothing if it is not that.
std::optional<PlannedFault> parse_planned(std::string_view spec) noexcept {
  const std::size_t colon = spec.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  PlannedFault fault;
  fault.action = action_of(spec.substr(0, colon));
  if (fault.action == PlannedFault::Action::none) return std::nullopt;
  std::string_view fields = spec.substr(colon + 1);
  for (const std::string_view needed : {"rank=", "call=", "step="}) {
    if (fields.find(needed) == std::string_view::npos) return std::nullopt;
  }
  if (fault.action == PlannedFault::Action::cut && fields.find("peer=") == std::string_view::npos) return std::nullopt;
  while (!fields.empty()) {
    const std::size_t comma = std::min(fields.find(','), fields.size());
    if (!parse_field(fields.substr(0, comma), fault)) return std::nullopt;
    fields.remove_prefix(std::min(comma + 1, fields.size()));
  }
  return fault;
}

}  // namespace

void report_faults_to(FaultReport* report) noexcept { current_report = report; }

Faults::Faults(const std::string& spec, int rank) : rank_(rank), report_(current_report) {
  if (spec.empty()) return;
  if (spec == "stale-epoch") {
    is_epoch_stale_ = true;
    return;
  }
  if (spec == "skipped-fence") {
    is_fence_skipped_ = true;
    return;
  }
  if (spec.starts_with(kDelay) && parse_number(std::string_view(spec).substr(kDelay.size()), state_)) {
    has_delays_ = true;
    state_ += 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(rank) + 1);
    return;
  }
  if (const auto fault = parse_planned(spec)) {
    planned_ = *fault;
    return;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("MOEBUS_FAULT is '{}'; allowed are delay:SEED, ACTION:rank=R,call=C,step=S (kill, stop, delay "
                          "with ms=T, drop, cut with peer=P), stale-epoch and skipped-fence",
                          spec),
              rank);
}

std::unique_ptr<Faults> Faults::from_environment(int rank) {
  const auto spec = base::env("MOEBUS_FAULT");
  if (!spec && current_report == nullptr) return nullptr;
  if (spec && spec->empty()) {
    throw Error(ErrorCode::invalid_argument, "MOEBUS_FAULT is set and empty; unset it, or name a fault", rank);
  }
  return std::make_unique<Faults>(spec.value_or(""), rank);
}

void Faults::at(std::uint32_t /*epoch*/, const sync::Step& step) noexcept {
  if (step.kind == sync::StepKind::call_begins) {
    ++num_calls_;
    num_steps_ = 0;
  }
  if (has_delays_) pause_randomly();
  if (is_epoch_stale_ || is_fence_skipped_) pause_for_planted_bug(step);
  const std::uint32_t call = num_calls_ - 1;
  if (planned_.action != PlannedFault::Action::none && planned_.rank == rank_ && planned_.call == call &&
      planned_.step == num_steps_) {
    fire();
  }
  ++num_steps_;
  if (report_ != nullptr && call < FaultReport::kMaxCalls) {
    report_->num_steps[call][static_cast<std::size_t>(rank_)] = num_steps_;
  }
}

void Faults::fire() noexcept {
  if (report_ != nullptr) ++report_->num_fired;
  switch (planned_.action) {
    case PlannedFault::Action::none:
      return;
    case PlannedFault::Action::kill:
      std::raise(SIGKILL);
      return;
    case PlannedFault::Action::stop:
      std::raise(SIGSTOP);
      return;
    case PlannedFault::Action::delay:
      std::this_thread::sleep_for(std::chrono::milliseconds(planned_.milliseconds));
      return;
    case PlannedFault::Action::drop:
      loses_next_ = true;
      return;
    case PlannedFault::Action::cut:
      cut_peer_ = planned_.peer;
      return;
  }
}

bool Faults::is_signal_lost(int peer) noexcept { return std::exchange(loses_next_, false) || is_cut_off(peer); }

void Faults::pause_randomly() noexcept {
  // splitmix64: a pause at one step of four, different for every rank, the same for the same seed.
  state_ += 0x9E3779B97F4A7C15ULL;
  std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9ULL;
  mixed ^= mixed >> 27;
  if (mixed % 4 != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds((mixed >> 8) % kMaxDelayMicros));
}

void Faults::pause_for_planted_bug(const sync::Step& step) const noexcept {
  // A planted bug is only seen if the rows come late to a rank that is not late itself.
  const bool is_after_arrival = step.field == sync::Field::arrived && step.kind == sync::StepKind::signal_made;
  const bool is_after_rows = (step.field == sync::Field::finished || step.field == sync::Field::rounds) &&
                             step.kind == sync::StepKind::signal_made;
  if ((is_epoch_stale_ && is_after_arrival) || (is_fence_skipped_ && is_after_rows)) {
    std::this_thread::sleep_for(kMutantDelay * std::min(rank_, kMaxMutantDelays));
  }
}

}  // namespace moebus::engine
