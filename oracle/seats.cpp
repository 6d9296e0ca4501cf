#include "oracle/seats.hpp"

#include <string>

#include "moebus/error.hpp"

namespace moebus::oracle {

namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

[[noreturn]] void reject(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "oracle: placement: " + what);
}

// Puts experts into the seats of ranks: experts_on[rank] lists a rank's seats, -1 = empty.
Seats fill(const std::vector<std::vector<std::int32_t>>& experts_on, int num_experts) {
  Seats seats;
  seats.of_expert.resize(idx(num_experts));
  for (std::size_t rank = 0; rank < experts_on.size(); ++rank) {
    seats.first_on.push_back(static_cast<int>(seats.rank_of.size()));
    for (const std::int32_t expert : experts_on[rank]) {
      if (expert < -1 || expert >= num_experts) {
        reject("expert " + std::to_string(expert) + " is none of 0 to " + std::to_string(num_experts - 1) +
               "; -1 leaves a seat empty");
      }
      if (expert >= 0) seats.of_expert[idx(expert)].push_back(static_cast<int>(seats.rank_of.size()));
      seats.rank_of.push_back(static_cast<int>(rank));
    }
  }
  seats.first_on.push_back(static_cast<int>(seats.rank_of.size()));
  return seats;
}

void check_experts(const Seats& seats) {
  for (std::size_t expert = 0; expert < seats.of_expert.size(); ++expert) {
    const std::vector<int>& taken = seats.of_expert[expert];
    if (taken.empty()) reject("expert " + std::to_string(expert) + " has no seat; give it one");
    for (std::size_t i = 1; i < taken.size(); ++i) {
      const int rank = seats.rank_of[idx(taken[i])];
      if (rank != seats.rank_of[idx(taken[i - 1])]) continue;
      reject("expert " + std::to_string(expert) + " sits twice on rank " + std::to_string(rank) +
             "; once per rank is allowed");
    }
  }
}

// One seat per expert, contiguous blocks.
std::vector<std::vector<std::int32_t>> blocks(int num_experts, int num_ranks) {
  std::vector<std::vector<std::int32_t>> experts_on(idx(num_ranks));
  for (int expert = 0; expert < num_experts; ++expert) {
    experts_on[idx(owner_of(num_experts, num_ranks, expert))].push_back(expert);
  }
  return experts_on;
}

int default_replica(const ReplicaChoice& choice) {
  for (std::size_t i = 0; i < choice.ranks.size(); ++i) {
    if (choice.ranks[i] == choice.src_rank) return static_cast<int>(i);
  }
  return static_cast<int>((choice.src_rank + choice.token) % static_cast<std::int64_t>(choice.ranks.size()));
}

int choose_seat(const Seats& seats, ReplicaChoice choice, const ReplicaRule& rule) {
  const std::vector<int>& replicas = seats.of_expert[idx(choice.expert)];
  if (replicas.size() == 1) return replicas.front();
  std::vector<std::int32_t> ranks;
  for (const int seat : replicas) ranks.push_back(seats.rank_of[idx(seat)]);
  choice.ranks = ranks;
  const int answer = rule ? rule(choice) : default_replica(choice);
  const int num = static_cast<int>(replicas.size());
  return replicas[idx((answer % num + num) % num)];
}

}  // namespace

int Seats::num_on(int rank) const { return first_on[idx(rank) + 1] - first_on[idx(rank)]; }

Seats seats_of(const ExchangeConfig& config, int num_ranks, const Placement& placement) {
  if (config.seats_per_rank == 0) {
    if (!placement.experts.empty()) reject("given, but config.seats_per_rank is 0; set it to the seats of a rank");
    return fill(blocks(config.num_experts, num_ranks), config.num_experts);
  }
  const int num_seats = num_ranks * config.seats_per_rank;
  const bool is_given = !placement.experts.empty();
  if (num_seats < config.num_experts || (is_given && placement.experts.size() != idx(num_seats))) {
    reject(std::to_string(placement.experts.size()) + " entries, " + std::to_string(config.num_experts) + " experts, " +
           std::to_string(num_ranks) + " x " + std::to_string(config.seats_per_rank) +
           " seats; give one entry per seat, and at least as many seats as experts");
  }
  std::vector<std::vector<std::int32_t>> experts_on(idx(num_ranks));
  for (int seat = 0; seat < num_seats; ++seat) {
    const int in_order = seat < config.num_experts ? seat : -1;
    experts_on[idx(seat / config.seats_per_rank)].push_back(is_given ? placement.experts[idx(seat)] : in_order);
  }
  const Seats seats = fill(experts_on, config.num_experts);
  check_experts(seats);
  return seats;
}

SeatChoices choose_seats(const ExchangeConfig& config,
                         const std::vector<RankInput>& inputs,
                         const Placement& placement,
                         const ReplicaRule& rule) {
  SeatChoices choices{seats_of(config, static_cast<int>(inputs.size()), placement), {}};
  for (int rank = 0; rank < static_cast<int>(inputs.size()); ++rank) {
    std::vector<int>& seat = choices.seat.emplace_back();
    const std::vector<std::int64_t>& ids = inputs[idx(rank)].topk_idx;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto token = static_cast<std::int64_t>(i) / config.num_topk;
      const auto choice = static_cast<int>(i) % config.num_topk;
      const auto expert = static_cast<int>(ids[i]);
      seat.push_back(expert < 0 ? -1 : choose_seat(choices.seats, {rank, token, choice, expert, {}}, rule));
    }
  }
  return choices;
}

}  // namespace moebus::oracle
