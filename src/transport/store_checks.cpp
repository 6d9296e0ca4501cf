#include "transport/store_checks.hpp"

#include <fmt/format.h>

#include "moebus/error.hpp"
#include "moebus/types.hpp"
#include "transport/rank_text.hpp"
#include "transport/store.hpp"

namespace moebus::transport {

void check_rank(int rank, int num_ranks) {
  if (num_ranks < 1) {
    throw Error(ErrorCode::invalid_argument, fmt::format("num_ranks is {}; it must be at least 1", num_ranks), rank);
  }
  if (num_ranks > kMaxRanks) {
    throw Error(
        ErrorCode::unsupported, fmt::format("num_ranks is {}; at most {} are supported", num_ranks, kMaxRanks), rank);
  }
  if (rank < 0 || rank >= num_ranks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank is {}; with num_ranks {} it must be 0 to {}", rank, num_ranks, num_ranks - 1),
                rank);
  }
}

void check_message_size(int rank, std::string_view what, std::string_view value) {
  if (what.size() > kMaxStepBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the name of a step has {} bytes; at most {} are allowed", what.size(), kMaxStepBytes),
                rank);
  }
  if (value.size() > Store::kMaxMessageBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("step \"{}\" gives {} bytes; at most {} are allowed, send it in parts",
                            what,
                            value.size(),
                            Store::kMaxMessageBytes),
                rank);
  }
}

void check_same_step(const std::vector<std::string>& steps) {
  bool is_same = true;
  for (const std::string& step : steps) is_same = is_same && step == steps.front();
  if (is_same) return;
  std::string text = "the ranks are at different steps, so one of them made another call than the others:";
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    text += fmt::format("{} rank {} \"{}\"", rank == 0 ? "" : ",", rank, steps[rank]);
  }
  throw Error(ErrorCode::invalid_argument, text);
}

std::string late_ranks_text(int rank,
                            std::string_view what,
                            std::string_view where,
                            const std::vector<int>& missing,
                            std::chrono::nanoseconds waited) {
  return fmt::format(
      "rank {} waited {} at {}, step \"{}\": {} did not come; see that they run and use the same address",
      rank,
      show_seconds(waited),
      where,
      what,
      list_ranks(missing));
}

}  // namespace moebus::transport
