#include <memory>
#include <string>
#include <utility>

#include "cases/exchange_run.hpp"
#include "workload/random.hpp"

namespace moebus::cases {
namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

std::optional<std::string> count_difference(
    const std::string& what, int src, int dst, std::uint64_t seen, std::uint64_t least, bool is_exact) {
  if (seen == least || (!is_exact && seen < least)) return std::nullopt;
  return what + " from rank " + std::to_string(src) + " to " + std::to_string(dst) + ": counted " +
         std::to_string(seen) + ", needed are " + std::to_string(least);
}

std::optional<std::string> peer_difference(
    const std::string& call, const PeerStats& stats, int rank, int peer, const oracle::Traffic& least, bool is_exact) {
  auto found =
      count_difference(call + " bytes sent", rank, peer, stats.bytes_sent, least.bytes_of(rank, peer), is_exact);
  if (found) return found;
  found = count_difference(
      call + " bytes received", peer, rank, stats.bytes_received, least.bytes_of(peer, rank), is_exact);
  if (found || peer == rank) return found;  // rows that stay are no traffic
  found = count_difference(call + " rows sent", rank, peer, stats.rows_sent, least.rows_of(rank, peer), is_exact);
  if (found) return found;
  return count_difference(
      call + " rows received", peer, rank, stats.rows_received, least.rows_of(peer, rank), is_exact);
}

ExchangeCase in_context(const ExchangeCase& one, int context) {
  ExchangeCase copy = one;
  copy.config.context = context;
  return copy;
}

// One context of a case: its exchange, and what its calls hold from post to wait.
class Context {
 public:
  Context(const Group& group, const ExchangeCase& one, int context, Mutant mutant)
      : one_(in_context(one, context)), run_(group, one_, mutant) {}

  void post_dispatch(const DispatchTruth& truth) {
    dispatch_ = run_.exchange().post_dispatch(run_.input(truth, sent_));
  }

  std::optional<std::string> wait_dispatch(const DispatchTruth& truth) { return take(truth, dispatch_.wait()); }

  std::optional<std::string> dispatch(const DispatchTruth& truth) {
    return take(truth, run_.exchange().dispatch(run_.input(truth, sent_)));
  }

  void post_combine(const DispatchTruth& dispatched, const CombineTruth& truth) {
    combine_ = run_.exchange().post_combine(run_.answers(dispatched, truth, result_.handle, answers_));
  }

  std::optional<std::string> wait_combine(const CombineTruth& truth) { return end(truth, combine_.wait()); }

  std::optional<std::string> combine(const DispatchTruth& dispatched, const CombineTruth& truth) {
    return end(truth, run_.exchange().combine(run_.answers(dispatched, truth, result_.handle, answers_)));
  }

  [[nodiscard]] std::optional<std::string> traffic(const LeastTraffic& least) const {
    return traffic_difference(run_.stats(), run_.rank(), least, one_.config.capacity_rows == 0);
  }

 private:
  std::optional<std::string> take(const DispatchTruth& truth, DispatchResult result) {
    result_ = std::move(result);
    run_.spoil(truth, result_);
    return run_.difference(truth, result_);
  }

  std::optional<std::string> end(const CombineTruth& truth, const CombineResult& result) {
    std::optional<std::string> found = run_.difference(truth, result);
    poison_rows(result_);
    result_ = DispatchResult();
    return found;
  }

  ExchangeCase one_;
  ExchangeRun run_;
  DispatchBuffers sent_;
  CombineBuffers answers_;
  DispatchResult result_;
  PendingDispatch dispatch_;
  PendingCombine combine_;
};

class Calls {
 public:
  Calls(const Group& group, const ExchangeCase& one, const CaseTruth& truth, Mutant mutant)
      : truth_(truth), random_(workload::seed_from(one.seed, 47, static_cast<std::uint64_t>(group.rank()))) {
    const int num_contexts = one.in_overlap ? 2 : 1;
    for (int context = 0; context < num_contexts; ++context) {
      contexts_.push_back(std::make_unique<Context>(group, one, context, mutant));
    }
  }

  std::optional<std::string> run() {
    for (std::size_t call = 0; call < truth_.dispatched.size();) call += contexts_.size() == 1 ? one(call) : pair(call);
    for (std::size_t context = 0; context < contexts_.size(); ++context) {
      if (!first_) first_ = contexts_[context]->traffic(truth_.least[context]);
    }
    return first_;
  }

 private:
  std::size_t one(std::size_t call) {
    note(call, contexts_[0]->dispatch(truth_.dispatched[call]));
    note(call, contexts_[0]->combine(truth_.dispatched[call], truth_.combined[call]));
    return 1;
  }

  // Two calls in overlap, or the last one alone. The order of waits is this rank's own.
  std::size_t pair(std::size_t call) {
    const std::size_t num = std::min<std::size_t>(2, truth_.dispatched.size() - call);
    for (std::size_t i = 0; i < num; ++i) contexts_[i]->post_dispatch(truth_.dispatched[call + i]);
    const bool waits_late = random_.below(2) == 0;  // the second dispatch is on its way beside the first combine
    const std::size_t first = waits_late || num == 1 ? 0 : random_.below(2);
    wait_dispatch(call, first);
    if (!waits_late && num > 1) wait_dispatch(call, 1 - first);
    post_combine(call, 0);
    if (waits_late && num > 1) wait_dispatch(call, 1);
    if (num > 1) post_combine(call, 1);
    const std::size_t earlier = num == 1 ? 0 : random_.below(2);
    for (std::size_t i = 0; i < num; ++i) {
      const std::size_t context = i == 0 ? earlier : 1 - earlier;
      note(call + context, contexts_[context]->wait_combine(truth_.combined[call + context]));
    }
    return num;
  }

  void wait_dispatch(std::size_t call, std::size_t context) {
    note(call + context, contexts_[context]->wait_dispatch(truth_.dispatched[call + context]));
  }

  void post_combine(std::size_t call, std::size_t context) {
    contexts_[context]->post_combine(truth_.dispatched[call + context], truth_.combined[call + context]);
  }

  void note(std::size_t call, const std::optional<std::string>& difference) {
    if (difference && !first_) first_ = "call " + std::to_string(call) + ": " + *difference;
  }

  const CaseTruth& truth_;
  workload::Random random_;
  std::vector<std::unique_ptr<Context>> contexts_;
  std::optional<std::string> first_;
};

}  // namespace

std::optional<std::string> run_calls(const Group& group,
                                     const ExchangeCase& one,
                                     const CaseTruth& truth,
                                     Mutant mutant) {
  return Calls(group, one, truth, mutant).run();
}

std::optional<std::string> traffic_difference(const ExchangeStats& stats,
                                              int rank,
                                              const LeastTraffic& least,
                                              bool is_exact) {
  for (int peer = 0; peer < stats.num_ranks; ++peer) {
    auto found = peer_difference("dispatch", stats.dispatch_peers[idx(peer)], rank, peer, least.dispatch, is_exact);
    if (found) return found;
    found = peer_difference("combine", stats.combine_peers[idx(peer)], rank, peer, least.combine, is_exact);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace moebus::cases
