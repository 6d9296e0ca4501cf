// Launch: starts ranks as processes or threads of this machine, or takes the seat that mpirun, torchrun or srun gave.
// Room: cli · host.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace moebus::cli {

/// One rank's place: who it is and where the others meet it.
struct Seat {
  int rank = 0;
  int num_ranks = 1;
  std::string uri;  ///< rendezvous for Group::join
};

/// What a rank does; its text goes back to the caller (rank 0's is the report). Throws to fail.
using RankBody = std::function<std::string(const Seat&)>;

/// Reads an environment variable; empty if it is not set.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

/// The process environment as a Lookup.
Lookup process_environment();

/// A seat given by an outer launcher, and that launcher's name.
struct OuterSeat {
  std::string launcher;  ///< "mpirun", "torchrun" or "srun"
  Seat seat;
};

/// Returns this process's seat if an outer launcher started it as one of several ranks; nullopt if not.
///
/// `store` is the rendezvous that the user gave (--store), or empty: then MOEBUS_STORE, then what the launcher's
/// variables allow. Errors:  Error{invalid_argument} a variable holds no number or an impossible rank; Error{not_found}
/// no rendezvous is known.
std::optional<OuterSeat> outer_seat(const Lookup& environment, const std::string& store);

/// Runs `body` on `num_ranks` forked processes and returns their texts in rank order.
///
/// Children die with this process; none is left behind, whatever happens.
/// Order:   call it before the process has threads.
/// Errors:  the first cause as Error: a rank's own error, or Error{peer_lost} naming rank, pid and signal of one that
/// died.
std::vector<std::string> run_as_processes(int num_ranks, const RankBody& body);

/// Runs `body` on `num_ranks` threads of this process and returns their texts in rank order. Errors: the first cause.
std::vector<std::string> run_as_threads(int num_ranks, const RankBody& body);

/// Ties the calling thread to core `rank` of those it may use; false if there are fewer cores than ranks (then nothing
/// is tied).
bool pin_to_core(int rank, int num_ranks) noexcept;

}  // namespace moebus::cli
