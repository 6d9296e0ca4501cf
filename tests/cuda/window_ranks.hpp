// Window ranks: what one rank does to share windows with its peers and to find its bytes in them; the same for ranks
// that are threads and ranks that are processes. Room: tests/cuda · host.

#pragma once

#include <functional>

#include "base/unique_fd.hpp"

namespace moebus::tests {

/// How the ranks of a test meet.
struct WindowMeeting {
  int num_ranks = 0;

  /// Waits until all ranks are here; throws when that takes too long.
  std::function<void()> meet;

  /// Gives the descriptor to the peer; takes the one that the peer gave, when all have given.
  std::function<void(int rank, int peer, int descriptor)> give;
  std::function<base::UniqueFd(int rank, int peer)> take;
};

/// Maps every peer's window, writes a pattern of its own into each, and expects in all of them what every rank wrote,
/// and nothing else.
void share_windows(const WindowMeeting& meeting, int rank);

/// A place where ranks meet, in memory that processes forked later share.
class MeetingPlace {
 public:
  explicit MeetingPlace(int num_ranks);
  ~MeetingPlace();
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;

  void meet();

 private:
  struct Count;
  int num_ranks_;
  Count* count_;
};

}  // namespace moebus::tests
