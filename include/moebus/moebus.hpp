// Umbrella: everything a user of the library includes.
// Room: public verbs · host.

#pragma once

#include "moebus/config.hpp"
#include "moebus/error.hpp"
#include "moebus/exchange.hpp"
#include "moebus/group.hpp"
#include "moebus/io.hpp"
#include "moebus/stats.hpp"
#include "moebus/tensor.hpp"
#include "moebus/types.hpp"
#include "moebus/version.hpp"
