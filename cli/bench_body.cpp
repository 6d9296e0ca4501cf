#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.hpp"
#include "cli/overlap.hpp"
#include "cli/samples.hpp"
#include "moebus/info.hpp"

namespace moebus::cli {

namespace {

using Json = nlohmann::ordered_json;

// A library copy slower than this part of the best copy here would flatter every ratio: then none is given.
constexpr double kTrustedCopy = 0.9;
constexpr double kFloorShare = 0.1;  // of the time asked for, for each way to copy, before and again after
constexpr double kMinIterations = 10;
constexpr double kMaxIterations = 1e6;

// All times of one phase; index = iteration.
struct PhaseTimes {
  std::vector<double> dispatch;
  std::vector<double> experts;
  std::vector<double> combine;
  std::vector<double> whole;

  void add(const CallTimes& times) {
    dispatch.push_back(times.dispatch);
    experts.push_back(times.experts);
    combine.push_back(times.combine);
    whole.push_back(times.dispatch + times.experts + times.combine);
  }
};

// The same calls on a group that maps whom it can.
struct Mapped {
  Group group;
  BenchRank bench;
  std::vector<double> times{};

  Mapped(const BenchSetup& setup, const Seat& seat)
      : group(Group::join(
            seat.uri + "-mapped", seat.rank, seat.num_ranks, group_options(setup, seat.rank, MapPeers::reachable))),
        bench(setup, group) {}
};

struct FloorTimes {
  double library_us = 0;
  double best_us = 0;
  std::string best;
  double bytes = 0;

  [[nodiscard]] bool is_trusted() const { return library_us > 0 && library_us * kTrustedCopy <= best_us; }
};

class Body {
 public:
  Body(const BenchSetup& setup, const BenchTruth& truth, const FloorWindows& windows, const Seat& seat)
      : setup_(setup),
        truth_(truth),
        windows_(windows),
        seat_(seat),
        is_pinned_(pin_to_core(seat.rank, seat.num_ranks)),
        group_(Group::join(
            seat.uri, seat.rank, seat.num_ranks, group_options(setup, seat.rank, map_peers_of(setup.options)))),
        bench_(setup, group_),
        gather_(group_),
        counts_(count_rows(setup, seat.rank)),
        floor_(setup, seat.rank, windows, counts_),
        progress_(seat.rank == 0 && !setup.options.has_json) {}

  std::string run() {
    if (setup_.options.compares_map) mapped_ = std::make_unique<Mapped>(setup_, seat_);
    if (setup_.options.has_overlap) overlap_ = std::make_unique<Overlap>(setup_, group_, bench_);
    bench_.load_first(truth_);
    if (mapped_) mapped_->bench.load_first(truth_);
    first_calls();
    if (!mismatches_.empty()) return Json{{"verified", false}, {"mismatches", mismatches_}}.dump();
    bench_.load_others();
    if (mapped_) mapped_->bench.load_others();
    const int iterations = choose_iterations();
    measure_flag();
    measure_floors();
    timed_calls(iterations);
    measure_floors();
    if (overlap_) measure_overlap(iterations);
    return report(iterations);
  }

 private:
  [[nodiscard]] bool has_combine() const { return setup_.options.kind != BenchKind::dispatch; }

  // Rows between nodes that stop at gateways have no floor: it knows straight ways only.
  [[nodiscard]] bool has_floor() const { return !oracle::has_gateways(truth_.dispatched.front()); }

  void first_calls() {
    progress_.show("verifying", 0, 1);
    gather_.barrier();
    bench_.exchange().reset_stats();
    first_us_ = bench_.time_of(bench_.call(0));
    std::optional<std::string> found = first_difference();
    bench_.finish();  // gathering takes the memory that a result holds
    collect(found);
    if (mapped_) {
      mapped_->bench.call(0);
      found = mapped_->bench.difference(truth_);
      mapped_->bench.finish();
      collect(found);
    }
    if (overlap_) collect(overlap_->difference(truth_));
    if (!mismatches_.empty()) return;
    gather_.barrier();
    second_us_ = bench_.time_of(bench_.call(0));
    bench_.finish();
  }

