#include "engine/faults.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "base/env.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"

namespace moebus::engine {

namespace {

constexpr std::string_view kDelay = "delay:";
constexpr std::uint64_t kMaxDelayMicros = 300;
constexpr std::chrono::milliseconds kMutantDelay{2};
constexpr int kMaxMutantDelays = 4;

FaultReport* current_report = nullptr;

constexpr std::array<std::string_view, sync::kNumStepKinds> kKindNames{
    "call_begins", "signal_ahead", "signal_made", "wait_begins", "wait_ends"};
constexpr std::array<std::string_view, sync::kNumFields> kFieldNames{"arrived", "finished", "rounds", "taken"};

template <class Number>
bool parse_number(std::string_view text, Number& value) noexcept {
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && at == text.data() + text.size() && !text.empty();
}

bool parse_rank(std::string_view text, int& rank) noexcept {
  return parse_number(text, rank) && rank >= 0 && rank < kMaxRanks;
}

/// Takes what comes before the next `separator`, and the separator, off `text`.
std::string_view take_part(std::string_view& text, char separator) noexcept {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

template <class Enum, std::size_t kNum>
bool parse_name(const std::array<std::string_view, kNum>& names, std::string_view text, Enum& value) noexcept {
  const auto found = std::find(names.begin(), names.end(), text);
  value = static_cast<Enum>(found - names.begin());
  return found != names.end();
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
  if (name == "rank") return parse_rank(value, fault.rank);
  if (name == "call") return parse_number(value, fault.call);
  if (name == "step") return parse_number(value, fault.step);
  if (name == "at") return (fault.at = parse_step_name(value)).has_value();
  if (name == "peer") return parse_rank(value, fault.peer);
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
  const auto has = [fields](std::string_view name) { return fields.find(name) != std::string_view::npos; };
  const bool needs_peer = fault.action == PlannedFault::Action::cut;
  if (!has("rank=") || !has("call=") || has("step=") == has("at=") || (needs_peer && !has("peer="))) {
    return std::nullopt;
  }
  while (!fields.empty()) {
    if (!parse_field(take_part(fields, ','), fault)) return std::nullopt;
  }
  return fault;
}

/// Layout: written 1 | call 16 | kind 4 | field 4 | peer 8 | nth 31.
std::uint64_t pack(const SeenStep& step) noexcept {
  return (std::uint64_t{1} << 63) | (std::uint64_t{step.call & 0xFFFF} << 47) |
         (std::uint64_t{static_cast<std::uint8_t>(step.name.kind)} << 43) |
         (std::uint64_t{static_cast<std::uint8_t>(step.name.field)} << 39) |
         (std::uint64_t{static_cast<std::uint8_t>(step.name.peer)} << 31) | (step.name.nth & 0x7FFFFFFF);
}

SeenStep unpack(std::uint64_t word) noexcept {
  SeenStep step;
  step.call = static_cast<std::uint32_t>(word >> 47 & 0xFFFF);
  step.name.kind = static_cast<sync::StepKind>(word >> 43 & 0xF);
  step.name.field = static_cast<sync::Field>(word >> 39 & 0xF);
  step.name.peer = static_cast<int>(word >> 31 & 0xFF);
  step.name.nth = static_cast<std::uint32_t>(word & 0x7FFFFFFF);
  return step;
}

}  // namespace

std::string to_text(const StepName& name) {
  const std::string_view kind = kKindNames[static_cast<std::size_t>(name.kind)];
  if (name.kind == sync::StepKind::call_begins) return std::string(kind);
  return fmt::format("{}:{}:{}:{}", kind, kFieldNames[static_cast<std::size_t>(name.field)], name.peer, name.nth);
}

std::optional<StepName> parse_step_name(std::string_view text) noexcept {
  StepName name;
  if (!parse_name(kKindNames, take_part(text, ':'), name.kind)) return std::nullopt;
  if (name.kind == sync::StepKind::call_begins) return text.empty() ? std::optional(name) : std::nullopt;
  const bool is_right = parse_name(kFieldNames, take_part(text, ':'), name.field) &&
                        parse_rank(take_part(text, ':'), name.peer) && parse_number(text, name.nth);
  return is_right ? std::optional(name) : std::nullopt;
}

std::vector<SeenStep> FaultReport::steps_of(int rank) const {
  const auto& seen = seen_[base::idx(rank)];
  std::vector<SeenStep> steps;
  const std::size_t num = std::min<std::size_t>(num_steps[base::idx(rank)], kMaxSeen);
  for (std::size_t i = 0; i < num; ++i) steps.push_back(unpack(seen[i]));
  return steps;
}

void FaultReport::add(int rank, const SeenStep& step) noexcept {
  const std::size_t at = num_steps[base::idx(rank)];
  if (at < kMaxSeen) seen_[base::idx(rank)][at] = pack(step);
  ++num_steps[base::idx(rank)];
}

void report_faults_to(FaultReport* report) noexcept { current_report = report; }

Faults::Faults(const std::string& spec, int rank) : rank_(rank), report_(current_report) {
  bool is_right = !spec.ends_with(';');
  for (std::string_view rest = spec; is_right && !rest.empty();) is_right = parse_clause(take_part(rest, ';'));
  if (is_right && planned_.size() <= FaultReport::kMaxFaults) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format(
          "MOEBUS_FAULT is '{}'; allowed are delay:SEED, ACTION:rank=R,call=C,step=S (or at=NAME; kill, stop, "
          "delay with ms=T, drop, cut with peer=P; at most {}), stale-epoch and skipped-fence, with ; between them",
          spec,
          FaultReport::kMaxFaults),
      rank);
}

bool Faults::parse_clause(std::string_view clause) {
  if (clause == "stale-epoch") return is_epoch_stale_ = true;
  if (clause == "skipped-fence") return is_fence_skipped_ = true;
  if (clause.starts_with(kDelay) && parse_number(clause.substr(kDelay.size()), state_)) {
    state_ += 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(rank_) + 1);
    return has_delays_ = true;
  }
  const auto fault = parse_planned(clause);
  if (fault) planned_.push_back(*fault);
  return fault.has_value();
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
    num_taken_ = {};
  }
  if (has_delays_) pause_randomly();
  if (is_epoch_stale_ || is_fence_skipped_) pause_for_planted_bug(step);
  if (planned_.empty() && report_ == nullptr) return;
  const SeenStep seen{num_calls_ - 1, name_of(step)};
  if (report_ != nullptr) report_->add(rank_, seen);
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const PlannedFault& fault = planned_[i];
    if (fault.rank != rank_ || fault.call != seen.call) continue;
    if (fault.at ? *fault.at == seen.name : fault.step == num_steps_) fire(i);
  }
  ++num_steps_;
}

StepName Faults::name_of(const sync::Step& step) noexcept {
  if (step.kind == sync::StepKind::call_begins) return {};
  const auto field = static_cast<std::size_t>(step.field);
  std::uint32_t& num_taken = num_taken_[static_cast<std::size_t>(step.kind)][field][base::idx(step.peer)];
  return {step.kind, step.field, step.peer, num_taken++};
}

void Faults::fire(std::size_t idx) noexcept {
  const PlannedFault& fault = planned_[idx];
  if (report_ != nullptr) ++report_->num_fired[idx];
  switch (fault.action) {
    case PlannedFault::Action::none:
      return;
    case PlannedFault::Action::kill:
      ::kill(::getpid(), SIGKILL);
      return;
    case PlannedFault::Action::stop:
      ::kill(::getpid(), SIGSTOP);
      return;
    case PlannedFault::Action::delay:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.milliseconds));
      return;
    case PlannedFault::Action::drop:
      loses_next_ = true;
      return;
    case PlannedFault::Action::cut:
      cut_peers_ |= std::uint64_t{1} << fault.peer;
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
