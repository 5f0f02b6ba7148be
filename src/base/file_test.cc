#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace granule {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

std::string Explain(std::string_view text) {
  return ExplainForeignBytes(std::as_bytes(std::span(text)));
}

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "granule-file-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path Write(const std::string& name, std::string_view text) {
    std::ofstream(root_ / name, std::ios::binary) << text;
    return root_ / name;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_))
      names.push_back(entry.path().filename());
    return names;
  }
  fs::path root_;
};

TEST_F(FileTest, MapsTheBytesAndOutlivesTheName) {
  const fs::path path = Write("a", "hello\0there"s);
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  fs::remove(path);
  EXPECT_EQ((*file)->text(), "hello\0there"s);
  EXPECT_EQ((*file)->bytes().size(), 11u);
  EXPECT_EQ((*file)->path(), path);
}

TEST_F(FileTest, AnEmptyFileIsEmpty) {
  auto file = MappedFile::Open(Write("empty", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->bytes().empty());
  (*file)->DropPages((*file)->bytes());
}

TEST_F(FileTest, WhatIsNotAFileIsNamed) {
  auto missing = MappedFile::Open(root_ / "nothing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kInvalidInput);
  EXPECT_EQ(missing.status().message(), (root_ / "nothing").native() + ": there is no such file");

  auto directory = MappedFile::Open(root_);
  ASSERT_FALSE(directory.ok());
  EXPECT_NE(directory.status().message().find("found a directory"), std::string::npos);

  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  auto pipe = MappedFile::Open(root_ / "pipe");  // must not wait for a writer
  ASSERT_FALSE(pipe.ok());
  EXPECT_NE(pipe.status().message().find("found a pipe"), std::string::npos);

  auto device = MappedFile::Open("/dev/null");
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.status().message().find("found a device"), std::string::npos);
}

TEST_F(FileTest, NoPermissionIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const fs::path path = Write("secret", "x");
  fs::permissions(path, fs::perms::none);
  auto file = MappedFile::Open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("no permission"), std::string::npos);
}

TEST_F(FileTest, DroppedPagesComeBackOnTouch) {
  const std::string text(1 << 20, 'x');
  auto file = MappedFile::Open(Write("big", text));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->text(), text);
  (*file)->DropPages((*file)->bytes());
  (*file)->DropPages((*file)->bytes().subspan(5, 100));  // less than a page: nothing to drop
  EXPECT_EQ((*file)->text(), text);
}

TEST_F(FileTest, ForeignBytesAreExplained) {
  EXPECT_EQ(Explain(""), "is empty");
  EXPECT_EQ(Explain("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 18958888\n"),
            "is a Git LFS pointer, the real file is 18958888 bytes (run `git lfs pull`)");
  EXPECT_EQ(Explain("version https://git-lfs.github.com/spec/v1\n"),
            "is a Git LFS pointer (run `git lfs pull`)");
  EXPECT_EQ(Explain("version https://git-lfs.github.com/spec/v1\nsize x\n"),
            "is a Git LFS pointer (run `git lfs pull`)");
  EXPECT_EQ(Explain("\n  <!DOCTYPE html><html>").rfind("is an HTML page", 0), 0u);
  EXPECT_EQ(Explain("\xef\xbb\xbf<html lang=en>").rfind("is an HTML page", 0), 0u);
  EXPECT_EQ(Explain("<?xml version='1.0'?><Error>").rfind("is an XML document", 0), 0u);
  EXPECT_EQ(Explain("PK\x03\x04zip").rfind("is a ZIP archive", 0), 0u);
  EXPECT_EQ(Explain("\x1f\x8b\x08").rfind("is gzip-compressed", 0), 0u);
  EXPECT_EQ(Explain("\x28\xb5\x2f\xfd").rfind("is zstd-compressed", 0), 0u);
  EXPECT_EQ(Explain("\xfd\x37zXZ\0"s).rfind("is xz-compressed", 0), 0u);
  EXPECT_EQ(Explain("GGUF\x03\0\0\0"s).rfind("is a GGUF file", 0), 0u);
  EXPECT_EQ(Explain("\x10\0\0\0\0\0\0\0{\"a\":{}}      "s).rfind("is a safetensors file", 0), 0u);
  EXPECT_EQ(Explain("\x7f"
                    "ELF")
                .rfind("is an executable", 0),
            0u);
  EXPECT_EQ(Explain("{\"error\":\"Repository not found\"}"),
            "is an error message of a web server: {\"error\":\"Repository not found\"}");
  EXPECT_EQ(Explain("Entry not found").rfind("is an error message", 0), 0u);
  EXPECT_EQ(Explain(std::string(10000, '\0')).rfind("holds only zero bytes", 0), 0u);
  std::string tar(512, 'a');
  tar.replace(257, 5, "ustar");
  EXPECT_EQ(Explain(tar).rfind("is a tar archive", 0), 0u);
}

