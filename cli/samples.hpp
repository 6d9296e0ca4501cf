// Samples: measured times, and the few figures that are said of them.
// Room: cli · host.

#pragma once

#include <cstddef>
#include <span>

namespace moebus::cli {

/// What is said of a set of measured times, in the unit of the samples.
struct Summary {
  std::size_t count = 0;
  double median = 0;
  double p99 = 0;
  double min = 0;
  double max = 0;
};

/// Summarises samples; all zero where there are none. Percentiles are by nearest rank, so each figure is one that was
/// measured.
Summary summarise(std::span<const double> samples);

}  // namespace moebus::cli