  // Of results, or of what was sent for them.
  [[nodiscard]] std::optional<std::string> first_difference() const {
    if (auto found = bench_.difference(truth_)) return found;
    return cases::traffic_difference(bench_.exchange().stats(), seat_.rank, truth_.least.front(), true);
  }

  // Collective.
  void collect(const std::optional<std::string>& difference) {
    for (std::string& text : gather_.texts(difference.value_or(""))) {
      if (!text.empty()) mismatches_.push_back(std::move(text));
    }
  }

  int choose_iterations() {
    if (setup_.options.iterations) return *setup_.options.iterations;
    double total_us = 0;
    const int rounds = 2 * std::min(setup_.num_sets, 4);
    for (int i = 0; i < rounds; ++i) {
      const CallTimes times = bench_.call(i % setup_.num_sets);
      bench_.finish();
      total_us += times.dispatch + times.experts + times.combine;
    }
    std::vector<double> wanted{setup_.options.time_s * 1e6 * rounds / std::max(total_us, 1.0)};
    gather_.maximum(wanted);  // ranks must agree on the number
    return static_cast<int>(std::clamp(wanted[0], kMinIterations, kMaxIterations));
  }

  void timed_calls(int iterations) {
    gather_.barrier();
    bench_.exchange().reset_stats();
    for (int i = 0; i < iterations; ++i) {
      const int set = i % setup_.num_sets;
      times_.add(bench_.call(set));
      bench_.finish();
      if (mapped_) {
        mapped_->times.push_back(mapped_->bench.time_of(mapped_->bench.call(set)));
        mapped_->bench.finish();
      }
      progress_.show("timing", i + 1, iterations);
    }
    stats_ = bench_.exchange().stats();
  }

  void measure_overlap(int iterations) {
    progress_.show("overlap", 0, 1);
    // Three ways each round; together they may take as long as the calls before.
    const int rounds =
        setup_.options.iterations ? iterations : std::max(static_cast<int>(kMinIterations), iterations / 3);
    overlap_->measure(rounds, gather_);
  }

  // Only where two ranks spin on cores of their own.
  void measure_flag() {
    if (!is_pinned_ || seat_.num_ranks < 2 || !windows_.is_shared()) return;
    gather_.barrier();
    if (seat_.rank < 2) flag_us_ = flag_round_trip_us(seat_.rank, windows_);
    gather_.barrier();
  }

  // Passes of both calls take turns where the bench does so: each finds in the caches what the other left there.
  void measure_floors() {
    if (!has_floor()) return;
    for (std::size_t c = 0; c < copiers().size(); ++c) {
      progress_.show("copies for the floor", static_cast<int>(c), static_cast<int>(copiers().size()));
      // Waiting for one another is no part of a floor, but of the time that measuring it may take.
      const auto start = std::chrono::steady_clock::now();
      for (int set = 0; set < setup_.num_sets; ++set)
        floor_pass(set, copiers()[c], nullptr);  // touches everything once
      const std::chrono::duration<double> once = std::chrono::steady_clock::now() - start;
      std::vector<double> wanted{kFloorShare * setup_.options.time_s * setup_.num_sets / std::max(once.count(), 1e-6)};
      gather_.maximum(wanted);
      const int passes = static_cast<int>(std::clamp(wanted[0], kMinIterations, 2000.0));
      for (int i = 0; i < passes; ++i) floor_pass(i % setup_.num_sets, copiers()[c], &c);
    }
  }

  // `sample`: the copier's index, or null for a pass that does not count.
  void floor_pass(int set, const Copier& copier, const std::size_t* sample) {
    const std::function<void()> barrier = [this] { gather_.barrier(); };
    const auto index = static_cast<std::size_t>(set);
    if (setup_.options.kind != BenchKind::combine) {
      const double time = floor_.pass_us(floor_.dispatch()[index], copier, barrier);
      if (sample != nullptr) dispatch_floor_[*sample].push_back(time);
    }
    if (!has_combine()) return;
    const double time = floor_.pass_us(floor_.combine()[index], copier, barrier);
    if (sample != nullptr) combine_floor_[*sample].push_back(time);
  }

