// What backend.hpp promises of rows that are added and multiplied, for every backend and level that this machine runs.

#include "tests/contract/backend_contract.hpp"

namespace moebus::backend {
namespace {

/// A job of random rows, and what it must give.
class Sums {
 public:
  Sums(DType dtype, int hidden, std::int32_t num_outputs, bool is_weighted, int num_biases, std::mt19937& random)
      : dtype_(dtype),
        row_bytes_(static_cast<std::size_t>(hidden) * size_of(dtype)),
        output_(static_cast<std::size_t>(num_outputs) * row_bytes_) {
    std::vector<std::int32_t> counts;
    for (std::int32_t o = 0; o < num_outputs; ++o) {
      counts.push_back(static_cast<std::int32_t>(random() % 5));
      first_.push_back(first_.back() + counts.back());
    }
    const auto num_terms = static_cast<std::size_t>(first_.back());
    rows_.resize((num_terms + 2 * static_cast<std::size_t>(num_outputs)) * row_bytes_);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < rows_.size() / size_of(dtype); ++i) store(rows_.data(), i, normal(random));
    for (std::size_t t = 0; t < num_terms; ++t) {
      terms_.push_back(random() % 6 == 0 ? nullptr : rows_.data() + t * row_bytes_);
      weights_.push_back(normal(random));
    }
    job_ = {
        .dtype = dtype, .hidden = hidden, .num_outputs = num_outputs, .first = first_.data(), .term = terms_.data()};
    if (is_weighted) job_.weight = weights_.data();
    for (std::size_t b = 0; b < static_cast<std::size_t>(num_biases); ++b) {
      job_.bias[b] = rows_.data() + (num_terms + b * static_cast<std::size_t>(num_outputs)) * row_bytes_;
      job_.bias_stride_bytes[b] = static_cast<std::int64_t>(row_bytes_);
    }
    job_.output = output_.begin();
    job_.output_stride_bytes = static_cast<std::int64_t>(row_bytes_);
  }

  SumJob& job() { return job_; }

  Guarded& output() { return output_; }

  std::size_t row_bytes() const { return row_bytes_; }

  /// The sum of output o, column c, straight from the sentence in SumJob.
  std::uint32_t expected(std::int64_t o, int c) const {
    float acc = job_.bias[0] != nullptr ? load(job_.bias[0] + o * job_.bias_stride_bytes[0], c) : 0.0F;
    if (job_.bias[1] != nullptr) acc += load(job_.bias[1] + o * job_.bias_stride_bytes[1], c);
    for (std::int32_t t = job_.first[o]; t < job_.first[o + 1]; ++t) {
      if (job_.term[t] == nullptr) continue;
      const float term = load(job_.term[t], c);
      acc = job_.weight != nullptr ? std::fma(job_.weight[t], term, acc) : acc + term;
    }
    if (dtype_ == DType::bf16) return model::bf16_from_f32(acc);
    return dtype_ == DType::f16 ? model::f16_from_f32(acc) : model::bits_of(model::canonical_f32(acc));
  }

  std::uint32_t seen(const std::byte* row, int c) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, row + static_cast<std::size_t>(c) * size_of(dtype_), size_of(dtype_));
    return bits;
  }

 private:
  float load(const std::byte* row, int c) const {
    const std::uint32_t bits = seen(row, c);
    if (dtype_ == DType::bf16) return model::f32_from_bf16(static_cast<std::uint16_t>(bits));
    return dtype_ == DType::f16 ? model::f32_from_f16(static_cast<std::uint16_t>(bits)) : model::float_of(bits);
  }

  void store(std::byte* rows, std::size_t i, float value) const {
    const std::uint32_t bits = dtype_ == DType::bf16  ? model::bf16_from_f32(value)
                               : dtype_ == DType::f16 ? model::f16_from_f32(value)
                                                      : model::bits_of(value);
    std::memcpy(rows + i * size_of(dtype_), &bits, size_of(dtype_));
  }

  DType dtype_;
  std::size_t row_bytes_;
  std::vector<std::int32_t> first_{0};
  std::vector<std::byte> rows_;
  std::vector<const std::byte*> terms_;
  std::vector<float> weights_;
  Guarded output_;
  SumJob job_;
};

