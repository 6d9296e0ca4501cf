// Whatever a peer wrote into the control blocks: words, headers and notes are read without leaving their place.

#include <limits>

#include "sync/control_block.hpp"
#include "sync/signal_word.hpp"
#include "tests/fuzz/fuzz_input.hpp"

namespace moebus::sync {
namespace {

void check_words(Word word, std::uint32_t epoch) {
  const Standstill standstill = decode_standstill(word);
  MOEBUS_ASSERT(offset_of(standstill.word) + sizeof(Word) <= sizeof(ContextBlock));
  MOEBUS_ASSERT(offset_of(standstill.word) % sizeof(Word) == 0);
  // Reading is the inverse of writing for all that a rank can have written.
  const Standstill back = decode_standstill(encode(standstill));
  MOEBUS_ASSERT(back.word == standstill.word && back.context == standstill.context && back.count == standstill.count);
  const Abort abort = decode_abort(word);
  const Abort same = decode_abort(encode(abort));
  MOEBUS_ASSERT(same.generation == abort.generation && same.epoch == abort.epoch && same.culprit == abort.culprit &&
                same.code == abort.code);
  // What has come so far has come at every earlier call too, as far back as epochs are told apart.
  const auto generation = static_cast<std::uint8_t>(word >> 56);
  const auto told = static_cast<std::uint32_t>(word >> 24);
  if (has_reached(word, generation, epoch) && epochs_ahead(told, epoch) < std::numeric_limits<std::int32_t>::max()) {
    MOEBUS_ASSERT(has_reached(word, generation, epoch - 1));
  }
}

void check_note(const CallHeader& header) {
  const std::string_view text = header.refusal.view();
  MOEBUS_ASSERT(text.size() <= kNoteBytes);
  Note copy;
  copy.set(text);
  MOEBUS_ASSERT(copy.view().size() == std::min(text.size(), kNoteBytes - 1));
  MOEBUS_ASSERT(text.starts_with(copy.view()));
  MOEBUS_ASSERT(offset_of_header(header.epoch, static_cast<int>(header.epoch % kMaxRanks)) + sizeof(CallHeader) <=
                sizeof(ContextBlock));
}

}  // namespace
}  // namespace moebus::sync

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  using namespace moebus::sync;
  moebus::fuzz::FuzzInput input(bytes, num_bytes);
  check_words(input.take<Word>(), input.take<std::uint32_t>());
  CallHeader header;
  header.epoch = input.take<std::uint32_t>();
  const std::string_view text = input.text(kNoteBytes);
  std::copy(text.begin(), text.end(), header.refusal.text.begin());
  check_note(header);
  return 0;
}
