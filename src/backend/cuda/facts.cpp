#include "backend/cuda/facts.hpp"

#include <fmt/format.h>

#include <array>

#include "backend/cuda/cuda_check.hpp"
#include "moebus/error.hpp"

namespace moebus::backend::cuda {
namespace {

int attribute(CUdevice_attribute wanted, CUdevice device) {
  int value = 0;
  MOEBUS_DRIVER_CALL(cuDeviceGetAttribute(&value, wanted, device));
  return value;
}

std::string uuid_of(CUdevice device) {
  CUuuid uuid{};
  MOEBUS_DRIVER_CALL(cuDeviceGetUuid(&uuid, device));
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

DeviceFacts device_facts(int ordinal) {
  const Driver& found = usable_driver();
  if (ordinal < 0 || ordinal >= found.num_devices) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device is {}; devices of this process are 0 to {}", ordinal, found.num_devices - 1));
  }
  CUdevice device = 0;
  MOEBUS_DRIVER_CALL(cuDeviceGet(&device, ordinal));
  std::array<char, 256> name{};
  MOEBUS_DRIVER_CALL(cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device));
  DeviceFacts facts;
  facts.ordinal = ordinal;
  facts.name = name.data();
  facts.uuid = uuid_of(device);
  facts.compute_capability = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) * 10 +
                             attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  facts.num_multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  MOEBUS_DRIVER_CALL(cuDeviceTotalMem(&facts.memory_bytes, device));
  facts.driver_version = found.version;
  return facts;
}

std::vector<DeviceFacts> list_devices() {
  std::vector<DeviceFacts> devices;
  for (int i = 0; i < usable_driver().num_devices; ++i) devices.push_back(device_facts(i));
  return devices;
}

}  // namespace moebus::backend::cuda
