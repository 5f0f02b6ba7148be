// Finding and refusing the library, and each entry of its table by what it does.
#include "engine/ort/ort_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "engine/ort/ort_for_test.h"
#include "engine/tiny_model_for_test.h"

namespace granule::engine {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const char* name)
      : path_(fs::temp_directory_path() / Format("granule-ort-{}-{}", name, getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(OrtVersion, OldAndStrangeOnesAreRefused) {
  for (const char* good : {"1.20.0", "1.20", "1.32.0", "1.21.0-rc1", "2.0.0"}) {
    EXPECT_EQ(WhyOrtVersionIsRefused(good), "") << good;
  }
  for (const char* old : {"1.19.2", "1.16.3", "1.9.0", "0.5.0"}) {
    EXPECT_TRUE(Contains(WhyOrtVersionIsRefused(old), "1.20.0 or newer is needed")) << old;
  }
  for (const char* strange : {"", "1", "x.y", "1..2", "-1.20.0", "99999999999999999999.1"}) {
    EXPECT_TRUE(Contains(WhyOrtVersionIsRefused(strange), "is not of the form")) << strange;
  }
}

// A library of version 1.16 as its table would look; asking it for a newer table is a failure.
TEST(OrtVersion, AnOldLibraryIsRefusedBeforeItsTableIsRead) {
  const OrtApiBase old{[](uint32_t) noexcept -> const OrtApiTable* {
                         ADD_FAILURE() << "asked an old library for its table";
                         return nullptr;
                       },
                       []() noexcept -> const char* { return "1.16.3"; }};
  const auto library = OrtLibrary::FromBase(old, "somewhere/libonnxruntime.so");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), Code::kUnavailable);
  const std::string& message = library.status().message();
  EXPECT_TRUE(Contains(message, "somewhere/libonnxruntime.so")) << message;
  EXPECT_TRUE(Contains(message, "1.16.3")) << message;
  EXPECT_TRUE(Contains(message, "pip install onnxruntime")) << message;
}

TEST(OrtVersion, ALibraryWithoutTheTableIsRefused) {
  const OrtApiBase without{[](uint32_t) noexcept -> const OrtApiTable* { return nullptr; },
                           []() noexcept -> const char* { return "1.25.0"; }};
  const auto library = OrtLibrary::FromBase(without, "there");
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), Code::kUnavailable);
  EXPECT_TRUE(Contains(library.status().message(), "no API of version 20"));
  const OrtApiBase silent{without.get_api, []() noexcept -> const char* { return nullptr; }};
  EXPECT_FALSE(OrtLibrary::FromBase(silent, "there").ok());
}

TEST(OrtPlaces, NothingFoundTellsWhatWasTriedAndHowToGetIt) {
  const TemporaryFolder empty("empty"), broken("broken");
  std::ofstream(broken.path() / "libonnxruntime.so.1.30.0") << "not a library";
  OrtPlaces places;
  places.folders = {empty.path(), broken.path()};
  places.loader_names = {"libgranule-has-no-such-library.so"};
  const auto library = OrtLibrary::Open(places);
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), Code::kUnavailable);
  const std::string& message = library.status().message();
  for (const std::string& part :
       {empty.path().string() + ": no libonnxruntime.so there",
        (broken.path() / "libonnxruntime.so.1.30.0").string(),
        std::string("libgranule-has-no-such-library.so"), std::string("pip install onnxruntime"),
        std::string("GRANULE_ORT_LIB")}) {
    EXPECT_TRUE(Contains(message, part)) << part << " is not in: " << message;
  }
}

TEST(OrtPlaces, ANamedLibraryThatFailsIsNotReplacedByAnother) {
  const TemporaryFolder empty("named");
  OrtPlaces places;
  places.folders = {UsualOrtForTest()};
  for (const std::string& named :
       {empty.path().string(), (empty.path() / "missing.so").string(), std::string("missing.so")}) {
    places.named = named;
    const auto library = OrtLibrary::Open(places);
    ASSERT_FALSE(library.ok());
    EXPECT_EQ(library.status().code(), Code::kUnavailable);
    EXPECT_TRUE(Contains(library.status().message(), "GRANULE_ORT_LIB=" + named))
        << library.status().message();
  }
}

TEST(OrtPlaces, ALibraryThatIsSomethingElseIsNamed) {
  OrtPlaces places;
  places.loader_names = {"libc.so.6"};
  const auto library = OrtLibrary::Open(places);
  ASSERT_FALSE(library.ok());
  EXPECT_TRUE(Contains(library.status().message(), "libc.so.6: not ONNX Runtime"));
}

