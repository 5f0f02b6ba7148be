// many_requests MODEL [park]: one process that serves commands, one a line on standard input, and
// answers each with a line of JSON: what the process, the system and the ledger say the memory is,
// and the ids of a generation.
//   generate COUNT IDS   a sequence of its own, closed afterwards, or parked with "park": greedy
//   sessions COUNT       so many sequences are opened, and closed without a token
//   unload               the model and the device are gone
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "generate/generate.h"
#include "package/package.h"

using namespace granule;

namespace {

struct Server {
  std::unique_ptr<engine::DeviceContext> device;
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::Engine> engine;

  Status Load(const char* folder) {
    engine::DeviceOptions options;
    options.threads = 1;
    auto made = engine::DeviceContext::CreateCpu(options);
    if (!made.ok()) return made.status();
    device = std::move(*made);
    auto package = package::Open(folder);
    if (!package.ok()) return package.status();
    auto loaded = engine::Model::Load(*device, std::move(*package));
    if (!loaded.ok()) return loaded.status();
    model = std::move(*loaded);
    engine = std::make_unique<engine::Engine>(*device, *model, engine::KvOptions{});
    return {};
  }

  Status Generate(std::istream& words, bool park, std::vector<engine::TokenId>& ids,
                  uint64_t& kv_bytes) {
    generate::Request request;
    words >> request.max_new_tokens;
    for (engine::TokenId id = 0; words >> id;) request.prompt.push_back(id);
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    auto sequence = engine->NewSequence();
    if (!sequence.ok()) return sequence.status();
    auto outcome = generate::Generate(*engine, **sequence, request);
    if (!outcome.ok()) return outcome.status();
    ids = outcome->ids;
    kv_bytes = (*sequence)->counters().unique_physical_bytes;
    if (park) kv::Sequence::Park(std::move(*sequence));
    return {};
  }

  Status OpenAndClose(std::istream& words) {
    int count = 0;
    words >> count;
    std::vector<std::unique_ptr<kv::Sequence>> open;
    for (int i = 0; i < count; ++i) {
      auto sequence = engine->NewSequence();
      if (!sequence.ok()) return sequence.status();
      open.push_back(std::move(*sequence));
    }
    return {};
  }
};

// Resident memory of this process with shared pages, in bytes.
uint64_t Resident() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const bool park = argc > 2 && std::string(argv[2]) == "park";
  Server server;
  std::vector<engine::TokenId> ids;
  uint64_t kv_bytes = 0;  // of the last generation, while it lived
  const auto answer = [&] {
    nlohmann::json json = {{"rss", Resident()}, {"kv", kv_bytes}, {"ids", ids}};
    if (server.device) {
      const kv::Store store = server.device->store();
      json["system"] = *store.vmm->ResidentBytes();
      json["unique"] = store.table->unique_bytes();
      json["parked"] = store.parking->parked_bytes();
      json["pooled"] = store.pool->counters().pooled_bytes;
    }
    std::cout << json.dump() << std::endl;
  };
  answer();  // before anything is loaded
  Status status = server.Load(argv[1]);
  if (status.ok()) answer();
  for (std::string line; status.ok() && std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    ids.clear();
    kv_bytes = 0;
    if (command == "generate") {
      status = server.Generate(words, park, ids, kv_bytes);
    } else if (command == "sessions") {
      status = server.OpenAndClose(words);
    } else if (command == "unload") {
      server.engine.reset();
      server.model.reset();
      server.device.reset();
    } else {
      status = Error(Code::kUsage, "no command: {}", line);
    }
    if (status.ok()) answer();
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
