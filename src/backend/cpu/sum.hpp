// Sum: rows of a SumJob, by the kernels of one instruction set; columns that fill no vector by the scalar code.
// Room: backend/cpu · host.

#pragma once

#include "backend/backend.hpp"
#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

/// The scalar truth: sums columns [begin, row.columns). `dtype` is bf16, f16 or f32.
void sum_columns_scalar(DType dtype, const SumRow& row, int begin) noexcept;

/// Runs the whole job. Leaves no streaming store unfenced.
void sum_rows(const Kernels& kernels, const SumJob& job) noexcept;

}  // namespace moebus::backend