TEST_F(FileTest, OtherBytesAreNotExplained) {
  for (const std::string& text :
       {"{\"version\": \"1.0\"}"s, "\x08\x07\x12\x00onnx"s, "plain"s, "P"s, std::string(1, '{'),
        "\0\0\0\0\0\0\0\0{\""s, "\xff\xff\xff\xff\xff\xff\xff\xff{\""s}) {
    EXPECT_EQ(Explain(text), "") << text;
  }
}

TEST_F(FileTest, AnAtomicFileAppearsOnCommit) {
  const fs::path path = root_ / "out.json";
  auto file = AtomicFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->Write("first ").ok());
  AtomicFile moved = *std::move(file);
  ASSERT_TRUE(moved.Write("second").ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(moved.written_bytes(), 12u);
  ASSERT_TRUE(moved.Commit().ok());
  EXPECT_EQ(*ReadFile(path, 100), "first second");
  EXPECT_EQ(Names(), std::vector<std::string>{"out.json"});
}

TEST_F(FileTest, WithoutCommitNothingIsLeftAndTheOldFileStays) {
  const fs::path path = Write("out", "old");
  {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Write("new").ok());
    EXPECT_EQ(Names().size(), 2u);
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"out"});
  EXPECT_EQ(*ReadFile(path, 100), "old");
  ASSERT_TRUE(WriteFileAtomically(path, "newer").ok());
  EXPECT_EQ(*ReadFile(path, 100), "newer");
}

TEST_F(FileTest, NewFilesHaveTheUsualPermissions) {
  const mode_t mask = umask(022);
  ASSERT_TRUE(WriteFileAtomically(root_ / "out", "x").ok());
  umask(mask);
  struct stat info {};
  ASSERT_EQ(stat((root_ / "out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644);
}

TEST_F(FileTest, PlacesThatCannotBeWrittenAreNamed) {
  const Status folder = WriteFileAtomically(root_ / "no" / "out", "x");
  EXPECT_EQ(folder.code(), Code::kInvalidInput);
  EXPECT_NE(folder.message().find("the folder " + (root_ / "no").native() + " does not exist"),
            std::string::npos);
  const Status directory = WriteFileAtomically(root_, "x");
  EXPECT_NE(directory.message().find("it is a directory"), std::string::npos);
}

// The limit on the file size stands in for a full disk: both refuse the same write call.
TEST_F(FileTest, ARefusedWriteIsExhaustedAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100000;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  auto file = AtomicFile::Create(root_ / "out");
  const Status first = file.ok() ? file->Write(std::string(80000, 'x')) : file.status();
  const Status second = file.ok() ? file->Write(std::string(80000, 'x')) : file.status();
  const Status third = file.ok() ? file->Commit() : file.status();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(first.ok()) << first.message();
  EXPECT_EQ(second.code(), Code::kExhausted);
  EXPECT_NE(second.message().find((root_ / "out").native()), std::string::npos);
  EXPECT_NE(second.message().find("100000 bytes"), std::string::npos) << second.message();
  EXPECT_EQ(third.message(), second.message());
  EXPECT_TRUE(Names().empty());
}

TEST_F(FileTest, DevicesAreNotReplaced) {
  const Status status = WriteFileAtomically("/dev/null", "x");
  EXPECT_EQ(status.code(), Code::kInvalidInput);
  EXPECT_NE(status.message().find("it is a device"), std::string::npos);
}

TEST_F(FileTest, ReadFileKeepsTheBoundAndReadsPipesAndProc) {
  const fs::path path = Write("ten", "0123456789");
  EXPECT_EQ(*ReadFile(path, 10), "0123456789");
  auto more = ReadFile(path, 9);
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.status().message().find("at most 9 are accepted"), std::string::npos);
  EXPECT_TRUE(ReadFile("/proc/self/stat", 1 << 20).ok());
  EXPECT_FALSE(ReadFile("/proc/self/stat", 3).ok());
  EXPECT_FALSE(ReadFile(root_, 100).ok());
  EXPECT_FALSE(ReadFile(root_ / "missing", 100).ok());
  const std::string long_text(100000, 'y');
  EXPECT_EQ(*ReadFile(Write("long", long_text), 1 << 20), long_text);

  ASSERT_EQ(mkfifo((root_ / "pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(root_ / "pipe") << "through a pipe"; });
  EXPECT_EQ(*ReadFile(root_ / "pipe", 100), "through a pipe");
  writer.join();
}

}  // namespace
}  // namespace granule