TEST_P(BackendContract, SumsInTheGivenOrderWithOneRounding) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int hidden : {1, 7, 64, 2880}) {
      for (const bool is_weighted : {true, false}) {
        for (int num_biases = 0; num_biases <= 2; ++num_biases) {
          // The widest rows are enough to go past the caches.
          const std::int32_t num = hidden == 2880 && num_biases == 1 ? 200 : 12;
          Sums sums(dtype, hidden, num, is_weighted, num_biases, random_);
          sums.job().stores = stores_;
          backend_->sum(sums.job());
          for (std::int32_t o = 0; o < num; ++o) {
            const std::byte* const row = sums.output().begin() + static_cast<std::size_t>(o) * sums.row_bytes();
            for (int c = 0; c < hidden; ++c) {
              ASSERT_EQ(sums.seen(row, c), sums.expected(o, c))
                  << to_string(dtype) << " output " << o << " column " << c;
            }
          }
          EXPECT_TRUE(sums.output().is_whole());
        }
      }
    }
  }
}

TEST_P(BackendContract, SumsIntoTheRowsOfAListWhenOneIsGiven) {
  Sums sums(DType::bf16, 300, 6, true, 0, random_);
  std::vector<std::byte*> rows;
  for (std::size_t o = 0; o < 6; ++o) rows.push_back(sums.output().begin() + (5 - o) * sums.row_bytes());
  sums.job().output_row = rows.data();
  sums.job().output = nullptr;
  sums.job().stores = stores_;
  backend_->sum(sums.job());
  for (std::int32_t o = 0; o < 6; ++o) {
    for (int c = 0; c < 300; ++c) ASSERT_EQ(sums.seen(rows[static_cast<std::size_t>(o)], c), sums.expected(o, c));
  }
  EXPECT_TRUE(sums.output().is_whole());
}

TEST_P(BackendContract, AddsInFloat32SoThatSmallPartsAreNotLost) {
  constexpr int kHidden = 128;
  std::vector<std::uint16_t> rows(8 * kHidden, model::bf16_from_f32(1.0F));
  std::fill(rows.begin(), rows.begin() + kHidden, model::bf16_from_f32(256.0F));
  std::vector<const std::byte*> terms;
  for (std::size_t t = 0; t < 8; ++t) terms.push_back(reinterpret_cast<const std::byte*>(&rows[t * kHidden]));
  const std::array<std::int32_t, 2> first{0, 8};
  const std::vector<float> weights(8, 1.0F);
  std::vector<std::uint16_t> output(kHidden);
  SumJob job{
      .hidden = kHidden, .num_outputs = 1, .first = first.data(), .term = terms.data(), .weight = weights.data()};
  job.output = reinterpret_cast<std::byte*>(output.data());
  backend_->sum(job);
  EXPECT_THAT(output, testing::Each(model::bf16_from_f32(264.0F)));
}

TEST_P(BackendContract, GivesPlusZeroWithoutTermsAndForMinusZeroAlone) {
  constexpr int kHidden = 40;
  const std::vector<std::uint16_t> minus_zero(kHidden, 0x8000);
  const auto* const term = reinterpret_cast<const std::byte*>(minus_zero.data());
  const std::array<std::int32_t, 3> first{0, 0, 1};
  std::vector<std::uint16_t> output(2 * kHidden, 0x5A5A);
  SumJob job{.hidden = kHidden, .num_outputs = 2, .first = first.data(), .term = &term};
  job.output = reinterpret_cast<std::byte*>(output.data());
  job.output_stride_bytes = kHidden * 2;
  backend_->sum(job);
  EXPECT_THAT(output, testing::Each(0));
}

/// Rows of one summable type with a gap behind each; the values are known as floats, exactly.
class FloatRows {
 public:
  FloatRows(DType dtype, int hidden, std::int32_t num_rows, std::mt19937& random)
      : dtype_(dtype),
        hidden_(hidden),
        stride_(static_cast<std::size_t>(hidden) * size_of(dtype) + 6),
        memory_(static_cast<std::size_t>(num_rows) * stride_) {
    memory_.fill(std::byte{0x5A});
    std::normal_distribution<float> normal;
    for (std::int32_t r = 0; r < num_rows; ++r) {
      for (int c = 0; c < hidden; ++c) {
        const std::uint32_t bits = rounded(normal(random));
        std::memcpy(element(r, c), &bits, size_of(dtype));
      }
    }
  }

