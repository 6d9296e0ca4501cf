#include "transport/agreement.hpp"

#include <fmt/format.h>

#include <optional>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/memory_left.hpp"
#include "transport/store_failure.hpp"
#include "transport/stream_frame.hpp"

namespace moebus::transport {
namespace {

using base::idx;

constexpr std::chrono::seconds kTellLimit{1};  // to say what failed when the failure used up the time

StoreFailure describe(const Error& error, int rank) {
  const int origin = error.origin_rank() < 0 ? rank : error.origin_rank();
  return {error.code(), origin, fmt::format("on rank {}: {}", rank, error.what())};
}

}  // namespace

std::vector<std::string> agree(Store& store,
                               std::string_view what,
                               const base::Deadline& deadline,
                               const std::function<std::string()>& deed) {
  std::optional<StoreFailure> failure;
  std::string result;
  try {
    result = deed();
  } catch (const Error& error) {
    failure = describe(error, store.rank());
  }
  const std::string told = failure ? PayloadWriter().number(1).raw(to_payload(*failure)).take()
                                   : PayloadWriter().number(0).raw(result).take();
  const base::Deadline until = failure && deadline.left() < kTellLimit ? base::Deadline(kTellLimit) : deadline;
  std::vector<std::string> answers;
  try {
    answers = store.all_gather(what, told, until);
  } catch (const Error&) {
    if (failure) failure->raise();  // closer to the cause than that nobody could be told
    throw;
  }
  for (std::string& answer : answers) {
    PayloadReader reader(answer);
    const bool has_failed = reader.number() != 0;
    if (!reader.is_good()) throw Error(ErrorCode::internal, fmt::format("step \"{}\": an answer is too short", what));
    answer.erase(0, sizeof(std::uint32_t));
    if (!has_failed) continue;
    parse_failure(answer)
        .value_or(StoreFailure{ErrorCode::internal, -1, fmt::format("step \"{}\" failed on a rank", what)})
        .raise();
  }
  return answers;
}

void agree_on_size(Store& store, std::size_t size_bytes, const base::Deadline& deadline) {
  const auto answers = agree(store, "agree on memory", deadline, [&] {
    check_memory_left(size_bytes, store.num_ranks());
    return PayloadWriter().size(size_bytes).take();
  });
  std::vector<std::size_t> sizes;
  bool is_same = true;
  for (const std::string& answer : answers) {
    sizes.push_back(PayloadReader(answer).size());
    is_same = is_same && sizes.back() == size_bytes;
  }
  if (is_same) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the ranks register different sizes, in rank order: {} bytes; all must register the same",
                          fmt::join(sizes, ", ")));
}

std::vector<bool> agree_on_mapping(Store& store, const std::vector<bool>& may_map, const base::Deadline& deadline) {
  const std::size_t num_ranks = idx(store.num_ranks());
  const auto answers = agree(store, "agree on mapping", deadline, [&] {
    if (!may_map.empty() && may_map.size() != num_ranks) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("may_map has {} entries, the group {} ranks; give one entry per rank, or none at all",
                              may_map.size(),
                              num_ranks));
    }
    std::string told(num_ranks, '1');
    for (std::size_t peer = 0; peer < may_map.size(); ++peer) told[peer] = may_map[peer] ? '1' : '0';
    return told;
  });
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (answers[rank].size() == num_ranks) continue;
    throw Error(ErrorCode::transport_failure,
                fmt::format("rank {} told {} bytes of what it may map; {} are expected, one per rank",
                            rank,
                            answers[rank].size(),
                            num_ranks));
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    for (std::size_t peer = rank + 1; peer < num_ranks; ++peer) {
      if (answers[rank][peer] == answers[peer][rank]) continue;
      const bool is_lower = answers[rank][peer] == '1';
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("rank {} may map rank {}, but rank {} may not map rank {}; allow it on both or on neither",
                      is_lower ? rank : peer,
                      is_lower ? peer : rank,
                      is_lower ? peer : rank,
                      is_lower ? rank : peer));
    }
  }
  std::vector<bool> allowed(num_ranks);
  const std::string& own = answers[idx(store.rank())];
  for (std::size_t peer = 0; peer < num_ranks; ++peer) allowed[peer] = own[peer] == '1';
  allowed[idx(store.rank())] = true;
  return allowed;
}

}  // namespace moebus::transport
