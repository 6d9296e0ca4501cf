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

  /// Gives every rank every rank's `value`, in rank order. `what` names the step, at most 256 bytes; ranks at
  /// different steps get an error that says so.
  ///
  /// Order:   collective.
  /// Errors:  Error{timeout} names the ranks that did not come and what for; Error{peer_lost} a rank went away;
  ///          Error{transport_failure} the connection broke. After these the store is at its end: each further call
  ///          throws the same. Error{invalid_argument} ranks are at different steps (on all ranks), or `value`
  ///          exceeds kMaxMessageBytes (here only); the store goes on.
  virtual std::vector<std::string> all_gather(std::string_view what,
                                              std::string_view value,
                                              const base::Deadline& deadline) = 0;

  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;
};

}  // namespace moebus::transport
