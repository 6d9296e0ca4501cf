#include "backend/cpu/backend_cpu.hpp"

#include <algorithm>
#include <string>

#include "backend/cpu/copy.hpp"
#include "backend/cpu/float_mode.hpp"
#include "backend/cpu/processor.hpp"
#include "backend/cpu/products.hpp"
#include "backend/cpu/rows.hpp"
#include "backend/cpu/sum.hpp"
#include "moebus/error.hpp"

namespace moebus::backend {

namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(SimdLevel level) noexcept : level_(level), kernels_(kernels_of(level)) {}

  std::string_view name() const noexcept override { return "cpu"; }

  std::string_view level() const noexcept override { return to_string(level_); }

  Stores stores_for(std::size_t call_bytes) const noexcept override {
    return is_worth_streaming(kernels_, call_bytes) ? Stores::streamed : Stores::cached;
  }

  void place(const model::DispatchRowFormat& format,
             const ConstRowArrays& source,
             const RowArrays& sink,
             std::span<const RowMove> moves,
             Stores stores) noexcept override {
    if (format.cast == Cast::none) return copy_rows(format, source, sink, moves, stores);
    const BatchWay way{kernels_, can_stream(stores)};
    const DefaultFloatMode mode;
    for (std::size_t m = 0; m < moves.size(); ++m) {
      const std::byte* const next = parts_of_row(format, source, moves[following(moves, m)].src).tokens;
      cast_row(way, format, parts_of_row(format, source, moves[m].src), parts_of_row(format, sink, moves[m].dst), next);
    }
    if (way.is_streamed) fence_streams();
  }

  void copy_rows(const model::DispatchRowFormat& format,
                 const ConstRowArrays& source,
                 const RowArrays& sink,
                 std::span<const RowMove> moves,
                 Stores stores) noexcept override {
    const BatchWay way{kernels_, can_stream(stores)};
    const bool is_dense = has_no_gaps(format, source) && has_no_gaps(format, sink);
    for (std::size_t m = 0; m < moves.size();) {
      // Neighbours without gaps are one long copy: the processor moves whole lines then and need not read what it
      // overwrites.
      const std::size_t num = is_dense ? run_of_neighbours(moves.subspan(m)) : 1;
      const std::size_t next = std::min(m + num, moves.size() - 1);
      copy_run(way,
               format,
               parts_of_row(format, source, moves[m].src),
               parts_of_row(format, sink, moves[m].dst),
               num,
               parts_of_row(format, source, moves[next].src).tokens);
      m += num;
    }
    if (way.is_streamed) fence_streams();
  }

  void copy_slots(const std::byte* source,
                  std::int64_t source_stride_bytes,
                  std::byte* sink,
                  std::int64_t sink_stride_bytes,
                  std::size_t content_bytes,
                  std::span<const RowMove> moves,
                  Stores stores) noexcept override {
    const bool is_streamed = can_stream(stores);
    const auto content = static_cast<std::int64_t>(content_bytes);
    const bool is_dense = source_stride_bytes == content && sink_stride_bytes == content;
    for (std::size_t m = 0; m < moves.size();) {
      // Neighbours without gaps are one long copy.
      const std::size_t num = is_dense ? run_of_neighbours(moves.subspan(m)) : 1;
      const std::size_t next = std::min(m + num, moves.size() - 1);
      const std::byte* const from = source + moves[m].src * source_stride_bytes;
      std::byte* const to = sink + moves[m].dst * sink_stride_bytes;
      if (is_streamed) {
        copy_streamed(kernels_, to, from, num * content_bytes, source + moves[next].src * source_stride_bytes);
      } else {
        copy_cached(to, from, num * content_bytes);
      }
      m += num;
    }
    if (is_streamed) fence_streams();
  }

  void zero_rows(const model::DispatchRowFormat& format,
                 const RowArrays& sink,
                 std::int64_t first,
                 std::int64_t count) noexcept override {
    for (std::int64_t r = first; r < first + count; ++r) zero_row(format, parts_of_row(format, sink, r));
  }

  void copy_bytes(std::byte* sink, const std::byte* source, std::size_t size_bytes) noexcept override {
    copy_cached(sink, source, size_bytes);
  }

  void sum(const SumJob& job) noexcept override {
    const DefaultFloatMode mode;
    sum_rows(kernels_, job);
  }

  void scale_rows(const ScaleJob& job) noexcept override {
    const DefaultFloatMode mode;
    backend::scale_rows(kernels_, job);
  }

  void dot_rows(const DotJob& job) noexcept override {
    const DefaultFloatMode mode;
    backend::dot_rows(kernels_, job);
  }

 private:
  /// The scalar level has no kernel that streams.
  [[nodiscard]] bool can_stream(Stores stores) const noexcept {
    return kCanStream && stores == Stores::streamed && kernels_.copy_lines != nullptr;
  }

  /// Returns how many moves from the first on go from neighbour to neighbour.
  static std::size_t run_of_neighbours(std::span<const RowMove> moves) noexcept {
    std::size_t num = 1;
    while (num < moves.size() && moves[num].src == moves[num - 1].src + 1 && moves[num].dst == moves[num - 1].dst + 1) {
      ++num;
    }
    return num;
  }

  /// Returns the move after `m`, the last one for itself.
  static std::size_t following(std::span<const RowMove> moves, std::size_t m) noexcept {
    return m + 1 < moves.size() ? m + 1 : m;
  }

  SimdLevel level_;
  Kernels kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(SimdLevel level) {
  if (!has_simd_level(level)) {
    throw Error(ErrorCode::unsupported,
                "level " + std::string(to_string(level)) +
                    ": this CPU lacks it; ask has_simd_level(), or leave the argument out for the best it has.");
  }
  return std::make_unique<CpuBackend>(level);
}

}  // namespace moebus::backend