  FloorTimes floor_of(std::array<std::vector<double>, 3>& samples, const std::vector<CopyPlan>& plans) {
    FloorTimes times;
    for (std::size_t c = 0; c < copiers().size(); ++c) {
      gather_.maximum(samples[c]);
      // Where ranks outnumber cores, a core has to make the copies of several ranks.
      const double median = summarise(samples[c]).median * setup_.ranks_per_core;
      if (c == 0) times.library_us = median;
      if (c > 0 && !times.best.empty() && median >= times.best_us) continue;
      times.best_us = median;
      times.best = copiers()[c].name;
    }
    for (const CopyPlan& plan : plans) times.bytes += bytes_written(plan) / static_cast<double>(plans.size());
    return times;
  }

  // One rank's bytes in all timed calls of a phase.
  struct PhaseBytes {
    PhaseLinks links;
    double control = 0;
  };

  // Makes one phase's entry; collective, since every figure is that of the rank where it is largest, or of all
  // together.
  Json phase(std::vector<double>& samples, const PhaseBytes& total, const std::vector<FloorTimes>& floors) {
    const auto calls = static_cast<double>(samples.size());
    const PhaseLinks& links = total.links;
    std::vector<double> per_call{links.all.sent / calls, links.all.least / calls, total.control / calls};
    gather_.maximum(per_call);
    std::vector<double> together{links.between_nodes.sent / calls,
                                 links.between_nodes.least / calls,
                                 links.inside_nodes.sent / calls,
                                 links.inside_nodes.least / calls};
    gather_.sum(together);
    gather_.maximum(samples);
    const Summary summary = summarise(samples);
    Json entry{{"median_us", summary.median},
               {"p99_us", summary.p99},
               {"min_us", summary.min},
               {"max_us", summary.max},
               {"bytes_sent", per_call[0]},
               {"bytes_minimum", per_call[1]},
               {"bytes_control", per_call[2]},
               {"between_nodes", {{"bytes_sent", together[0]}, {"bytes_minimum", together[1]}}},
               {"inside_nodes", {{"bytes_sent", together[2]}, {"bytes_minimum", together[3]}}},
               {"floor_us", nullptr},
               {"ratio_to_floor", nullptr}};
    double floor_us = 0;
    bool is_trusted = !floors.empty();
    for (const FloorTimes& floor : floors) {
      if (!has_floor()) break;
      floor_us += floor.library_us;
      is_trusted = is_trusted && floor.is_trusted();
    }
    if (!floors.empty() && has_floor()) entry["floor_us"] = floor_us;
    if (is_trusted && floor_us > 0) entry["ratio_to_floor"] = summary.median / floor_us;
    return entry;
  }

  static Json copy_entry(const FloorTimes& floor) {
    return Json{{"library_gbps", floor.library_us > 0 ? floor.bytes / floor.library_us / 1e3 : 0},
                {"best_gbps", floor.best_us > 0 ? floor.bytes / floor.best_us / 1e3 : 0},
                {"best_copy", floor.best},
                {"is_trusted", floor.is_trusted()}};
  }

  // The calls of the mapped group, and how many times slower the others were.
  Json mapped_entry() {
    std::vector<double> own;
    for (std::size_t i = 0; i < times_.whole.size(); ++i) {
      own.push_back(bench_.time_of({times_.dispatch[i], times_.experts[i], times_.combine[i]}));
    }
    gather_.maximum(own);
    gather_.maximum(mapped_->times);
    const Summary here = summarise(own);
    const Summary mapped = summarise(mapped_->times);
    return Json{{"median_us", mapped.median},
                {"p99_us", mapped.p99},
                {"min_us", mapped.min},
                {"max_us", mapped.max},
                {"ratio_of_medians", here.median / mapped.median},
                {"ratio_of_minima", here.min / mapped.min}};
  }

