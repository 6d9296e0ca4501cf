// Mapped transport: what loopback and shm share. Each rank has every peer's memory mapped, so puts are copies done at
// once; peers that may not be mapped are only hidden from the caller. Room: transport · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/region_table.hpp"
#include "transport/store.hpp"
#include "transport/transport.hpp"

namespace moebus::transport {

class MappedTransport : public Transport {
 public:
  void put(int peer, const RemoteAddress& sink, const std::byte* source, std::size_t size_bytes) noexcept override;

  void put_signal(int peer,
                  const RemoteAddress& sink,
                  const std::byte* source,
                  std::size_t size_bytes,
                  const RemoteAddress& slot,
                  sync::Word value) noexcept override;

  // Nothing is read before a signal was seen, and a signal releases every copy made before it.
  void fence(int) noexcept override {}

  [[nodiscard]] std::uint64_t num_started() const noexcept override { return num_started_; }

  [[nodiscard]] bool flush(std::uint64_t ticket, const base::Deadline& deadline) noexcept override;

  void progress() noexcept override {}

 protected:
  /// Agrees with the other ranks on who may map whom; collective, see agree_on_mapping.
  MappedTransport(Store& store, const base::Deadline& deadline, const ConnectOptions& options);

  /// Returns the next registration: `peers` [num_ranks] are the addresses here, of which the caller is shown those that
  /// it may map. They stay valid until withdrawn.
  ///
  /// Order:   collective.
  Registration publish(const base::Region& local, std::vector<std::byte*> peers);

  /// Whose memory this rank may map, [num_ranks]; the own entry is true.
  [[nodiscard]] const std::vector<bool>& may_map() const noexcept { return may_map_; }

  /// Puts to this registration go nowhere from now on.
  void withdraw(std::uint32_t id) noexcept { regions_.remove(id); }

 private:
  [[nodiscard]] std::byte* locate(int peer, const RemoteAddress& address, std::size_t size_bytes) const noexcept;

  std::vector<bool> may_map_;  ///< [num_ranks]
  RegionTable regions_;
  std::uint32_t next_id_ = 0;
  std::uint64_t num_started_ = 0;
};

}  // namespace moebus::transport
