#include "backend/cpu/sum.hpp"

#include "backend/cpu/copy.hpp"

namespace moebus::backend {

namespace {

SumColumns kernel_of(const Kernels& kernels, DType dtype) noexcept {
  if (dtype == DType::bf16) return kernels.sum_bf16;
  return dtype == DType::f16 ? kernels.sum_f16 : kernels.sum_f32;
}

SumRow row_of(const SumJob& job, std::int64_t o) noexcept {
  const std::int32_t first = job.first[o];
  SumRow row{};
  row.terms = job.term + first;
  row.weights = job.weight != nullptr ? job.weight + first : nullptr;
  row.num_terms = job.first[o + 1] - first;
  for (std::size_t b = 0; b < job.bias.size(); ++b) {
    row.bias[b] = job.bias[b] != nullptr ? job.bias[b] + o * job.bias_stride_bytes[b] : nullptr;
  }
  row.output = job.output_row != nullptr ? job.output_row[o] : job.output + o * job.output_stride_bytes;
  row.columns = job.hidden;
  return row;
}

/// Hints at the start of every term of output o.
void read_terms_soon(const SumJob& job, std::int64_t o) noexcept {
  for (std::int32_t t = job.first[o]; t < job.first[o + 1]; ++t) read_soon(job.term[t], kReadAheadBytes);
}

}  // namespace

void sum_rows(const Kernels& kernels, const SumJob& job) noexcept {
  const SumColumns kernel = kernel_of(kernels, job.dtype);
  const bool can_stream = kCanStream && kernel != nullptr && job.stores == Stores::streamed;
  for (std::int64_t o = 0; o < job.num_outputs; ++o) {
    SumRow row = row_of(job, o);
    if (o + 1 < job.num_outputs) read_terms_soon(job, o + 1);
    row.is_streamed = can_stream && is_line_aligned(row.output);
    const int begin = kernel != nullptr ? kernel(row, 0) : 0;
    if (begin < row.columns) sum_columns_scalar(job.dtype, row, begin);
  }
  if (can_stream) fence_streams();
}

}  // namespace moebus::backend
