// Store: how ranks exchange small messages while a group is set up. Never on the data path.
// Room: transport · host.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"

namespace moebus::transport {

/// Threads: one caller at a time per rank.
class Store {
 public:
  virtual ~Store() = default;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int num_ranks() const noexcept = 0;

  /// Gives every rank every rank's `value`, in rank order. `what` names the step; ranks at different steps get an error that says so.
  ///
  /// Order:   collective.
  /// Errors:  Error{timeout} names the ranks that did not come and what for; Error{peer_lost} a rank went away;
  ///          Error{invalid_argument} ranks are at different steps, or `value` exceeds kMaxMessageBytes.
  virtual std::vector<std::string> all_gather(std::string_view what, std::string_view value, const base::Deadline& deadline) = 0;

  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;
};

}  // namespace moebus::transport