TEST(OrtPlaces, TheEnvironmentNamesPlaces) {
  const TemporaryFolder home("home");
  static std::string folder;
  folder = home.path().string();
  const fs::path python = home.path() / "lib" / "python3.11" / "site-packages";
  fs::create_directories(python);
  fs::create_directories(home.path() / "lib" / "python3.9");
  const OrtPlaces places = OrtPlaces::Usual([](const char* name) -> const char* {
    if (std::string(name) == "GRANULE_ORT_LIB") return "here.so";
    if (std::string(name) == "VIRTUAL_ENV") return folder.c_str();
    return nullptr;
  });
  EXPECT_EQ(places.named, "here.so");
  const auto newest =
      std::find(places.folders.begin(), places.folders.end(), python / "onnxruntime" / "capi");
  ASSERT_NE(newest, places.folders.end());
  EXPECT_TRUE(Contains((newest + 1)->string(), "python3.9"));
  EXPECT_EQ(places.loader_names.front(), "libonnxruntime.so.1");
}

int ThreadsOfThisProcess() {
  return static_cast<int>(std::distance(fs::directory_iterator("/proc/self/task"), {}));
}

struct Source {
  const char* name;
  std::string (*find)();
};

// Each entry that granule uses, by its effect, on the newest library and on the oldest.
class OrtTable : public testing::TestWithParam<Source> {
 protected:
  void SetUp() override {
    OrtPlaces places;
    places.named = GetParam().find();
    if (places.named.empty()) GTEST_SKIP() << "no ONNX Runtime: " << GetParam().name;
    auto library = OrtLibrary::Open(places);
    ASSERT_TRUE(library.ok()) << library.status().message();
    library_ = *library;
    std::printf("ONNX Runtime %s\n", library_->version().c_str());
    TinyModelWriter(folder_.path(), TinyShape{.layers = 1, .bits = 32});
  }
  const OrtCalls& c() const { return library_->calls(); }
  std::string Message(OrtStatus* status, OrtErrorCode code) {
    if (status == nullptr) return "no error";
    EXPECT_EQ(c().get_error_code(status), code);
    std::string message = c().get_error_message(status);
    c().release_status(status);
    return message;
  }
  void Good(OrtStatus* status) {
    const Status s = library_->Take(status, "a call");
    ASSERT_TRUE(s.ok()) << s.message();
  }
  std::string Model() const { return (folder_.path() / "model.onnx").string(); }

  TemporaryFolder folder_{"table"};
  std::shared_ptr<const OrtLibrary> library_;
};

TEST_P(OrtTable, ErrorsHaveCodesAndWords) {
  OrtSessionOptions* options = nullptr;
  Good(c().create_session_options(&options));
  OrtSession* session = nullptr;
  EXPECT_TRUE(
      Contains(Message(c().create_session(library_->env(), "no-such-model.onnx", options, &session),
                       OrtErrorCode::kNoSuchFile),
               "no-such-model.onnx"));
  EXPECT_TRUE(Contains(Message(c().set_optimization(options, static_cast<OrtOptimization>(1234)),
                               OrtErrorCode::kInvalidArgument),
                       "graph_optimization_level"));
  EXPECT_TRUE(Contains(
      Message(c().add_config_entry(options, "", "1"), OrtErrorCode::kInvalidArgument), "onfig"));
  Good(c().set_optimization(options, OrtOptimization::kAll));
  Good(c().add_config_entry(options, "session.intra_op.allow_spinning", "0"));
  Good(c().disable_mem_pattern(options));
  c().release_session_options(options);
  // Ours, from theirs.
  const Status s = library_->Take(c().create_session(library_->env(), "nowhere", nullptr, &session),
                                  "loading a model");
  EXPECT_EQ(s.code(), Code::kInvalidInput);
  EXPECT_TRUE(
      Contains(s.message(), "loading a model failed in ONNX Runtime " + library_->version()))
      << s.message();
}

TEST_P(OrtTable, TheLoggerGetsTheLibrarysWords) {
  int lines = 0;
  OrtEnv* env = nullptr;
  // The environment is one per process and the first logger stays; so this only shows that the call
  // hands out the same one.
  Good(c().create_env_with_logger([](void* count, OrtSeverity, const char*, const char*,
                                     const char*, const char*) { ++*static_cast<int*>(count); },
                                  &lines, OrtSeverity::kVerbose, "test", &env));
  EXPECT_EQ(env, library_->env());
  c().release_env(env);
}

