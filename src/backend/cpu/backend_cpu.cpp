#include "backend/cpu/backend_cpu.hpp"

#include <string>

#include "backend/cpu/copy.hpp"
#include "backend/cpu/float_mode.hpp"
#include "backend/cpu/kernels.hpp"
#include "backend/cpu/rows.hpp"
#include "backend/cpu/sum.hpp"
#include "moebus/error.hpp"

namespace moebus::backend {

namespace {

Kernels kernels_of(SimdLevel level) noexcept {
  switch (level) {
    case SimdLevel::scalar:
      return {};  // no kernel: everything is left over for the scalar code
    case SimdLevel::avx2:
      return {cast_groups_f32_avx2, cast_groups_ue8m0_avx2, sum_bf16_avx2, sum_f16_avx2, sum_f32_avx2};
    case SimdLevel::avx512:
      return {cast_groups_f32_avx512, cast_groups_ue8m0_avx512, sum_bf16_avx512, sum_f16_avx512, sum_f32_avx512};
  }
  return {};
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(SimdLevel level) noexcept : level_(level), kernels_(kernels_of(level)) {}

  std::string_view name() const noexcept override { return "cpu"; }

  std::string_view level() const noexcept override { return to_string(level_); }

  void pack(const model::DispatchRowFormat& format,
            const ConstRowArrays& source,
            std::byte* slots,
            std::span<const RowMove> moves) noexcept override {
    move_rows(
        format,
        moves,
        format.cast != Cast::none,
        [&](std::int32_t r) { return parts_of_row(format, source, r); },
        [&](std::int32_t i) { return parts_of_slot(format, slots, i); });
  }

  void unpack(const model::DispatchRowFormat& format,
              const std::byte* slots,
              const RowArrays& sink,
              std::span<const RowMove> moves) noexcept override {
    move_rows(
        format,
        moves,
        false,
        [&](std::int32_t i) { return parts_of_slot(format, slots, i); },
        [&](std::int32_t r) { return parts_of_row(format, sink, r); });
  }

  void place(const model::DispatchRowFormat& format,
             const ConstRowArrays& source,
             const RowArrays& sink,
             std::span<const RowMove> moves) noexcept override {
    move_rows(
        format,
        moves,
        format.cast != Cast::none,
        [&](std::int32_t r) { return parts_of_row(format, source, r); },
        [&](std::int32_t r) { return parts_of_row(format, sink, r); });
  }

  void copy_rows(const model::DispatchRowFormat& format,
                 const ConstRowArrays& source,
                 const RowArrays& sink,
                 std::span<const RowMove> moves) noexcept override {
    move_rows(
        format,
        moves,
        false,
        [&](std::int32_t r) { return parts_of_row(format, source, r); },
        [&](std::int32_t r) { return parts_of_row(format, sink, r); });
  }

  void copy_slots(const std::byte* source,
                  std::int64_t source_stride_bytes,
                  std::byte* sink,
                  std::int64_t sink_stride_bytes,
                  std::size_t content_bytes,
                  std::span<const RowMove> moves) noexcept override {
    const bool is_streamed = is_worth_streaming(moves.size() * content_bytes);
    const auto copy = is_streamed ? copy_streamed : copy_cached;
    for (const RowMove& move : moves) {
      copy(sink + move.dst * sink_stride_bytes, source + move.src * source_stride_bytes, content_bytes);
    }
    if (is_streamed) fence_streams();
  }

  void zero_rows(const model::DispatchRowFormat& format,
                 const RowArrays& sink,
                 std::int64_t first,
                 std::int64_t count) noexcept override {
    const bool is_streamed = is_worth_streaming(base::idx(count) * format.payload_bytes);
    for (std::int64_t r = first; r < first + count; ++r) zero_row(format, parts_of_row(format, sink, r), is_streamed);
    if (is_streamed) fence_streams();
  }

  void copy_bytes(std::byte* sink, const std::byte* source, std::size_t size_bytes) noexcept override {
    if (!is_worth_streaming(size_bytes)) return copy_cached(sink, source, size_bytes);
    copy_streamed(sink, source, size_bytes);
    fence_streams();
  }

  void sum(const SumJob& job) noexcept override {
    const DefaultFloatMode mode;
    sum_rows(kernels_, job);
  }

 private:
  /// Moves rows between what `source_parts` and `sink_parts` find at an index.
  template <class SourceParts, class SinkParts>
  void move_rows(const model::DispatchRowFormat& format,
                 std::span<const RowMove> moves,
                 bool is_cast,
                 SourceParts source_parts,
                 SinkParts sink_parts) const noexcept {
    const bool is_streamed = is_worth_streaming(moves.size() * format.payload_bytes);
    if (is_cast) {
      const DefaultFloatMode mode;
      for (const RowMove& move : moves) {
        cast_row(kernels_, format, source_parts(move.src), sink_parts(move.dst), is_streamed);
      }
    } else {
      for (const RowMove& move : moves) copy_row(format, source_parts(move.src), sink_parts(move.dst), is_streamed);
    }
    if (is_streamed) fence_streams();
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
