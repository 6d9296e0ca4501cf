// Peers: moebus and an exchange over MPI in turn, on the same inputs, both checked first. Rank 0 prints one JSON
// object. Room: bench · host. Run it under mpirun; run.py does.

#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "bench/peers/mpi_exchange.hpp"
#include "cli/bench.hpp"
#include "cli/machine.hpp"
#include "cli/report.hpp"
#include "cli/samples.hpp"

namespace moebus::peers {

namespace {

using Clock = std::chrono::steady_clock;
using cli::Json;

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

MpiInput mpi_input(const oracle::RankInput& input) {
  return {input.num_tokens, input.tokens.data(), input.scales.data(), input.topk_idx.data(), input.topk_weights.data()};
}

MpiShape mpi_shape(const ExchangeConfig& config) {
  const std::size_t token_bytes = oracle::received_row_bytes(config);
  return {config.num_experts,
          config.num_topk,
          config.max_tokens_per_rank,
          token_bytes,
          cli::travel_bytes(config) - token_bytes,
          oracle::combine_columns(config)};
}

bool is_equal(std::span<const std::byte> expected, const std::byte* seen) {
  return expected.empty() || std::memcmp(expected.data(), seen, expected.size()) == 0;
}

// Compares what MPI brought with the oracle, byte for byte.
bool is_right(const oracle::DispatchExpectation& expected,
              const oracle::CombineExpectation& home,
              const MpiExchange& mpi) {
  const std::size_t token_bytes = oracle::received_row_bytes(expected.config);
  const std::size_t scale_bytes = cli::travel_bytes(expected.config) - token_bytes;
  bool is_same = mpi.num_rows() == expected.num_rows;
  for (const oracle::ReceivedRow& row : expected.rows) {
    if (!is_same) return false;
    const std::size_t at = idx(row.position);
    is_same = is_equal(expected.token_bytes(row), mpi.tokens() + at * token_bytes) &&
              (scale_bytes == 0 || is_equal(expected.scale_bytes(row), mpi.scales() + at * scale_bytes)) &&
              mpi.src_token()[at] == row.src_token;
  }
  return is_same &&
         is_equal(std::as_bytes(std::span(expected.topk_idx)), std::as_bytes(std::span(mpi.ids(), 1)).data()) &&
         is_equal(std::as_bytes(std::span(expected.topk_weights)), std::as_bytes(std::span(mpi.weights(), 1)).data()) &&
         is_equal(home.tokens, mpi.combined());
}

// Times of one side; index = iteration, then the slowest rank's.
struct Times {
  std::vector<double> dispatch, combine, exchange;

  void add(double out, double back) {
    dispatch.push_back(out);
    combine.push_back(back);
    exchange.push_back(out + back);
  }