TEST_P(OrtTable, IntraOpThreadsAreThreadsAndInterOpAreNot) {
  for (const auto& [intra, inter, more] : {std::tuple(3, 1, 2), std::tuple(1, 3, 0)}) {
    OrtSessionOptions* options = nullptr;
    Good(c().create_session_options(&options));
    Good(c().set_intra_op_threads(options, intra));
    Good(c().set_inter_op_threads(options, inter));
    const int before = ThreadsOfThisProcess();
    OrtSession* session = nullptr;
    Good(c().create_session(library_->env(), Model().c_str(), options, &session));
    EXPECT_EQ(ThreadsOfThisProcess() - before, more);
    c().release_session(session);
    EXPECT_EQ(ThreadsOfThisProcess(), before);
    c().release_session_options(options);
  }
}

TEST_P(OrtTable, PortsHaveNamesTypesAndShapes) {
  OrtSessionOptions* options = nullptr;
  Good(c().create_session_options(&options));
  OrtSession* session = nullptr;
  Good(c().create_session(library_->env(), Model().c_str(), options, &session));
  c().release_session_options(options);
  size_t inputs = 0, outputs = 0;
  Good(c().input_count(session, &inputs));
  Good(c().output_count(session, &outputs));
  EXPECT_EQ(inputs, 4u);
  EXPECT_EQ(outputs, 3u);
  OrtAllocator* allocator = nullptr;
  Good(c().default_allocator(&allocator));
  ASSERT_NE(allocator, nullptr);
  const auto take = [&](char* name) {
    const std::string text = name;
    Good(c().allocator_free(allocator, name));
    return text;
  };
  char* name = nullptr;
  Good(c().input_name(session, 2, allocator, &name));
  EXPECT_EQ(take(name), "past_key_values.0.key");
  Good(c().output_name(session, 1, allocator, &name));
  EXPECT_EQ(take(name), "present.0.value");
  Good(c().output_name(session, 2, allocator, &name));
  EXPECT_EQ(take(name), "logits");

  const auto describe = [&](OrtTypeInfo* type) {
    const OrtTensorInfo* info = nullptr;
    Good(c().type_to_tensor(type, &info));
    OrtElementType element{};
    Good(c().element_type(info, &element));
    size_t rank = 0;
    Good(c().rank(info, &rank));
    std::vector<int64_t> dims(rank);
    Good(c().dims(info, dims.data(), rank));
    c().release_type_info(type);
    return std::pair(element, dims);
  };
  OrtTypeInfo* type = nullptr;
  Good(c().input_type(session, 0, &type));
  EXPECT_EQ(describe(type), std::pair(OrtElementType::kInt64, std::vector<int64_t>{-1, -1}));
  Good(c().input_type(session, 2, &type));
  EXPECT_EQ(describe(type), std::pair(OrtElementType::kFloat, std::vector<int64_t>{-1, 2, -1, 16}));
  Good(c().output_type(session, 2, &type));
  EXPECT_EQ(describe(type), std::pair(OrtElementType::kFloat, std::vector<int64_t>{-1, -1, 101}));
  c().release_session(session);
}

TEST_P(OrtTable, TensorsLieWhereTheyWerePut) {
  OrtMemoryInfo* memory = nullptr;
  Good(c().create_cpu_memory_info(OrtAllocatorType::kDevice, OrtMemoryType::kDefault, &memory));
  std::vector<uint16_t> halves(6, 7);
  const int64_t dims[] = {2, 3};
  OrtValue* value = nullptr;
  Good(
      c().create_tensor_over(memory, halves.data(), 12, dims, 2, OrtElementType::kFloat16, &value));
  void* data = nullptr;
  Good(c().tensor_data(value, &data));
  EXPECT_EQ(data, halves.data());
  OrtTensorInfo* info = nullptr;
  Good(c().value_tensor_info(value, &info));
  OrtElementType element{};
  Good(c().element_type(info, &element));
  EXPECT_EQ(element, OrtElementType::kFloat16);
  std::vector<int64_t> read(2);
  Good(c().dims(info, read.data(), 2));
  EXPECT_EQ(read, (std::vector<int64_t>{2, 3}));
  c().release_tensor_info(info);
  c().release_value(value);
  EXPECT_NE(Message(c().create_tensor_over(memory, halves.data(), 11, dims, 2,
                                           OrtElementType::kFloat16, &value),
                    OrtErrorCode::kInvalidArgument),
            "no error");
  c().release_memory_info(memory);
}

INSTANTIATE_TEST_SUITE_P(Libraries, OrtTable,
                         testing::Values(Source{"usual", UsualOrtForTest},
                                         Source{"oldest", OldestOrtForTest}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace granule::engine
