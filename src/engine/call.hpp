// Call: one turn of a context, what ranks say of it, and calls that were posted and not waited for yet.
// Room: engine · host.

#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "moebus/error.hpp"
#include "sync/control_block.hpp"
#include "sync/signal_word.hpp"

namespace moebus::engine {

/// Why a rank will not carry out a call: an argument error found before anything was sent.
struct Refusal {
  ErrorCode code = ErrorCode::invalid_argument;
  std::string text;
};

/// One call of a context: taken by every rank in the same order.
struct Call {
  std::uint32_t epoch = 0;
  sync::Operation operation = sync::Operation::none;
  std::uint64_t digest = 0;
  bool is_refused = false;   ///< by this rank, which then may not know the digest
  bool sends_ahead = false;  ///< rows leave before anyone's arrival was waited for
};

/// Returns the error code that a peer wrote; what is none becomes `internal`.
[[nodiscard]] constexpr ErrorCode error_code_of(std::uint8_t code) noexcept {
  const bool is_known = code >= static_cast<std::uint8_t>(ErrorCode::invalid_argument) &&
                        code <= static_cast<std::uint8_t>(ErrorCode::internal);
  return is_known ? static_cast<ErrorCode>(code) : ErrorCode::internal;
}

/// Returns an operation's name for messages.
[[nodiscard]] std::string_view to_string(sync::Operation operation) noexcept;

/// A call that was posted. Its exchange owns it; group and context know it until it is collected.
class OpenCall {
 public:
  OpenCall() noexcept = default;
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  [[nodiscard]] bool is_done() const noexcept { return is_done_; }

  /// Carries the call to its end; what it throws is kept for collect().
  void complete() noexcept {
    if (is_done_) return;
    try {
      finish();
    } catch (...) {
      failure_ = std::current_exception();
    }
    is_done_ = true;
  }

  /// Ends the call before it began in earnest: `failure` is what wait() throws.
  void fail(std::exception_ptr failure) noexcept {
    failure_ = std::move(failure);
    is_done_ = true;
  }

  /// Throws what completing threw.
  void rethrow() {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 protected:
  ~OpenCall() = default;

  /// Makes the object ready for another call.
  void renew() noexcept {
    is_done_ = false;
    failure_ = nullptr;
  }

 private:
  virtual void finish() = 0;

  bool is_done_ = false;
  std::exception_ptr failure_;
};

}  // namespace moebus::engine
