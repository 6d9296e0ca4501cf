// Products: rows times a factor, and dot products of rows, by the kernels of one instruction set; columns that fill no
// vector by the scalar code. Room: backend/cpu · host.

#pragma once

#include "backend/backend.hpp"
#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

void scale_rows(const Kernels& kernels, const ScaleJob& job) noexcept;

void dot_rows(const Kernels& kernels, const DotJob& job) noexcept;

}  // namespace moebus::backend