  std::string report(int iterations) {
    const FloorTimes dispatch_floor = floor_of(dispatch_floor_, floor_.dispatch());
    const cases::LeastTraffic least = traffic_of_calls(truth_.least, iterations);
    const PhaseBytes out{links_of(setup_, seat_.rank, stats_.dispatch_peers, least.dispatch),
                         static_cast<double>(stats_.dispatch.bytes_control)};
    const PhaseBytes back{links_of(setup_, seat_.rank, stats_.combine_peers, least.combine),
                          static_cast<double>(stats_.combine.bytes_control)};
    const PhaseBytes both{out.links + back.links, out.control + back.control};
    const BenchKind kind = setup_.options.kind;
    Json phases = Json::object();
    Json copies = Json::object();
    if (kind != BenchKind::combine) {
      phases["dispatch"] = phase(times_.dispatch, out, {dispatch_floor});
      if (has_floor()) copies["dispatch"] = copy_entry(dispatch_floor);
    }
    if (kind == BenchKind::layer) phases["experts"] = phase(times_.experts, {}, {});
    if (has_combine()) {
      const FloorTimes combine_floor = floor_of(combine_floor_, floor_.combine());
      phases["combine"] = phase(times_.combine, back, {combine_floor});
      if (has_floor()) copies["combine"] = copy_entry(combine_floor);
      if (kind == BenchKind::exchange) phases["exchange"] = phase(times_.whole, both, {dispatch_floor, combine_floor});
      if (kind == BenchKind::layer) phases["layer"] = phase(times_.whole, both, {});
    }
    const PrepareReport& prepared = bench_.prepare_report();
    std::vector<double> slowest{first_us_,
                                second_us_,
                                prepared.agree_us / 1e3,
                                prepared.allocate_us / 1e3,
                                prepared.map_us / 1e3,
                                prepared.warm_up_us / 1e3};
    gather_.maximum(slowest);
    Json result{
        {"verified", true},
        {"first_call_us", slowest[0]},
        {"second_call_us", slowest[1]},
        {"prepare_ms", {{"agree", slowest[2]}, {"allocate", slowest[3]}, {"map", slowest[4]}, {"warm_up", slowest[5]}}},
        {"registered_bytes", bench_.exchange().bytes_needed().registered},
        {"iterations", iterations},
        {"transport", std::string(group_.transport())},
        {"is_pinned", is_pinned_},
        {"copies", copies},
        {"phases", phases},
        {"flag_round_trip_us", nullptr}};
    if (mapped_) result["mapped"] = mapped_entry();
    if (overlap_) result["overlap"] = overlap_->report(gather_);
    if (flag_us_ > 0) result["flag_round_trip_us"] = flag_us_;
    progress_.clear();
    return result.dump();
  }

  const BenchSetup& setup_;
  const BenchTruth& truth_;
  const FloorWindows& windows_;
  const Seat& seat_;
  bool is_pinned_;
  Group group_;
  BenchRank bench_;
  std::unique_ptr<Mapped> mapped_{};
  std::unique_ptr<Overlap> overlap_{};
  Gather gather_;
  std::vector<RowCounts> counts_;
  Floor floor_;
  Progress progress_;
  std::vector<std::string> mismatches_;
  double first_us_ = 0;
  double second_us_ = 0;
  double flag_us_ = 0;
  PhaseTimes times_;
  ExchangeStats stats_;
  std::array<std::vector<double>, 3> dispatch_floor_;  // index = copier, of which there may be fewer
  std::array<std::vector<double>, 3> combine_floor_;
};

}  // namespace

std::string bench_body(const BenchSetup& setup,
                       const BenchTruth& truth,
                       const FloorWindows& windows,
                       const Seat& seat) {
  return Body(setup, truth, windows, seat).run();
}

}  // namespace moebus::cli
