// The default model for tests, and what outside engines wrote with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "engine/engine.h"

namespace granule::engine {

inline constexpr const char* kNoRealModel = "no model: `make model` makes it";

// GRANULE_TEST_MODEL names the folder (set but unusable is a failure of whoever opens it); without
// it the folder that `make model` makes. Empty where that is not there: the test is skipped.
inline std::filesystem::path RealModelFolderOrEmpty() {
  const char* named = std::getenv("GRANULE_TEST_MODEL");
  if (named != nullptr && *named != '\0') return named;
  const std::filesystem::path usual = GRANULE_SOURCE_DIR "/models/smollm2-135m-instruct";
  return std::filesystem::exists(usual) ? usual : std::filesystem::path();
}

struct Golden {
  std::vector<TokenId> prompt;
  std::vector<TokenId> ids;  // up to the first step whose margin is not sure
};

// Of a file in tests/data, as far as margins between the best two tokens reach `sure_margin`.
inline std::vector<Golden> ReadGoldens(const char* name, double sure_margin = 0.02) {
  const auto text =
      ReadFile(std::filesystem::path(GRANULE_SOURCE_DIR) / "tests/data" / name, 16 << 20);
  EXPECT_TRUE(text.ok()) << text.status().message();
  std::vector<Golden> goldens;
  if (!text.ok()) return goldens;
  const auto json = nlohmann::json::parse(*text);
  for (const auto& item : json["items"]) {
    Golden golden{item["prompt_ids"], item["generated_ids"]};
    const std::vector<double> margins = item["margins"];
    const auto unsure =
        std::find_if(margins.begin(), margins.end(), [&](double m) { return m < sure_margin; });
    golden.ids.resize(static_cast<size_t>(unsure - margins.begin()));
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

}  // namespace granule::engine
