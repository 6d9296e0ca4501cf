// Hello, group: ranks meet, say who they are, agree on one exchange, and part.
//
//   01_hello_group [RANKS] [--processes]      4 ranks as threads, unless told otherwise

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "moebus/moebus.hpp"

namespace {

// What one rank does. It is the same code whether ranks are threads or processes: only the URI differs.
void run_rank(const std::string& uri, int rank, int num_ranks) {
  moebus::Group group = moebus::Group::join(uri, rank, num_ranks);
  std::printf(
      "rank %d of %d is here, over %s\n", group.rank(), group.num_ranks(), std::string(group.transport()).c_str());
  group.barrier();

  // All ranks must say the same here. prepare() compares it, and would name each field that differs, with its value per
  // rank.
  moebus::ExchangeConfig config;
  config.num_experts = 16;
  config.num_topk = 2;
  config.hidden = 64;
  config.max_tokens_per_rank = 8;

  // What it costs is known before anything is allocated.
  const moebus::BytesNeeded bytes = moebus::Exchange::bytes_needed(config, num_ranks);
  moebus::Exchange exchange(group, config);
  exchange.warm_up();
  std::printf("rank %d owns experts %d to %d; %zu bytes that peers may write, %zu of its own\n",
              rank,
              exchange.first_local_expert(),
              exchange.first_local_expert() + exchange.num_local_experts() - 1,
              bytes.registered,
              bytes.local);

  // A wrong configuration is refused with field, value, limit and remedy.
  config.num_topk = moebus::kMaxTopk + 1;
  try {
    const moebus::Exchange wrong(group, config);
    throw std::runtime_error("top-k 65 was accepted");
  } catch (const moebus::Error& error) {
    if (rank == 0) {
      std::printf("what a refusal looks like: %s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    }
  }
  group.barrier();
  group.close();  // local: nobody waits for anybody
}

// Runs one rank and returns the exit status that it deserves.
int status_of_rank(const std::string& uri, int rank, int num_ranks) {
  try {
    run_rank(uri, rank, num_ranks);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return EXIT_FAILURE;
  }
}

int run_as_threads(int num_ranks) {
  std::atomic<int> num_failed{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      if (status_of_rank("inproc://hello", rank, num_ranks) != EXIT_SUCCESS) ++num_failed;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return num_failed;
}

int run_as_processes(int num_ranks) {
  // The name is this run's own, so that two runs at the same time do not meet.
  const std::string uri = "local://hello-" + std::to_string(::getpid());
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int status = status_of_rank(uri, rank, num_ranks);
      std::fflush(stdout);
      ::_exit(status);
    }
    ranks.push_back(child);
  }
  int num_failed = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    const bool has_ended = rank > 0 && ::waitpid(rank, &status, 0) == rank;
    if (!has_ended || !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS) ++num_failed;
  }
  return num_failed;
}

}  // namespace

int main(int argc, char** argv) {
  int num_ranks = 4;
  bool has_processes = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--processes") == 0) {
      has_processes = true;
    } else {
      num_ranks = std::atoi(argv[i]);
    }
  }
  if (num_ranks < 1 || num_ranks > moebus::kMaxRanks) {
    std::fprintf(stderr, "usage: 01_hello_group [RANKS 1-%d] [--processes]\n", moebus::kMaxRanks);
    return 2;
  }
  const int num_failed = has_processes ? run_as_processes(num_ranks) : run_as_threads(num_ranks);
  if (num_failed > 0) return EXIT_FAILURE;
  std::printf("all %d ranks met, agreed and left\n", num_ranks);
  return EXIT_SUCCESS;
}
