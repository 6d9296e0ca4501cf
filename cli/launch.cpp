#include "cli/launch.hpp"

#include <sched.h>
#include <sys/random.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "cli/launch_detail.hpp"
#include "moebus/error.hpp"
#include "moebus/types.hpp"

namespace moebus::cli {

namespace {

std::optional<int> integer_of(const Lookup& environment, const char* name) {
  const std::optional<std::string> text = environment(name);
  if (!text || text->empty()) return std::nullopt;
  int value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw Error(ErrorCode::invalid_argument,
                std::string("environment variable ") + name + " is '" + *text + "', but must be a number >= 0");
  }
  return value;
}

// A rendezvous name that all ranks of one job derive alike. Only letters and digits survive, so that no job id can mean
// a path.
std::string local_uri(const std::string& job) {
  std::string name;
  for (const char c : job) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    name += is_plain ? c : '-';
  }
  return "local://moebus-" + name.substr(0, 64);
}

struct LauncherFacts {
  std::string launcher;
  std::optional<int> rank;
  std::optional<int> num_ranks;
  bool is_one_machine = false;
  std::string job;  // unique to the job, the same on all ranks; empty = not known
  std::string tcp;  // rendezvous that the launcher offers across machines; empty = none
};

LauncherFacts mpirun_facts(const Lookup& environment) {
  LauncherFacts facts{"mpirun",
                      integer_of(environment, "OMPI_COMM_WORLD_RANK"),
                      integer_of(environment, "OMPI_COMM_WORLD_SIZE"),
                      false,
                      "",
                      ""};
  facts.is_one_machine = integer_of(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") == facts.num_ranks;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    const std::optional<std::string> job = environment(name);
    if (job && !job->empty() && facts.job.empty()) facts.job = *job;
  }
  return facts;
}

LauncherFacts torchrun_facts(const Lookup& environment) {
  LauncherFacts facts{
      "torchrun", integer_of(environment, "RANK"), integer_of(environment, "WORLD_SIZE"), false, "", ""};
  const std::optional<std::string> host = environment("MASTER_ADDR");
  const std::optional<int> port = integer_of(environment, "MASTER_PORT");
  facts.is_one_machine = integer_of(environment, "LOCAL_WORLD_SIZE") == facts.num_ranks;
  if (!host || host->empty() || !port) return facts;
  // On one machine a local meeting is better: torchrun's own agent often listens on that port already.
  facts.job = environment("TORCHELASTIC_RUN_ID").value_or("") + "-" + *host + "-" + std::to_string(*port);
  facts.tcp = "tcp://" + *host + ":" + std::to_string(*port);
  return facts;
}

LauncherFacts srun_facts(const Lookup& environment) {
  LauncherFacts facts{
      "srun", integer_of(environment, "SLURM_PROCID"), integer_of(environment, "SLURM_NTASKS"), false, "", ""};
  facts.is_one_machine =
      integer_of(environment, "SLURM_STEP_NUM_NODES").value_or(integer_of(environment, "SLURM_NNODES").value_or(0)) ==
      1;
  const std::optional<std::string> job = environment("SLURM_JOB_ID");
  if (job && !job->empty()) facts.job = *job + "-" + environment("SLURM_STEP_ID").value_or("0");
  return facts;
}

std::string rendezvous(const LauncherFacts& facts, const Lookup& environment, const std::string& store) {
  if (!store.empty()) return store;
  const std::optional<std::string> from_environment = environment("MOEBUS_STORE");
  if (from_environment && !from_environment->empty()) return *from_environment;
  if (facts.is_one_machine && !facts.job.empty()) return local_uri(facts.launcher + "-" + facts.job);
  if (!facts.tcp.empty()) return facts.tcp;
  throw Error(
      ErrorCode::not_found,
      facts.launcher + " started this process as rank " + std::to_string(*facts.rank) + " of " +
          std::to_string(*facts.num_ranks) +
          ", but its variables do not say where the ranks can meet (they are on several machines, or the job has no "
          "id); give --store tcp://HOST:PORT of rank 0's machine, or set MOEBUS_STORE, the same on all ranks");
}

}  // namespace

Lookup process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

std::optional<OuterSeat> outer_seat(const Lookup& environment, const std::string& store) {
  LauncherFacts facts;
  if (environment("OMPI_COMM_WORLD_RANK")) {
    facts = mpirun_facts(environment);
  } else if (environment("RANK") && environment("WORLD_SIZE")) {
    facts = torchrun_facts(environment);
  } else if (environment("SLURM_PROCID") && environment("SLURM_STEP_ID")) {
    facts = srun_facts(environment);  // without a step id this is a batch script or a shell, which runs once
  }
  if (!facts.rank || !facts.num_ranks || *facts.num_ranks <= 1) return std::nullopt;
  if (*facts.rank >= *facts.num_ranks || *facts.num_ranks > kMaxRanks) {
    throw Error(ErrorCode::invalid_argument,
                facts.launcher + " says rank " + std::to_string(*facts.rank) + " of " +
                    std::to_string(*facts.num_ranks) + "; a rank must be below the number of ranks, and at most " +
                    std::to_string(kMaxRanks) + " ranks are supported");
  }
  return OuterSeat{facts.launcher, {*facts.rank, *facts.num_ranks, rendezvous(facts, environment, store)}};
}

std::string random_name() {
  std::array<unsigned char, 12> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorCode::internal, "getrandom() gave no random bytes for a rendezvous name");
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "moebus-";
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

std::vector<std::string> run_as_threads(int num_ranks, const RankBody& body) {
  const std::string uri = "inproc://" + random_name();
  std::vector<std::string> texts(static_cast<std::size_t>(num_ranks));
  std::exception_ptr first_cause;
  std::mutex guard;
  {
    std::vector<std::jthread> threads;
    threads.reserve(texts.size());
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          texts[static_cast<std::size_t>(rank)] = body({rank, num_ranks, uri});
        } catch (...) {
          const std::lock_guard lock(guard);
          if (!first_cause) first_cause = std::current_exception();
        }
      });
    }
  }
  if (first_cause) std::rethrow_exception(first_cause);
  return texts;
}

bool pin_to_core(int rank, int num_ranks) noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  if (CPU_COUNT(&allowed) == 1) return true;  // a launcher has done it
  if (CPU_COUNT(&allowed) < num_ranks) return false;
  int position = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (position++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  return false;
}

}  // namespace moebus::cli