  std::uint32_t rounded(float value) const {
    if (dtype_ == DType::bf16) return model::bf16_from_f32(value);
    return dtype_ == DType::f16 ? model::f16_from_f32(value) : model::bits_of(model::canonical_f32(value));
  }

  std::uint32_t bits(std::int32_t r, int c) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, element(r, c), size_of(dtype_));
    return bits;
  }

  float value(std::int32_t r, int c) {
    const std::uint32_t pattern = bits(r, c);
    if (dtype_ == DType::bf16) return model::f32_from_bf16(static_cast<std::uint16_t>(pattern));
    return dtype_ == DType::f16 ? model::f32_from_f16(static_cast<std::uint16_t>(pattern)) : model::float_of(pattern);
  }

  std::byte* rows() { return memory_.begin(); }

  std::int64_t stride_bytes() const { return static_cast<std::int64_t>(stride_); }

  /// True if nothing was written behind row `r`.
  bool is_gap_whole(std::int32_t r) {
    const std::byte* const gap = element(r, hidden_);
    return memory_.is_whole() && std::all_of(gap, gap + 6, [](std::byte b) { return b == std::byte{0x5A}; });
  }

 private:
  std::byte* element(std::int32_t r, int c) {
    return memory_.begin() + static_cast<std::size_t>(r) * stride_ + static_cast<std::size_t>(c) * size_of(dtype_);
  }

  DType dtype_;
  int hidden_;
  std::size_t stride_;
  Guarded memory_;
};

TEST_P(BackendContract, MultipliesTheRowsOfAListWithOneRoundingAndLeavesTheOthers) {
  constexpr std::int32_t kRows = 7;
  const std::vector<std::int32_t> list{5, 0, 3};
  const std::vector<float> factors{0.3F, -1.7F, 0.0F};
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int hidden : {1, 7, 64, 2881}) {
      FloatRows rows(dtype, hidden, kRows, random_);
      FloatRows before = rows;
      backend_->scale_rows({dtype, hidden, rows.rows(), rows.stride_bytes(), list, factors.data()});
      for (std::int32_t r = 0; r < kRows; ++r) {
        const auto at = std::find(list.begin(), list.end(), r);
        for (int c = 0; c < hidden; ++c) {
          const float product = at != list.end()
                                    ? factors[static_cast<std::size_t>(at - list.begin())] * before.value(r, c)
                                    : before.value(r, c);
          ASSERT_EQ(rows.bits(r, c), before.rounded(product)) << to_string(dtype) << " row " << r << " column " << c;
        }
        EXPECT_TRUE(rows.is_gap_whole(r)) << r;
      }
    }
  }
}

TEST_P(BackendContract, FormsDotProductsInTheGivenOrder) {
  const std::vector<std::int32_t> list{2, 4, 2, 0};
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int hidden : {1, 15, 16, 33, 700, 2881}) {
      FloatRows left(dtype, hidden, 5, random_);
      FloatRows right(dtype, hidden + 3, 5, random_);  // another stride
      std::vector<float> dots(list.size(), -1.0F);
      backend_->dot_rows(
          {dtype, hidden, left.rows(), left.stride_bytes(), right.rows(), right.stride_bytes(), list, dots.data()});
      for (std::size_t i = 0; i < list.size(); ++i) {
        // Written out as the sentence in DotJob says it.
        std::array<float, 16> s{};
        for (int j = 0; j < 16; ++j) {
          for (int c = j; c < hidden; c += 16) {
            s[static_cast<std::size_t>(j)] =
                std::fma(left.value(list[i], c), right.value(list[i], c), s[static_cast<std::size_t>(j)]);
          }
        }
        const float dot = (((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]))) +
                          (((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15])));
        ASSERT_EQ(model::bits_of(dots[i]), model::bits_of(dot)) << to_string(dtype) << " hidden " << hidden;
      }
    }
  }
}

}  // namespace
}  // namespace moebus::backend