  void take_slowest() {
    for (std::vector<double>* times : {&dispatch, &combine, &exchange}) {
      MPI_Allreduce(MPI_IN_PLACE, times->data(), static_cast<int>(times->size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
  }
};

Json summary_json(std::span<const double> samples) {
  const cli::Summary summary = cli::summarise(samples);
  return {{"median_us", summary.median}, {"p99_us", summary.p99}, {"min_us", summary.min}, {"max_us", summary.max}};
}

class Run {
 public:
  Run(const cli::BenchSetup& setup, int rank, const Group& group)
      : setup_(setup),
        truth_(cli::make_truth(setup)),
        rank_(rank),
        bench_(setup, group),
        mpi_(mpi_shape(setup.config)) {}

  // Returns the report on rank 0; throws if either side is wrong.
  Json run(int iterations) {
    bench_.load_first(truth_);
    check();
    bench_.load_others();
    for (int i = 0; i < 2 * setup_.num_sets; ++i) both(i);  // every buffer touched, every set seen
    moebus_ = {};
    over_mpi_ = {};
    for (int i = 0; i < iterations; ++i) both(i);
    moebus_.take_slowest();
    over_mpi_.take_slowest();
    Json rows = Json::array();
    rows.push_back(row("dispatch", moebus_.dispatch, over_mpi_.dispatch));
    rows.push_back(row("combine", moebus_.combine, over_mpi_.combine));
    rows.push_back(row("exchange", moebus_.exchange, over_mpi_.exchange));
    return rows;
  }

 private:
  void check() {
    bench_.call(0);
    const std::optional<std::string> difference = bench_.difference(truth_);
    bench_.finish();
    if (difference) throw cli::Mismatch("moebus: " + *difference);
    mpi_.dispatch(mpi_input(bench_.input(0)));
    mpi_.combine(bench_.rows(0));
    if (!is_right(truth_.dispatched[idx(rank_)], bench_.combine_expectation(truth_), mpi_)) {
      throw cli::Mismatch("the exchange over MPI is not what the oracle says");
    }
  }

  // The two sides take different sets, so that neither finds its inputs in a cache that the other warmed.
  void both(int iteration) {
    const int sets = setup_.num_sets;
    const auto moebus_call = [&] {
      const cli::CallTimes times = bench_.call(iteration % sets);
      bench_.finish();
      moebus_.add(times.dispatch, times.combine);
    };
    const auto mpi_call = [&] {
      const int set = (iteration + sets / 2) % sets;
      const Clock::time_point start = Clock::now();
      mpi_.dispatch(mpi_input(bench_.input(set)));
      const Clock::time_point arrived = Clock::now();
      mpi_.combine(bench_.rows(set));
      over_mpi_.add(microseconds(start, arrived), microseconds(arrived, Clock::now()));
    };
    // A/B, B/A: what one side leaves behind falls on both alike.
    if (iteration % 2 == 0) moebus_call();
    mpi_call();
    if (iteration % 2 != 0) moebus_call();
  }

  Json row(const char* phase, std::span<const double> ours, std::span<const double> theirs) const {
    const cli::BenchOptions& options = setup_.options;
    return {
        {"shape",
         fmt::format("{} tokens {} {}", options.tokens, options.has_cast ? "fp8 cast" : options.dtype, options.path)},
        {"phase", phase},
        {"moebus", summary_json(ours)},
        {"mpi", summary_json(theirs)},
        {"ratio", cli::summarise(theirs).median / cli::summarise(ours).median}};
  }

  const cli::BenchSetup& setup_;
  cli::BenchTruth truth_;
  int rank_;
  cli::BenchRank bench_;
  MpiExchange mpi_;
  Times moebus_;
  Times over_mpi_;
};

std::string mpi_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data());
  return all.substr(0, all.find(','));
}

// Rank 0 makes up a name that nobody can guess, and MPI carries it to the others.
std::string meeting_place(int rank) {
  std::array<char, 64> uri{};
  if (rank == 0) {
    std::array<unsigned, 3> words{};
    std::FILE* const random = std::fopen("/dev/urandom", "rb");
    if (random == nullptr || std::fread(words.data(), sizeof(words), 1, random) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
    std::fclose(random);
    std::snprintf(uri.data(), uri.size(), "local://moebus-%08x%08x%08x", words[0], words[1], words[2]);
  }
  MPI_Bcast(uri.data(), static_cast<int>(uri.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  return uri.data();
}

int run(cli::BenchOptions options, int iterations) {
  int rank = 0;
  int num_ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  cli::complete(options);
  if (exchange_config(options).combine_dtype != DType::bf16 || options.has_cast) {
    throw cli::UsageError("--dtype: the exchange over MPI knows bf16 and given fp8 rows");
  }
  const cli::Machine machine = cli::look_at_machine();
  const cli::BenchSetup setup = cli::make_setup(options, num_ranks, machine, machine.cores);
  const Group group = Group::join(meeting_place(rank), rank, num_ranks);
  const Json rows = Run(setup, rank, group).run(iterations);
  if (rank != 0) return 0;
  const Json report{{"command", fmt::format("bench/peers, {} ranks", num_ranks)},
                    {"version", std::string(version())},
                    {"mpi", mpi_name()},
                    {"machine", cli::machine_json(machine)},
                    {"iterations", iterations},
                    {"rows", rows}};
  std::printf("%s\n", report.dump(2).c_str());
  return 0;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Times moebus and an exchange over MPI in turn; run it under mpirun", "moebus_peers");
  cli::BenchOptions options;
  int iterations = 200;
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1, 1 << 16));
  app.add_option("--hidden", options.hidden);
  app.add_option("--topk", options.topk)->check(CLI::Range(1, kMaxTopk));
  app.add_option("--experts", options.experts);
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--path", options.path)->check(CLI::IsMember({"latency", "throughput"}));
  app.add_option("--routing", options.routing);
  app.add_option("--seed", options.seed);
  app.add_option("--iterations", iterations)->check(CLI::Range(1, 1'000'000));
  try {
    app.parse(argc, argv);
    return run(options, iterations);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : cli::kUsage;
  }
}

}  // namespace

}  // namespace moebus::peers

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 0;
  try {
    status = moebus::peers::parse_and_run(argc, argv);
  } catch (const moebus::cli::Mismatch& mismatch) {
    std::fprintf(stderr, "moebus_peers: %s\n", mismatch.what());
    status = 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moebus_peers: %s\n", error.what());
    status = 2;
  }
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);  // or the others wait for this rank
  MPI_Finalize();
  return 0;
}
