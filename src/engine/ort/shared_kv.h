// Whether a graph's KV can live in a sequence's reservation.
#pragma once

#include <string>

#include "engine/ort/ort_model.h"
#include "package/package.h"

namespace granule::engine {

// By the graph: every past goes into one GroupQueryAttention and nowhere else, and its present
// comes out of the same node. The reason why not, or empty.
std::string WhyGraphCannotShareKv(const package::Package& package);

// By trying: a few tokens are run over memory of whole pages, and the system says which pages were
// touched. A library that converts the KV on the way, or clears it, touches pages without live
// rows; in a reservation these have nothing behind them and touching them would end the process.
// The reason why not, or empty. An error when the model cannot be run at all.
Result<std::string> WhyLibraryCannotShareKv(const OrtModel& model);

}  // namespace granule::engine
